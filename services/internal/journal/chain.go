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

// maxBuffer is the maximum size, in bytes, of a write buffer that a chain reuses for the next group of records.
const maxBuffer = 1 << 20

// chain is one of the journal's two hash chains of records, which are the chain of calls and the chain of refusals.
type chain struct {
	name      string
	cfg       *Config
	retention Retention
	watchers  *watchers
	// sealKey is the public key, in hex, that verifies the signatures of heads.
	sealKey string
	// sealed is the end of the chain according to the newest signed head that was in the directory when the journal was
	// opened.
	sealed ChainHead
	// onFailure is called if the chain can't be written. It never blocks.
	onFailure func()

	queue queue
	// downErr is the reason why the chain does not accept records. It is nil while the chain accepts records.
	downErr atomic.Pointer[error]

	// diskFull is true if the disk is full, except for the space that the journal has reserved.
	diskFull atomic.Bool

	// writeMu guards the following fields. It is held during disk operations.
	writeMu sync.Mutex
	closed  bool
	file    file // if nil, the next write begins a segment
	size    int64
	// reserved is the size up to which the file can grow without allocating more disk space.
	reserved int64
	pos      link
	buf      []byte
	sizes    []int64 // the sizes of the lines in buf
	items    []item
	usage    quotaUsage
	// segmentBegun is true if a new segment was started after the retention was last applied.
	segmentBegun bool
	// syncFailed is true after a failed sync. The content of the segment on the disk is then unknown.
	syncFailed bool
	// syncedSeq is the sequence number of the last record that is known to be on the device. All earlier records are on
	// the device too.
	syncedSeq int64
	backlog   backlog

	// listMu guards segments. It is never held during disk operations.
	listMu   sync.Mutex
	segments []segment
}

func (c *chain) append(ctx context.Context, e *entry) error {
	return c.queue.do(ctx, e, c.commit)
}

// item is a record to be written.
type item struct {
	// body is the record's JSON without the members that the chain adds.
	body []byte
	// accounts contains the principals to whose quotas the record's size is charged.
	accounts []principal.Key
	mustSync bool
}

// commit writes a group of records and sets the error of each entry. If the group can't be written, outcomes stay in
// memory until they can be written, and refusals are only counted.
func (c *chain) commit(ctx context.Context, group []*entry) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	err := c.failure()
	if err == nil {
		err = c.commitAdmitted(ctx, group)
	}
	for _, e := range group {
		if e.err != nil {
			continue // admit has refused the entry
		}
		e.err = err
		if err != nil && !c.closed {
			c.keepOrCount(ctx, e)
		}
	}
	c.pruneBegun(ctx)
}

// commitAdmitted writes the entries of a group whose principals have quota left. It sets the error of the other
// entries.
func (c *chain) commitAdmitted(ctx context.Context, group []*entry) error {
	now := time.Now()
	c.items = c.items[:0]
	for _, e := range group {
		if e.err = c.admit(ctx, e, now); e.err == nil {
			c.usage.expect(e.accounts, maxLineLen(e))
			c.items = append(c.items, item{body: e.body.Bytes(), accounts: e.accounts, mustSync: mustSync(e.rec.Kind, &e.rec)})
		}
	}
	err := c.failure() // admit may have written records to make space
	if err == nil && len(c.items) > 0 {
		if err = c.write(c.items); err != nil {
			err = c.fail(ctx, err)
		}
	}
	clear(c.items)
	clear(c.usage.expected)
	return err
}

// failure returns the reason why the chain does not accept records, or nil if it accepts records.
func (c *chain) failure() error {
	if err := c.downErr.Load(); err != nil {
		return *err
	}
	return nil
}

