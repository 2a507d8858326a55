package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
)

// secures reports whether a record must survive a loss of power independent of the configuration. An approved call
// may be sent once, and a start gives a claim without an intent back: so the intent must be on the device when the
// call may be under way. One sync is enough, because it includes the claim before the intent. If the claim is
// missing, or the records after the intent, the outcome of the call is unknown and it is never sent again.
func secures(kind Kind, rec *Record) bool { return kind == KindIntent && rec.ApprovalID != "" }

// secure syncs everything that the chain has written, including the group that ends at next. The caller must hold
// writing.
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

// secureOlder does nothing if the active segment was synced before. Otherwise it syncs the names of files, and the
// earlier segments that were not synced to their ends, including those of an earlier process.
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

// syncSegment syncs a segment that has ended. A segment that does not exist is ignored: [Journal.Check] reports it.
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
