package journal

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	callsName    = "calls"
	refusalsName = "refusals"

	seqDigits = 20
	extension = ".jsonl"
	// chunk is the number of bytes per read when a segment is read backward.
	chunk = 64 << 10
)

// segment is a file that contains a part of a chain.
type segment struct {
	path string
	// first is the sequence number of the segment's first record. It is part of the file's name.
	first int64
	// last is the sequence number of the segment's last record, or first-1 if the segment is empty.
	last int64
	// hash is the hash of the segment's last line. If the segment is empty, it is the hash of the line before the segment.
	hash [sha256.Size]byte
	// size is the number of bytes that are part of the chain. The file can contain more bytes.
	size int64
	// newest is the time at which the segment's last record was written.
	newest time.Time
	// removalRecorded is true if a record of the segment's removal was written. removalFailed is true if an attempt to
	// remove the segment's file failed.
	removalRecorded, removalFailed bool
	// tally is the number of bytes that each principal uses in the segment. It is nil for the active segment, and for a
	// segment that has not been counted.
	tally tally
}

func segmentPath(dir, chain string, first int64) string {
	return filepath.Join(dir, fmt.Sprintf("%s-%0*d%s", chain, seqDigits, first, extension))
}

// segmentFirst parses a file's name and returns the sequence number of the first record. It reports whether the file is
// a segment of the chain.
func segmentFirst(chain, name string) (int64, bool) {
	digits, ours := strings.CutPrefix(name, chain+"-")
	digits, whole := strings.CutSuffix(digits, extension)
	first, err := strconv.ParseInt(digits, 10, 64)
	return first, ours && whole && err == nil && len(digits) == seqDigits && first > 0
}

// listSegments returns a chain's segments, oldest first. It sets only the fields path, first, last and size of each
// segment.
func listSegments(dir, chain string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list segments: %w", err)
	}
	var segments []segment
	for _, entry := range entries {
		first, ok := segmentFirst(chain, entry.Name())
		if !ok {
			continue
		}
		info, err := entry.Info()
		if err != nil {
			return nil, fmt.Errorf("list segments: %w", err)
		}
		segments = append(segments, segment{
			path: filepath.Join(dir, entry.Name()), first: first, last: first - 1, size: info.Size(),
		})
	}
	slices.SortFunc(segments, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	return segments, nil
}

// read returns the bytes of the segment that are part of the chain. If retention has removed the segment, read returns
// nil.
func (s segment) read() ([]byte, error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read segment: %w", err)
	}
	defer f.Close() //nolint:errcheck // the file was only read
	data := make([]byte, s.size)
	if _, err := io.ReadFull(f, data); err != nil {
		return nil, fmt.Errorf("read segment %s: %w", filepath.Base(s.path), err)
	}
	return data, nil
}

// backward yields the segment's lines without their newlines, from the last line to the first. A line is valid until
// the next line is yielded.
func (s segment) backward() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		f, err := os.Open(s.path)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err != nil {
			yield(nil, fmt.Errorf("read segment: %w", err))
			return
		}
		defer f.Close() //nolint:errcheck // the file was only read
		for line, err := range linesBackward(f, s.size) {
			if !yield(line, err) {
				return
			}
		}
	}
}

func linesBackward(r io.ReaderAt, size int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var rest, text, other []byte // rest is the end of a line whose beginning has not been read
		for end := size; end > 0; {
			n := min(end, chunk)
			end -= n
			text, other = slices.Grow(other[:0], int(n)+len(rest))[:n], text // rest is in the other buffer
			if _, err := r.ReadAt(text, end); err != nil {
				yield(nil, fmt.Errorf("read segment: %w", err))
				return
			}
			text = append(text, rest...)
			unread := text
			for {
				start := bytes.LastIndexByte(unread[:len(unread)-1], '\n') + 1
				if start == 0 && end > 0 {
					break
				}
				if !yield(bytes.TrimSuffix(unread[start:], []byte("\n")), nil) || start == 0 {
					return
				}
				unread = unread[:start]
			}
			rest = unread
		}
	}
}

// lastRecord returns the segment's last record and its position in the chain.
func (s segment) lastRecord() (Record, link, error) {
	for line, err := range s.backward() {
		if err != nil {
			return Record{}, link{}, err
		}
		rec, err := parse(line)
		if err != nil {
			return Record{}, link{}, s.broken(0, err)
		}
		return *rec, link{seq: rec.Seq, hash: sha256.Sum256(line)}, nil
	}
	return Record{}, link{}, s.broken(0, errors.New("is empty, and segments follow it"))
}

// linesOf yields the complete lines of data without their newlines.
func linesOf(data []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for {
			line, rest, whole := bytes.Cut(data, []byte("\n"))
			if !whole || !yield(line) {
				return
			}
			data = rest
		}
	}
}

// walk checks the lines of data in order. The first line follows the position at, and walk advances this position to
// the end of the last good line. For each record, walk calls visit with the record, the position after the record, and
// the length of its line. It returns the number of good bytes and good lines.
func walk(data []byte, at *link, visit func(rec *Record, at link, size int)) (good, lines int, err error) {
	for good < len(data) {
		length := bytes.IndexByte(data[good:], '\n')
		if length < 0 {
			return good, lines, fmt.Errorf("%w: its end is missing", errUnreadable)
		}
		rec, err := at.advance(data[good : good+length])
		if err != nil {
			return good, lines, err
		}
		good += length + 1
		lines++
		visit(&rec, *at, length+1)
	}
	return good, lines, nil
}

// BrokenError describes a record that breaks a chain.
type BrokenError struct {
	// File is the name of the segment.
	File string
	// Line is the number of the line in the file, starting from 1. It is 0 if the line is unknown.
	Line int
	// Seq is the sequence number that the record should have. It is 0 if this number is unknown.
	Seq int64
	// Why describes the problem.
	Why error
}

// Error returns the position and the cause.
func (e *BrokenError) Error() string {
	switch {
	case e.Line == 0:
		return fmt.Sprintf("%s: a line %v", e.File, e.Why)
	case e.Seq == 0:
		return fmt.Sprintf("%s: line %d %v", e.File, e.Line, e.Why)
	default:
		return fmt.Sprintf("%s: line %d, record %d, %v", e.File, e.Line, e.Seq, e.Why)
	}
}

// Unwrap returns the cause.
func (e *BrokenError) Unwrap() error { return e.Why }

func (s segment) broken(line int, why error) *BrokenError {
	return &BrokenError{File: filepath.Base(s.path), Line: line, Why: why}
}

func (s segment) brokenAt(line int, at link, why error) *BrokenError {
	return &BrokenError{File: filepath.Base(s.path), Line: line, Seq: at.seq + 1, Why: why}
}

// checkFollows returns an error unless the segment begins directly after the given position, because otherwise records
// are missing.
func (s segment) checkFollows(at link) error {
	if s.first == at.seq+1 {
		return nil
	}
	return s.brokenAt(1, at, fmt.Errorf("should be here: records %d to %d are missing, because a segment or the end of a segment is missing", at.seq+1, s.first-1))
}
