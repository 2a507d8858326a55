package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxBuffer is how much memory for writing a chain keeps between groups.
const maxBuffer = 1 << 20

// chain is one of the journal's two chains.
type chain struct {
	name      string
	cfg       *Config
	retention Retention
	watchers  *watchers
	// sealKey is the public half of the key that seals heads, in hex.
	sealKey string
	// sealed is where the head that was sealed before the start says that it ends.
	sealed ChainHead
	// sick is called when the chain can't be written; it never blocks.
	sick func()

	queue queue
	// down is why the chain takes no records; nil while it does.
	down atomic.Pointer[error]

	// short says that the disk has no space for more than what is reserved.
	short atomic.Bool

	// writing guards what follows; it is held while the disk is at work.
	writing sync.Mutex
	closed  bool
	file    file // nil: the next write begins a segment
	size    int64
	// reserved is up to which size the file can grow without more of the disk.
	reserved int64
	pos      link
	buf      []byte
	sizes    []int64 // of the lines in buf
	items    []item
	shares   shares
	// begun is set when a segment was begun, and what that makes outdated not removed.
	begun bool
	// doubtful is set when a sync failed: what the segment's pages hold is not known.
	doubtful bool
	// secured is up to which record all are on the device for sure.
	secured int64
	backlog backlog

	// listing guards the segments; it is held for moments only.
	listing  sync.Mutex
	segments []segment
}

// append commits an entry in a group.
func (c *chain) append(ctx context.Context, e *entry) error {
	return c.queue.do(ctx, e, c.commit)
}

// item is a record that is to be written: its JSON without what the chain adds, and
// whom its room is charged to.
type item struct {
	body []byte
	who  []principal.Key
	// secure says that the record must survive a loss of power.
	secure bool
}

// commit writes a group, and notes in each entry what came of it. Outcomes that
// can't be written are kept for later, refusals are counted.
func (c *chain) commit(ctx context.Context, group []*entry) {
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.failure()
	if err == nil {
		err = c.commitAdmitted(ctx, group)
	}
	for _, e := range group {
		if e.err != nil {
			continue // it was not admitted
		}
		e.err = err
		if err != nil && !c.closed {
			c.miss(ctx, e)
		}
	}
	c.pruneBegun(ctx)
}

// commitAdmitted writes those of a group whose principals have room; the others have
// their errors.
func (c *chain) commitAdmitted(ctx context.Context, group []*entry) error {
	now := time.Now()
	c.items = c.items[:0]
	for _, e := range group {
		if e.err = c.admit(ctx, e, now); e.err == nil {
			c.shares.expect(e.who, lineOf(e))
			c.items = append(c.items, item{body: e.body.Bytes(), who: e.who, secure: secures(e.rec.Kind, &e.rec)})
		}
	}
	err := c.failure() // to make room writes too
	if err == nil && len(c.items) > 0 {
		if err = c.write(c.items); err != nil {
			err = c.fail(ctx, err)
		}
	}
	clear(c.items)
	clear(c.shares.expected)
	return err
}

// failure says why the chain takes no records, or nil.
func (c *chain) failure() error {
	if err := c.down.Load(); err != nil {
		return *err
	}
	return nil
}

// write appends records with one write, all or none. It needs writing.
func (c *chain) write(items []item) error {
	now := time.Now().UTC()
	begins := c.file == nil
	next := c.compose(now, items, begins || c.size == 0)
	if !begins && c.size > 0 && c.size+int64(len(c.buf)) > c.cfg.SegmentBytes && !c.staysFor(len(c.buf)) {
		begins = true
		next = c.compose(now, items, true)
	}
	if begins {
		if err := c.rotate(); err != nil {
			return fmt.Errorf("begin a segment: %w", err)
		}
	}
	if err := c.put(items, next); err != nil {
		return err
	}
	first := c.pos.seq + 1
	c.pos = next
	c.size += int64(len(c.buf))
	c.reserve()
	for i := range items {
		c.shares.charge(items[i].who, c.sizes[i])
	}
	c.begun = c.begun || begins
	c.publish(now)
	// After publish: who begins to watch in between has it in its view.
	c.watchers.publish(c, first, c.buf)
	if cap(c.buf) > maxBuffer {
		c.buf = nil
	}
	return nil
}