// write appends all records, or none of them, with one write. The caller must hold writeMu.
func (c *chain) write(items []item) error {
	now := time.Now().UTC()
	begins := c.file == nil
	next := c.compose(now, items, begins || c.size == 0)
	if !begins && c.size > 0 && c.size+int64(len(c.buf)) > c.cfg.SegmentBytes && !c.fitsReserve(len(c.buf)) {
		begins = true
		next = c.compose(now, items, true)
	}
	if begins {
		if err := c.rotate(); err != nil {
			return fmt.Errorf("begin a segment: %w", err)
		}
	}
	if err := c.writeBuffer(items, next); err != nil {
		return err
	}
	first := c.pos.seq + 1
	c.pos = next
	c.size += int64(len(c.buf))
	c.reserve()
	for i := range items {
		c.usage.charge(items[i].accounts, c.sizes[i])
	}
	c.segmentBegun = c.segmentBegun || begins
	c.publish(now)
	// This is called after c.publish, so that a watcher that is added between the two calls finds the records in its
	// view of the segments.
	c.watchers.publish(c, first, c.buf)
	if cap(c.buf) > maxBuffer {
		c.buf = nil
	}
	return nil
}

// compose writes the lines of records to the buffer and returns the position of the last record. If newSegment is true,
// the first line also contains the members that only the first record of a segment has.
func (c *chain) compose(now time.Time, items []item, newSegment bool) link {
	next := c.pos
	c.buf, c.sizes = c.buf[:0], c.sizes[:0]
	var more []byte
	if newSegment {
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

// beginning returns the members that only the first record of a segment has. These are the key that signs heads, and
// the sequence number of the oldest stored record.
func (c *chain) beginning() []byte {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	oldest := c.pos.seq + 1
	if len(c.segments) > 0 {
		oldest = c.segments[0].first
	}
	return fmt.Appendf(nil, `"seal_key":"%s","oldest":%d,`, c.sealKey, oldest)
}

// pruneBegun applies the retention if a new segment was started after the retention was last applied. The caller must
// hold writeMu.
func (c *chain) pruneBegun(ctx context.Context) {
	if c.segmentBegun && c.failure() == nil {
		c.prune(ctx, time.Now())
		c.segmentBegun = false
	}
}

// writeBuffer writes the buffer, which contains the given records. next is the position of the last record. It syncs
// the file if Sync is [SyncAlways], or if one of the records must survive a power failure.
func (c *chain) writeBuffer(items []item, next link) error {
	if _, err := c.file.Write(c.buf); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	if c.cfg.Sync == SyncAlways || slices.ContainsFunc(items, func(one item) bool { return one.mustSync }) {
		return c.syncTo(next)
	}
	return nil
}

// publish makes the written records visible to readers.
func (c *chain) publish(now time.Time) {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	active := &c.segments[len(c.segments)-1]
	active.size, active.last, active.hash, active.newest = c.size, c.pos.seq, c.pos.hash, now
}

// end returns the end of the chain in the form that a signed head contains.
func (c *chain) end() ChainHead {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	if len(c.segments) == 0 {
		return ChainHead{Hash: new(link).hexHash()}
	}
	newest := c.segments[len(c.segments)-1]
	at := link{seq: newest.last, hash: newest.hash}
	return ChainHead{Count: at.seq, Hash: at.hexHash()}
}

// rotate closes the active segment, if there is one, and begins a new segment.
func (c *chain) rotate() error {
	if c.file != nil {
		c.releaseReserve()
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
	c.listMu.Lock()
	defer c.listMu.Unlock()
	if n := len(c.segments); n > 0 && c.segments[n-1].size == 0 {
		c.segments = c.segments[:n-1]
	} else if n > 0 {
		c.segments[n-1].tally = c.usage.endSegment(c.cfg.SegmentBytes)
	}
	c.segments = append(c.segments, next)
	return nil
}

// create opens a new segment. If a failed attempt has left an empty file with the same name, create replaces this file.
// It returns an error if there is any other file with this name.
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

// view returns a copy of the current list of segments, oldest first. Their sizes exclude records that are written
// later.
func (c *chain) view() []segment {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	return slices.Clone(c.segments)
}

// close closes the chain. Later records are refused.
func (c *chain) close() error {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	var errs []error
	if left := len(c.backlog.items); left > 0 {
		errs = append(errs, fmt.Errorf("%d records of %s are lost: %w", left, c.name, c.failure()))
	}
	if lost := c.backlog.lost; lost > 0 {
		errs = append(errs, fmt.Errorf("%d %s are lost: %w", lost, c.lostKind(), c.failure()))
	}
	c.downErr.Store(new(ErrClosed))
	if c.file != nil {
		c.releaseReserve()
		errs = append(errs, c.file.Close())
	}
	return errors.Join(errs...)
}
