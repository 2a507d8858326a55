package approval

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// pendingRetry is the pause after a failed read of the store, before the store is read again.
const pendingRetry = time.Second

// Pending describes the pending approvals of all tenants.
type Pending struct {
	// Total is the number of pending approvals. New is the number of pending approvals that were opened since the
	// previous report.
	Total, New int
	// Newest is the id of the pending approval that was opened last.
	Newest string
}

// WatchPending calls report whenever there are pending approvals that it has not reported yet. It returns when ctx is
// done. The first report includes the approvals that are already pending. If more approvals are opened before report
// returns, the next report includes all of them. On PostgreSQL, WatchPending notices approvals that other processes
// open only when this process changes an approval.
func (s *Service) WatchPending(ctx context.Context, report func(Pending)) {
	last := int64(0) // the number of the newest transition that opened a reported approval
	for {
		moved := s.store.Moved()
		var now store.PendingApprovals
		err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			now, err = tx.PendingApprovals(ctx, last)
			return err
		})
		var retry <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.log.WarnContext(ctx, "the pending approvals were not read; they are read again in a second", "error", err)
			retry = time.After(pendingRetry)
		case now.New > 0:
			last = now.Opened
			report(Pending{Total: now.Total, New: now.New, Newest: now.Newest})
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		case <-retry:
		}
	}
}
