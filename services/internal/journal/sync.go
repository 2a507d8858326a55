package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

// mustSync reports whether a record must survive a power failure even with [SyncNever]. This applies only to the intent
// of an approved call.
//
// An approved call may be sent only once, and the next start of the gateway releases a claim that has no intent.
// Therefore the intent must be on the device before the call is sent. One sync is enough, because it includes the claim
// before the intent. If the records after the intent are lost, the outcome of the call is unknown, and the call is not
// sent again.
func mustSync(kind Kind, rec *Record) bool { return kind == KindIntent && rec.ApprovalID != "" }

// syncTo syncs all records that the chain has written. next is the position of the last of these records. The caller
// must hold writeMu.
func (c *chain) syncTo(next link) error {
	err := c.syncOlder()
	if err == nil {
		err = c.file.Sync()
	}
	if err != nil {
		c.syncFailed = true
		return fmt.Errorf("sync records: %w", err)
	}
	c.syncedSeq = next.seq
	return nil
}

// syncOlder syncs earlier segments that were not completely synced, including segments of an earlier process. It also
// syncs the directory, so that the names of the files are stored. It does nothing if the active segment has already
// been synced.
func (c *chain) syncOlder() error {
	segments := c.view()
	older := segments[:len(segments)-1]
	if c.syncedSeq >= segments[len(older)].first {
		return nil
	}
	for _, old := range slices.Backward(older) {
		if old.last <= c.syncedSeq {
			break
		}
		if err := c.syncSegment(old.path); err != nil {
			return err
		}
	}
	return datadir.SyncDir(c.cfg.Dir)
}

// syncSegment syncs a segment that is no longer active. It ignores a segment that does not exist, because
// [Journal.Check] reports it.
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
