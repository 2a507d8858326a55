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
	// retryInterval is the interval between attempts to write to a chain after a failed write.
	retryInterval = 250 * time.Millisecond
	// maxBacklog is the maximum total size in bytes of the records that wait for the next attempt to write them.
	maxBacklog = 32 << 20
)

var (
	// ErrUnavailable means that the journal currently can't be written. The journal recovers automatically.
	ErrUnavailable = errors.New("the journal can't write records")
	// ErrClosed means that the journal has been closed.
	ErrClosed = errors.New("the journal is closed")
)

// backlog contains the records that must be written before a chain accepts records again.
type backlog struct {
	items []item
	bytes int
	// lost is the number of outcomes that did not fit into the backlog, or the number of refusals that were not
	// written.
	lost int64
}

// fail makes the chain refuse records after a failed write, until the chain can be written again. It returns the error
// for the callers. The caller must hold writeMu.
func (c *chain) fail(ctx context.Context, cause error) error {
	err := fmt.Errorf("%w: %w", ErrUnavailable, cause)
	if mendErr := c.repair(); mendErr != nil {
		err = fmt.Errorf("%w; %w", err, mendErr)
	}
	c.queueRecovery(&Record{Message: "records could not be written: " + withoutPath(cause), Since: time.Now()})
	c.downErr.Store(&err)
	c.cfg.Log.ErrorContext(ctx, "journal can't write records", "chain", c.name, "error", err)
	c.onFailure()
	return err
}

// withoutPath returns the message of an error without the path of the journal file.
func withoutPath(err error) string {
	if in, ok := errors.AsType[*fs.PathError](err); ok {
		return in.Op + ": " + in.Err.Error()
	}
	return err.Error()
}

// repair truncates the file to the end of the last good record. After a failed sync it also closes the segment, because
// the system might have discarded pages that readers can still see.
func (c *chain) repair() error {
	if c.file == nil {
		return nil
	}
	if err := c.file.Truncate(c.size); err != nil {
		return fmt.Errorf("truncate an incomplete record: %w", err)
	}
	c.reserved = c.size // Truncate might have released the reserved space
	if !c.syncFailed {
		return nil
	}
	// Without a sync, the truncated bytes could reappear in the file after a power failure.
	if err := c.file.Sync(); err != nil {
		return fmt.Errorf("sync the truncated segment: %w", err)
	}
	c.syncFailed = false
	old := c.file
	c.file = nil
	if err := old.Close(); err != nil {
		return fmt.Errorf("end the segment: %w", err)
	}
	return nil
}

func (c *chain) queueRecovery(rec *Record) {
	rec.Kind = KindRecovery
	body := c.encodeOwn(rec)
	c.backlog.items = slices.Insert(c.backlog.items, 0, item{body: body})
	c.backlog.bytes += len(body)
}

// keepOrCount adds an outcome that can't be written to the backlog, as long as there is space. It only counts a refusal
// that can't be written, because callers can cause any number of refusals.
func (c *chain) keepOrCount(ctx context.Context, e *entry) {
	switch {
	case e.rec.Kind == KindRefusal:
		c.backlog.lost += max(e.rec.Count, 1)
	case e.rec.Kind != KindOutcome: // if an intent is not written, its call is not sent
	case c.backlog.bytes+e.body.Len() > maxBacklog:
		c.backlog.lost++
		c.cfg.Log.ErrorContext(ctx, "outcome is lost", "chain", c.name, "decision_id", e.rec.DecisionID)
	default:
		c.backlog.items = append(c.backlog.items, item{body: bytes.Clone(e.body.Bytes()), accounts: slices.Clone(e.accounts)})
		c.backlog.bytes += e.body.Len()
	}
}

// lostKind returns the name of the kind of records that are lost while the chain can't be written.
func (c *chain) lostKind() string {
	if c.name == refusalsName {
		return "refusals"
	}
	return "outcomes"
}

// resume tries to write the backlog. If that succeeds, the chain accepts records again. resume reports whether the
// chain accepts records or is closed.
func (c *chain) resume() bool {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
	if c.closed || c.failure() == nil {
		return true
	}
	if err := c.repair(); err != nil {
		return false
	}
	if err := c.writeBacklog(); err != nil {
		// If this fails, the next attempt truncates the file.
		_ = c.repair()
		return false
	}
	c.downErr.Store(nil)
	c.cfg.Log.InfoContext(context.Background(), "journal can write records again", "chain", c.name)
	c.pruneBegun(context.Background())
	return true
}

// writeBacklog writes the backlog and then a record with the number of lost records.
func (c *chain) writeBacklog() error {
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
	lost := c.encodeOwn(&Record{
		Kind: KindRecovery, Message: fmt.Sprintf("%d %s were lost while records could not be written", c.backlog.lost, c.lostKind()), Count: c.backlog.lost,
	})
	if err := c.write([]item{{body: lost}}); err != nil {
		return err
	}
	c.backlog.lost = 0
	return nil
}

// writeAll writes records that the journal itself creates. It returns the number of records that it wrote.
func (c *chain) writeAll(ctx context.Context, items []item) (int, error) {
	c.writeMu.Lock()
	defer c.writeMu.Unlock()
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
