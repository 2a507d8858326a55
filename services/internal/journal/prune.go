package journal

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// maxPruned is the maximum number of removed segments that one record names.
const maxPruned = 256

// prune removes the oldest segments until the chain is within the limits of its retention. It counts the active segment
// as if it were full. The caller must hold writeMu.
func (c *chain) prune(ctx context.Context, now time.Time) {
	for c.removeRecorded(ctx) == nil {
		pruned := c.expired(now)
		if len(pruned) == 0 || c.remove(ctx, pruned) != nil {
			return
		}
	}
}

// expired returns the oldest segments that must be removed to meet the retention, at most maxPruned. It never returns
// the newest segment that has records, because the next record contains the hash of this segment's last line.
func (c *chain) expired(now time.Time) (pruned []Pruned) {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	total := c.cfg.SegmentBytes
	for _, s := range c.segments[:max(0, len(c.segments)-1)] {
		total += s.size
	}
	for i, oldest := range c.removable() {
		if i == maxPruned {
			break
		}
		why := PrunedForSize
		if total <= c.retention.Bytes {
			why = PrunedForAge
			if now.Sub(oldest.newest) <= c.retention.Age {
				break
			}
		}
		pruned = append(pruned, oldest.toPruned(why))
		total -= oldest.size
	}
	return pruned
}

// removable returns the segments before the one that contains the newest record. The caller must hold listMu.
func (c *chain) removable() []segment {
	n := len(c.segments)
	if n > 0 && c.segments[n-1].size == 0 {
		n--
	}
	return c.segments[:max(0, n-1)]
}

func (s segment) toPruned(why PruneReason) Pruned {
	return Pruned{File: filepath.Base(s.path), First: s.first, Last: s.last, Hash: hex.EncodeToString(s.hash[:]), Bytes: s.size, Reason: why}
}

// remove writes a record that names the oldest segments, and then removes these segments. If a segment is missing
// without such a record, another program must have removed it. The caller must hold writeMu.
func (c *chain) remove(ctx context.Context, pruned []Pruned) error {
	body := c.encodeOwn(&Record{Kind: KindPruned, Pruned: pruned, Count: pruned[len(pruned)-1].Last - pruned[0].First + 1})
	if err := c.write([]item{{body: body}}); err != nil {
		return c.fail(ctx, err)
	}
	c.listMu.Lock()
	for i := range pruned {
		c.segments[i].removalRecorded = true
	}
	c.listMu.Unlock()
	return c.removeRecorded(ctx)
}

// removeRecorded removes the oldest segments for which a record of their removal was written. It stops at a segment
// whose file can't be removed. If it went on to remove later segments, the chain would have a gap, and the chain would
// be refused at the next start. The caller must hold writeMu.
func (c *chain) removeRecorded(ctx context.Context) error {
	for {
		oldest, ok := c.takeRecorded()
		if !ok {
			return nil
		}
		if err := removeSegment(oldest.path); err != nil {
			if !oldest.removalFailed {
				c.cfg.Log.WarnContext(ctx, "an old journal segment can't be removed; it and later segments stay until it can be removed", "chain", c.name, "segment", filepath.Base(oldest.path), "error", err)
			}
			oldest.removalFailed = true
			c.listMu.Lock()
			c.segments = slices.Insert(c.segments, 0, oldest)
			c.listMu.Unlock()
			return err
		}
		c.usage.drop(oldest.tally)
	}
}

// takeRecorded removes the oldest segment from the list of segments if a record of its removal was written. The caller
// removes the segment's file after that. Therefore a concurrent reader that has a copy of the list either finds the
// file of a segment or treats the segment as empty.
func (c *chain) takeRecorded() (segment, bool) {
	c.listMu.Lock()
	defer c.listMu.Unlock()
	if len(c.segments) == 0 || !c.segments[0].removalRecorded {
		return segment{}, false
	}
	oldest := c.segments[0]
	c.segments = c.segments[1:]
	return oldest, true
}

// encodeOwn returns the body of a record that the journal itself writes.
func (c *chain) encodeOwn(rec *Record) []byte {
	rec.Build = c.cfg.Build
	var body bytes.Buffer
	if err := encodeBody(&body, rec); err != nil {
		panic("journal: a record of short texts and times can't be encoded: " + err.Error())
	}
	return body.Bytes()
}

// removeSegment removes a segment and the files that contain incomplete lines from its end.
func removeSegment(path string) error {
	dir, name := filepath.Split(path)
	cuts, err := fs.Glob(os.DirFS(dir), name+"*"+incompleteExtension) // filepath.Glob would interpret the directory's name as a pattern
	if err != nil {
		return err
	}
	for _, name := range append(cuts, name) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (c *chain) applyRetention(now time.Time) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if !c.closed && c.failure() == nil {
		c.prune(context.Background(), now)
	}
}
