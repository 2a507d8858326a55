package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

const (
	// retryEvery is the interval at which a chain that can't be written is tried again.
	retryEvery = 250 * time.Millisecond
	// maxBacklog is the maximum number of bytes of records that wait for that.
	maxBacklog = 32 << 20
)

var (
	// ErrUnavailable says that the journal can't be written now. The journal recovers without help.
	ErrUnavailable = errors.New("the journal takes no records")
	// ErrClosed says that the journal was closed.
	ErrClosed = errors.New("the journal is closed")
)

// backlog contains the records that must be written before a chain accepts records again.
type backlog struct {
	items []item
	bytes int
	// lost is how many outcomes did not fit, or how many refusals were not written.
	lost int64
}

// fail handles a failed write and returns the error for callers. The caller must hold writing.
func (c *chain) fail(ctx context.Context, cause error) error {
	err := fmt.Errorf("%w: %w", ErrUnavailable, cause)
	if mendErr := c.mend(); mendErr != nil {
		err = fmt.Errorf("%w; %w", err, mendErr)
	}
	c.note(&Record{Message: "records could not be written: " + withoutPath(cause), Since: time.Now()})
	c.down.Store(&err)
	c.cfg.Log.ErrorContext(ctx, "journal takes no records", "chain", c.name, "error", err)
	c.sick()
	return err
}

// withoutPath returns the text of an error without the path of the journal's files.
func withoutPath(err error) string {
	if in, ok := errors.AsType[*fs.PathError](err); ok {
		return in.Op + ": " + in.Err.Error()
	}
	return err.Error()
}

// mend truncates the file to the last good record. After a failed sync it also ends the segment: the system may have
// dropped pages that it still shows to readers.
func (c *chain) mend() error {
	if c.file == nil {
		return nil
	}
	if err := c.file.Truncate(c.size); err != nil {
		return fmt.Errorf("cut off what was half written: %w", err)
	}
	c.reserved = c.size // truncating may have released the reserved space
	if !c.doubtful {
		return nil
	}
	// Without a sync the removed part could come back after a loss of power.
	if err := c.file.Sync(); err != nil {
		return fmt.Errorf("sync the cut: %w", err)
	}
	c.doubtful = false
	old := c.file
	c.file = nil
	if err := old.Close(); err != nil {
		return fmt.Errorf("end the segment: %w", err)
	}
	return nil
}

// note inserts a recovery record at the beginning of the backlog.
func (c *chain) note(rec *Record) {
	rec.Kind = KindRecovery
	body := c.recordOf(rec)
	c.backlog.items = slices.Insert(c.backlog.items, 0, item{body: body})
	c.backlog.bytes += len(body)
}

// miss handles a record that can't be written: an outcome is stored while the backlog has capacity; refusals, which
// callers can cause without limit, are only counted.
func (c *chain) miss(ctx context.Context, e *entry) {
	switch {
	case e.rec.Kind == KindRefusal:
		c.backlog.lost += max(e.rec.Count, 1)
	case e.rec.Kind != KindOutcome: // the call of such an intent is not sent
	case c.backlog.bytes+e.body.Len() > maxBacklog:
		c.backlog.lost++
		c.cfg.Log.ErrorContext(ctx, "outcome is lost", "chain", c.name, "decision_id", e.rec.DecisionID)
	default:
		c.backlog.items = append(c.backlog.items, item{body: bytes.Clone(e.body.Bytes()), who: slices.Clone(e.who)})
		c.backlog.bytes += e.body.Len()
	}
}

// losing names what the chain loses.
func (c *chain) losing() string {
	if c.name == refusalsName {
		return "refusals"
	}
	return "outcomes"
}

// resume tries to write the backlog, and accepts records again if that works. It reports whether the chain accepts
// records or is closed.
func (c *chain) resume() bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.closed || c.failure() == nil {
		return true
	}
	if err := c.mend(); err != nil {
		return false
	}
	if err := c.catchUp(); err != nil {
		// If truncating fails too, the next attempt does it.
		_ = c.mend()
		return false
	}
	c.down.Store(nil)
	c.cfg.Log.InfoContext(context.Background(), "journal takes records again", "chain", c.name)
	c.pruneBegun(context.Background())
	return true
}

// catchUp writes the backlog, and then the number of records that were lost.
func (c *chain) catchUp() error {
	for len(c.backlog.items) > 0 {
		group := c.backlog.items[:min(maxGroup, len(c.backlog.items))]
		if err := c.write(group); err != nil {
			return err
		}
		for _, one := range group {
			c.backlog.bytes -= len(one.body)
		}
		c.backlog.items = c.backlog.items[len(group):]
	}
	c.backlog.items = nil
	if c.backlog.lost == 0 {
		return nil
	}
	lost := c.recordOf(&Record{
		Kind: KindRecovery, Message: fmt.Sprintf("%d %s were lost while records could not be written", c.backlog.lost, c.losing()), Count: c.backlog.lost,
	})
	if err := c.write([]item{{body: lost}}); err != nil {
		return err
	}
	c.backlog.lost = 0
	return nil
}

// writeAll writes records of the journal's own and returns how many were written.
func (c *chain) writeAll(ctx context.Context, items []item) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	defer c.pruneBegun(ctx)
	written := 0
	for group := range slices.Chunk(items, maxGroup) {
		err := c.failure()
		if err == nil {
			if err = c.write(group); err != nil {
				err = c.fail(ctx, err)
			}
		}
		if err != nil {
			return written, err
		}
		written += len(group)
	}
	return written, nil
}
