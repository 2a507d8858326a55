package journal

import (
	"bytes"
	"io/fs"
	"time"
)

// File is a segment that is open for writing.
type File = file

// OnDisk returns a copy of cfg that uses the given function to open segments.
func OnDisk(cfg Config, open func(name string, flag int, perm fs.FileMode) (File, error)) Config {
	cfg.open = open
	return cfg
}

// Parse parses one line, without its newline.
func Parse(line []byte) (Record, error) {
	rec, err := parse(line)
	if err != nil {
		return Record{}, err
	}
	return *rec, nil
}

// WithCRC appends a CRC to arbitrary bytes, as if they were a record.
func WithCRC(text []byte) []byte { return appendCRC(bytes.Clone(text), text) }

// FirstLine returns the line that rec has as the first record of a chain, without the newline.
func FirstLine(rec Record, now time.Time) ([]byte, error) {
	var body bytes.Buffer
	if err := encodeBody(&body, &rec); err != nil {
		return nil, err
	}
	line := new(link).appendLine(nil, now, nil, body.Bytes())
	return bytes.TrimSuffix(line, []byte("\n")), nil
}

// Lines returns a function that builds the lines of consecutive records in the same way as the journal.
func Lines(fatal func(...any)) func(rec *Record, now time.Time) {
	var body bytes.Buffer
	var at link
	var dst []byte
	return func(rec *Record, now time.Time) {
		if err := encodeBody(&body, rec); err != nil {
			fatal(err)
		}
		dst = at.appendLine(dst[:0], now, nil, body.Bytes())
	}
}
