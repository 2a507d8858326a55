package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// Sync specifies when records are synced to the device. The zero value is not valid.
type Sync string

const (
	// SyncNever lets the operating system write records to the device at a later time. A record survives a crash of the
	// process, but not a power failure. However, the intent of an approved call and all earlier records of its chain also
	// survive a power failure.
	SyncNever Sync = "never"
	// SyncAlways makes each write of a record wait until the record is synced.
	SyncAlways Sync = "always"
)

// Retention limits the size and the age of a chain's segments. The active segment is never removed.
type Retention struct {
	// Bytes is the maximum size of the chain. It must be at least twice the size of a segment.
	Bytes int64
	// Age is the age of a segment's newest record at which the segment is removed. It must be above 0.
	Age time.Duration
}

// Config configures a journal.
type Config struct {
	// Dir is the journal's directory. It is created if it does not exist. The caller must hold a lock on the directory,
	// because two journals in one directory would destroy each other's chains.
	Dir string
	// Keys is the directory with the journal's keys. It is created if it does not exist. It must be outside Dir, so
	// that a copy of the journal does not contain the keys.
	Keys string
	// Sync specifies when the journal syncs records to the device.
	Sync Sync
	// SegmentBytes is the maximum size of a segment, at least 4 KiB. A single group of records may be larger.
	SegmentBytes int64
	// Calls is the retention of the chain of calls.
	Calls Retention
	// Share is the fraction of Calls.Bytes that the records of one principal may use, above 0 and at most 1. If a
	// principal has used its share, its calls are refused. However, if all records of the oldest segment are more than a
	// week old, that segment is removed instead.
	Share float64
	// Refusals is the retention of the chain of refusals, which also contains the counts of refused requests.
	Refusals Retention
	// Build is the version of the program. Every record contains it.
	Build string
	// Log receives messages for operators. It is required.
	Log *slog.Logger

	// open opens a segment for writing. If it is nil, segments are files of the operating system.
	open func(name string, flag int, perm fs.FileMode) (file, error)
}

// file is a segment that is open for writing. Each write appends to the segment.
type file interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// DefaultConfig returns the default configuration of a journal in the given directory. keys is the directory with the
// journal's keys. By default, Sync is [SyncNever], and segments have 16 MiB. Records of calls are stored up to 1 GiB
// and for 90 days, refusals up to 256 MiB and for 30 days. The caller must set Log.
func DefaultConfig(dir, keys string) Config {
	const day = 24 * time.Hour
	return Config{
		Dir:          dir,
		Keys:         keys,
		Sync:         SyncNever,
		SegmentBytes: 16 << 20,
		Calls:        Retention{Bytes: 1 << 30, Age: 90 * day},
		Share:        0.5,
		Refusals:     Retention{Bytes: 256 << 20, Age: 30 * day},
	}
}

// Validate returns an error that contains every problem of the configuration, or nil if there is none.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("journal: "+format, args...)) }
	if c.Dir == "" {
		wrong("no folder is set")
	}
	if in, err := filepath.Rel(c.Dir, c.Keys); c.Keys == "" || err == nil && filepath.IsLocal(in) {
		wrong("the folder of keys is %q: set a folder outside of the journal's folder", c.Keys)
	}
	if c.Sync != SyncNever && c.Sync != SyncAlways {
		wrong("sync is %q: set never or always", c.Sync)
	}
	if c.SegmentBytes < 4<<10 {
		wrong("segments of %d bytes are too small: set 4096 or more", c.SegmentBytes)
	}
	for _, r := range []struct {
		chain string
		Retention
	}{{callsName, c.Calls}, {refusalsName, c.Refusals}} {
		if r.Bytes < 2*c.SegmentBytes {
			wrong("%s may take %d bytes: set at least two segments of %d", r.chain, r.Bytes, c.SegmentBytes)
		}
		if r.Age <= 0 {
			wrong("%s may be %s old: set a positive age", r.chain, r.Age)
		}
	}
	if !(c.Share > 0 && c.Share <= 1) {
		wrong("the share of a principal is %g: set more than 0, and 1 at the most", c.Share)
	}
	if c.Log == nil {
		wrong("no logger is set")
	}
	return errors.Join(errs...)
}

func openFile(name string, flag int, perm fs.FileMode) (file, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return systemFile{f}, nil
}
