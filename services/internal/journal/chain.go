package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxBuffer is how much memory for writing a chain keeps between groups.
const maxBuffer = 1 << 20

// chain is one of the journal's two chains.
type chain struct {
	name      string
	cfg       *Config
	retention Retention
	watchers  *watchers
	// sick is called when the chain can't be written; it never blocks.
	sick func()

	queue queue
	// down is why the chain takes no records; nil while it does.
	down atomic.Pointer[error]

	// writing guards what follows; it is held while the disk is at work.
	writing sync.Mutex
	closed  bool
	file    file // nil: the next write begins a segment
	size    int64
	pos     link
	buf     []byte
	bodies  [][]byte
	// doubtful is set when a sync failed: what the segment's pages hold is not known.
	doubtful bool
	backlog  backlog

	// listing guards the segments; it is held for moments only.
	listing  sync.Mutex
	segments []segment
}

// append commits an entry in a group.
func (c *chain) append(ctx context.Context, e *entry) error {
	return c.queue.do(ctx, e, c.commit)
}

// commit writes a group, and notes in each entry what came of it. Outcomes that
// can't be written are kept for later, refusals are counted.
func (c *chain) commit(ctx context.Context, group []*entry) {
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.failure()
	if err == nil {
		c.bodies = c.bodies[:0]
		for _, e := range group {
			c.bodies = append(c.bodies, e.body.Bytes())
		}
		err = c.write(c.bodies)
		clear(c.bodies)
		if err != nil {
			err = c.fail(ctx, err)
		}
	}
	for _, e := range group {
		e.err = err
		if err != nil && !c.closed {
			c.miss(ctx, e)
		}
	}
}

// failure says why the chain takes no records, or nil.
func (c *chain) failure() error {
	if err := c.down.Load(); err != nil {
		return *err
	}
	return nil
}

// write appends records with one write, all or none. It needs writing.
func (c *chain) write(bodies [][]byte) error {
	now := time.Now().UTC()
	next := c.pos
	c.buf = c.buf[:0]
	for _, body := range bodies {
		c.buf = next.appendLine(c.buf, now, body)
	}
	full := c.size > 0 && c.size+int64(len(c.buf)) > c.cfg.SegmentBytes
	begun := c.file == nil || full
	if begun {
		if err := c.rotate(); err != nil {
			return fmt.Errorf("begin a segment: %w", err)
		}
	}
	if err := c.put(); err != nil {
		return err
	}
	first := c.pos.seq + 1
	c.pos = next
	c.size += int64(len(c.buf))
	c.publish(now)
	// After publish: who begins to watch in between has it in its view.
	c.watchers.publish(c, first, c.buf)
	if begun {
		c.prune(now)
	}
	if cap(c.buf) > maxBuffer {
		c.buf = nil
	}
	return nil
}

// put brings the buffer to the disk.
func (c *chain) put() error {
	if _, err := c.file.Write(c.buf); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	if c.cfg.Sync != SyncAlways {
		return nil
	}
	if err := c.file.Sync(); err != nil {
		c.doubtful = true
		return fmt.Errorf("sync records: %w", err)
	}
	return nil
}

// publish shows readers what was written.
func (c *chain) publish(now time.Time) {
	c.listing.Lock()
	defer c.listing.Unlock()
	active := &c.segments[len(c.segments)-1]
	active.size, active.last, active.newest = c.size, c.pos.seq, now
}

// rotate ends the active segment, if there is one, and begins the next.
func (c *chain) rotate() error {
	if c.file != nil {
		old := c.file
		c.file = nil
		if err := old.Close(); err != nil {
			return err
		}
	}
	next := segment{path: segmentPath(c.cfg.Dir, c.name, c.pos.seq+1), first: c.pos.seq + 1, last: c.pos.seq}
	if err := c.create(next.path); err != nil {
		return err
	}
	c.size = 0
	c.listing.Lock()
	defer c.listing.Unlock()
	if n := len(c.segments); n > 0 && c.segments[n-1].size == 0 {
		c.segments = c.segments[:n-1]
	}
	c.segments = append(c.segments, next)
	return nil
}

// create opens a new segment. An empty file of that name is what an attempt that
// went wrong left behind; any other is an error.
func (c *chain) create(path string) error {
	if info, err := os.Stat(path); err == nil && info.Size() == 0 {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	f, err := c.cfg.open(path, os.O_CREATE|os.O_EXCL|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if c.cfg.Sync == SyncAlways {
		if err := syncDir(c.cfg.Dir); err != nil {
			return errors.Join(err, f.Close())
		}
	}
	c.file = f
	return nil
}

// syncDir makes the names of new files durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// prune removes the oldest segments until the chain, with the active segment full,
// is within its retention. It needs writing.
func (c *chain) prune(now time.Time) {
	for {
		oldest, ok := c.outdated(now)
		if !ok {
			return
		}
		if err := removeSegment(oldest.path); err != nil {
			c.cfg.Log.WarnContext(context.Background(), "old journal segment is not removed",
				"chain", c.name, "segment", filepath.Base(oldest.path), "error", err)
			return
		}
		c.listing.Lock()
		c.segments = c.segments[1:]
		c.listing.Unlock()
	}
}

// outdated tells the oldest segment if it is to go. One that has records always
// stays, for the next record names the hash of the last.
func (c *chain) outdated(now time.Time) (segment, bool) {
	c.listing.Lock()
	defer c.listing.Unlock()
	n := len(c.segments)
	if n < 2 || n == 2 && c.segments[1].size == 0 {
		return segment{}, false
	}
	total := c.cfg.SegmentBytes
	for _, s := range c.segments[:n-1] {
		total += s.size
	}
	oldest := c.segments[0]
	return oldest, total > c.retention.Bytes || now.Sub(oldest.newest) > c.retention.Age
}

// removeSegment removes a segment and what was cut off it.
func removeSegment(path string) error {
	cuts, err := filepath.Glob(path + "*" + tornExtension)
	if err != nil {
		return err
	}
	for _, name := range append(cuts, path) {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// view returns the segments as they are now, oldest first. What is written later is
// not part of it.
func (c *chain) view() []segment {
	c.listing.Lock()
	defer c.listing.Unlock()
	return slices.Clone(c.segments)
}

// tidy applies the retention.
func (c *chain) tidy(now time.Time) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if !c.closed {
		c.prune(now)
	}
}

// close ends the chain: everything after it is refused.
func (c *chain) close() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	if left := len(c.backlog.bodies); left > 0 {
		errs = append(errs, fmt.Errorf("%d records of %s are lost: %w", left, c.name, c.failure()))
	}
	if lost := c.backlog.lost; lost > 0 {
		errs = append(errs, fmt.Errorf("%d %s are lost: %w", lost, c.losing(), c.failure()))
	}
	c.down.Store(new(ErrClosed))
	if c.file != nil {
		errs = append(errs, c.file.Close())
	}
	return errors.Join(errs...)
}
