package approval

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/approval/internal/store"
)

// pendingRetry is the pause after a failed read of the store.
const pendingRetry = time.Second

// Pending describes the pending approvals of all tenants.
type Pending struct {
	// Total is the number of pending approvals. New is the number of pending approvals that were opened since the
	// previous report.
	Total, New int
	// Newest is the id of the pending approval that was opened last.
	Newest string
}

// WatchPending calls report when there are pending approvals that it has not reported yet. It returns when ctx is done.
// The first report includes all pending approvals. Approvals that are opened while report runs are included in the next
// report. On PostgreSQL, WatchPending reports approvals that other processes open only after this process has changed
// an approval.
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
