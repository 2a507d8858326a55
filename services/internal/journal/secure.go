package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// secures reports whether a record must survive a loss of power whatever the
// configuration says. An approved call may go out once, and a start gives a claim back
// that has no intent: so there must be none where the call may be on its way. One sync
// is enough, for the claim stands before the intent; without the claim, and without
// what comes after the intent, the call is one of unknown outcome and never sent again.
func secures(kind Kind, rec *Record) bool { return kind == KindIntent && rec.ApprovalID != "" }

// secure brings all that the chain has written to the device, and with it the group
// that ends at next. It needs writing.
func (c *chain) secure(next link) error {
	err := c.secureOlder()
	if err == nil {
		err = c.file.Sync()
	}
	if err != nil {
		c.doubtful = true
		return fmt.Errorf("sync records: %w", err)
	}
	c.secured = next.seq
	return nil
}

// secureOlder syncs, where the active segment is to be synced for the first time, its
// name and the segments before it that were not synced to their ends, be it by an
// earlier process.
func (c *chain) secureOlder() error {
	segments := c.view()
	older := segments[:len(segments)-1]
	if c.secured >= segments[len(older)].first {
		return nil
	}
	for _, old := range slices.Backward(older) {
		if old.last <= c.secured {
			break
		}
		if err := c.syncSegment(old.path); err != nil {
			return err
		}
	}
	return syncDir(c.cfg.Dir)
}

// syncSegment syncs a segment that has ended. One that somebody has removed is none of
// it: Check says so.
func (c *chain) syncSegment(path string) error {
	f, err := c.cfg.open(path, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
