package policy

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// peopleScan is the state between two scans of the tokens in the configuration.
type peopleScan struct {
	last People
	// problem is the error that was logged last.
	problem string
}

// rescan reads the tokens in the configuration. If their holders have changed, and two consecutive scans have read the
// same holders, the service starts to use the new holders. Two scans are needed because a file may be partly written.
// If the tokens can't be read, the old holders stay in use. rescan reports whether it replaced the holders.
func (s *Service) rescan(ctx context.Context, scan *peopleScan) bool {
	if s.deps.Reload == nil {
		return false
	}
	now, err := s.deps.Reload()
	if err != nil {
		if err.Error() != scan.problem {
			s.deps.Log.ErrorContext(ctx, "the tokens of the configuration can't be read again; the approvers that were read last stay in use", "error", err)
		}
		scan.problem = err.Error()
		return false
	}
	isSame, isNew := now.equal(scan.last), !now.equal(*s.holders.Load())
	scan.last, scan.problem = now, ""
	if !isSame || !isNew {
		return false
	}
	s.holders.Store(&now)
	s.approvers.Store(now.approvers(s.cfg.OwnerMayApprove))
	return true
}

// watchPeople calls rescan at each tick until ctx is cancelled.
func (s *Service) watchPeople(ctx context.Context, tick <-chan time.Time) error {
	var people peopleScan
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			s.rescan(ctx, &people)
		}
	}
}

func (s *Service) people() *engine.Approvers { return s.approvers.Load() }