// compose puts the lines of records into the buffer, and returns where the chain
// stands behind them. The first record of a segment says more.
func (c *chain) compose(now time.Time, items []item, begins bool) link {
	next := c.pos
	c.buf, c.sizes = c.buf[:0], c.sizes[:0]
	var more []byte
	if begins {
		more = c.beginning()
	}
	for _, one := range items {
		before := len(c.buf)
		c.buf = next.appendLine(c.buf, now, more, one.body)
		c.sizes = append(c.sizes, int64(len(c.buf)-before))
		more = nil
	}
	return next
}

// beginning is what the first record of a segment says beside its own: who seals the
// heads, and which records are kept.
func (c *chain) beginning() []byte {
	c.listing.Lock()
	defer c.listing.Unlock()
	oldest := c.pos.seq + 1
	if len(c.segments) > 0 {
		oldest = c.segments[0].first
	}
	return fmt.Appendf(nil, `"seal_key":"%s","oldest":%d,`, c.sealKey, oldest)
}

// pruneBegun applies the retention where a segment was begun. It needs writing.
func (c *chain) pruneBegun(ctx context.Context) {
	if c.begun && c.failure() == nil {
		c.prune(ctx, time.Now())
		c.begun = false
	}
}

// put writes the buffer, which holds these records and ends at next. Where one of them
// must survive a loss of power, or all must, it is brought to the device.
func (c *chain) put(items []item, next link) error {
	if _, err := c.file.Write(c.buf); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	if c.cfg.Sync == SyncAlways || slices.ContainsFunc(items, func(one item) bool { return one.secure }) {
		return c.secure(next)
	}
	return nil
}

// publish shows readers what was written.
func (c *chain) publish(now time.Time) {
	c.listing.Lock()
	defer c.listing.Unlock()
	active := &c.segments[len(c.segments)-1]
	active.size, active.last, active.hash, active.newest = c.size, c.pos.seq, c.pos.hash, now
}

// end is where the chain ends, as heads say it.
func (c *chain) end() ChainHead {
	c.listing.Lock()
	defer c.listing.Unlock()
	if len(c.segments) == 0 {
		return ChainHead{Hash: new(link).head()}
	}
	newest := c.segments[len(c.segments)-1]
	at := link{seq: newest.last, hash: newest.hash}
	return ChainHead{Count: at.seq, Hash: at.head()}
}

// rotate ends the active segment, if there is one, and begins the next.
func (c *chain) rotate() error {
	if c.file != nil {
		c.giveBack()
		old := c.file
		c.file = nil
		if err := old.Close(); err != nil {
			return err
		}
	}
	next := segment{path: segmentPath(c.cfg.Dir, c.name, c.pos.seq+1), first: c.pos.seq + 1, last: c.pos.seq, hash: c.pos.hash}
	if err := c.create(next.path); err != nil {
		return err
	}
	c.size, c.reserved = 0, 0
	c.reserve()
	c.listing.Lock()
	defer c.listing.Unlock()
	if n := len(c.segments); n > 0 && c.segments[n-1].size == 0 {
		c.segments = c.segments[:n-1]
	} else if n > 0 {
		c.segments[n-1].tally = c.shares.ended(c.cfg.SegmentBytes)
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
	c.file = f
	return nil
}

// view returns the segments as they are now, oldest first. What is written later is
// not part of it.
func (c *chain) view() []segment {
	c.listing.Lock()
	defer c.listing.Unlock()
	return slices.Clone(c.segments)
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
	if left := len(c.backlog.items); left > 0 {
		errs = append(errs, fmt.Errorf("%d records of %s are lost: %w", left, c.name, c.failure()))
	}
	if lost := c.backlog.lost; lost > 0 {
		errs = append(errs, fmt.Errorf("%d %s are lost: %w", lost, c.losing(), c.failure()))
	}
	c.down.Store(new(ErrClosed))
	if c.file != nil {
		c.giveBack()
		errs = append(errs, c.file.Close())
	}
	return errors.Join(errs...)
}
