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

// Sync says how far a record must have got before the call that records it
// returns. The zero value is refused.
type Sync string

// The ways to sync.
const (
	// SyncNever leaves it to the system to write pages back: a record survives a
	// killed process, and not a loss of power. The intent of an approved call survives
	// that too, and all that its chain has before it.
	SyncNever Sync = "never"
	// SyncAlways waits until the record is on the device.
	SyncAlways Sync = "always"
)

// Retention is how long whole segments of a chain are kept. The segment that is
// being written is always kept.
type Retention struct {
	// Bytes is how large the chain may be: at least two segments.
	Bytes int64
	// Age is how old the newest record of a segment may be; above 0.
	Age time.Duration
}

// Config is how a journal is kept.
type Config struct {
	// Dir is the folder, which is made if need be. Its owner holds a lock on it: two
	// journals in one folder destroy each other's chains.
	Dir string
	// Keys is the folder of the journal's own keys, which is made if need be: not Dir, nor
	// one in it, for keys don't lie with what they protect.
	Keys string
	// Sync is how far a record must have got.
	Sync Sync
	// SegmentBytes is how large a segment may become before the next one is begun; at
	// least 4 KiB. One group of records may stand over it.
	SegmentBytes int64
	// Calls is how long intents and outcomes are kept.
	Calls Retention
	// Share is how much of the room of calls the records of one principal may take, above
	// 0; 1 is all of it. Beyond it the principal's calls are refused, unless what goes for
	// them is a week old.
	Share float64
	// Refusals is how long refusals and counts are kept.
	Refusals Retention
	// Build is the version of the program, noted in every record.
	Build string
	// Log takes what an operator should know; never nil.
	Log *slog.Logger

	// open opens a segment for writing; nil means the system's files.
	open func(name string, flag int, perm fs.FileMode) (file, error)
}

// file is a segment that is being written. Writes go to its end.
type file interface {
	io.WriteCloser
	Sync() error
	Truncate(size int64) error
}

// DefaultConfig is the configuration of a journal in dir with its keys in another
// folder: never synced, segments of
// 16 MiB, calls kept to 1 GiB and 90 days, refusals to 256 MiB and 30 days. Log is
// left to be set.
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

// Validate tells everything that is wrong with c, or nil.
func (c Config) Validate() error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf("journal: "+format, args...)) }
	if c.Dir == "" {
		wrong("no folder is set")
	}
	if in, err := filepath.Rel(c.Dir, c.Keys); c.Keys == "" || err == nil && filepath.IsLocal(in) {
		wrong("the keys are to be in %q: set a folder outside of the journal's", c.Keys)
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
