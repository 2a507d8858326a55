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
	bodies [][]byte
	bytes  int
	// lost is how many outcomes found no room.
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
	rec.Kind, rec.Build = KindRecovery, c.cfg.Build
	var body bytes.Buffer
	if err := encodeBody(&body, rec); err == nil { // can't fail: it holds texts and times only
		c.backlog.bodies = slices.Insert(c.backlog.bodies, 0, body.Bytes())
		c.backlog.bytes += body.Len()
	}
}

// keep holds an outcome until it can be written.
func (c *chain) keep(ctx context.Context, e *entry) {
	if c.backlog.bytes+e.body.Len() > maxBacklog {
		c.backlog.lost++
		c.cfg.Log.ErrorContext(ctx, "outcome is lost", "chain", c.name, "decision_id", e.rec.DecisionID)
		return
	}
	c.backlog.bodies = append(c.backlog.bodies, bytes.Clone(e.body.Bytes()))
	c.backlog.bytes += e.body.Len()
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
	if c.backlog.lost > 0 {
		c.note(&Record{Message: "outcomes were lost: they found no room in memory", Count: c.backlog.lost})
		c.backlog.lost = 0
	}
	for len(c.backlog.bodies) > 0 {
		group := c.backlog.bodies[:min(maxGroup, len(c.backlog.bodies))]
		if err := c.write(group); err != nil {
			// A cut that fails too is made by the next attempt.
			_ = c.mend()
			return false
		}
		for _, body := range group {
			c.backlog.bytes -= len(body)
		}
		c.backlog.bodies = c.backlog.bodies[len(group):]
	}
	c.backlog.bodies = nil
	c.down.Store(nil)
	c.cfg.Log.InfoContext(context.Background(), "journal takes records again", "chain", c.name)
	return true
}

// writeAll writes records that nobody waits for, and returns how many were written.
func (c *chain) writeAll(ctx context.Context, bodies [][]byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	written := 0
	for group := range slices.Chunk(bodies, maxGroup) {
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
