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
	// retryEvery is how often a chain that can't be written is tried again.
	retryEvery = 250 * time.Millisecond
	// maxBacklog is how many bytes of records may wait for that.
	maxBacklog = 32 << 20
)

var (
	// ErrUnavailable says that the journal can't be written now. It goes on by itself.
	ErrUnavailable = errors.New("the journal takes no records")
	// ErrClosed says that the journal was closed.
	ErrClosed = errors.New("the journal is closed")
)

// backlog is what has to be written before a chain takes records again.
type backlog struct {
	items []item
	bytes int
	// lost is how many outcomes found no room, or how many refusals were not written.
	lost int64
}

// fail notes that a write went wrong and returns what callers are told. It needs
// writing.
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

// withoutPath says what went wrong, and not where the machine keeps the journal.
func withoutPath(err error) string {
	if in, ok := errors.AsType[*fs.PathError](err); ok {
		return in.Op + ": " + in.Err.Error()
	}
	return err.Error()
}

// mend brings the files to where the last good record ends. After a failed sync the
// segment is left alone from then on: the system may have dropped pages that it
// still shows to readers.
func (c *chain) mend() error {
	if c.file == nil {
		return nil
	}
	if err := c.file.Truncate(c.size); err != nil {
		return fmt.Errorf("cut off what was half written: %w", err)
	}
	c.reserved = c.size // the cut may have let go of what was behind it
	if !c.doubtful {
		return nil
	}
	// Else the cut part could come back after a loss of power.
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

// note puts a recovery record at the head of what waits.
func (c *chain) note(rec *Record) {
	rec.Kind = KindRecovery
	body := c.recordOf(rec)
	c.backlog.items = slices.Insert(c.backlog.items, 0, item{body: body})
	c.backlog.bytes += len(body)
}

// miss does what can be done about a record that can't be written: an outcome is
// kept as long as there is room, and of refusals, which anybody can cause without
// end, only the number.
func (c *chain) miss(ctx context.Context, e *entry) {
	switch {
	case e.rec.Kind == KindRefusal:
		c.backlog.lost += max(e.rec.Count, 1)
	case e.rec.Kind != KindOutcome: // an intent's call is not sent
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

// resume tries to write what waits, and takes records again if that works. It says
// whether the chain is well.
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
		// A cut that fails too is made by the next attempt.
		_ = c.mend()
		return false
	}
	c.down.Store(nil)
	c.cfg.Log.InfoContext(context.Background(), "journal takes records again", "chain", c.name)
	c.pruneBegun(context.Background())
	return true
}

// catchUp writes what waits, and last how much was lost until now.
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

// writeAll writes records that nobody waits for, and returns how many were written.
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
