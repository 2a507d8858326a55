package policy

import (
	"context"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// identityScan holds the state of repeated scans of the configuration's tokens and groups.
type identityScan struct {
	last Identities
	// problem is the error that was logged last.
	problem string
}

// rescan reads the tokens and groups of the configuration. It makes them valid if they have changed and two consecutive
// scans have read the same tokens and groups. Otherwise a partly written file could revoke tokens. If the tokens and
// groups can't be read, the old ones stay valid. rescan reports whether the old ones were replaced.
func (s *Service) rescan(ctx context.Context, scan *identityScan) bool {
	if s.deps.Reload == nil {
		return false
	}
	now, err := s.deps.Reload()
	before := s.tokens.identities()
	isSame, isNew := err == nil && now.equal(scan.last), !now.equal(before)
	if scan.last = now; err == nil && (!isSame || !isNew) {
		if !isNew {
			scan.problem = ""
		}
		return false
	}
	if err == nil {
		err = s.tokens.configure(now)
	}
	if err != nil {
		if err.Error() != scan.problem {
			s.deps.Log.ErrorContext(ctx, "the tokens and groups of the configuration can't be read again; the old ones stay valid", "error", err)
		}
		scan.problem = err.Error()
		return false
	}
	scan.problem = ""
	s.approvers.Store(now.approvers(s.cfg.OwnerMayApprove))
	s.deps.Log.InfoContext(ctx, "the tokens or groups of the configuration have changed", "tokens", len(now.Tokens), "groups", len(now.Groups))
	return true
}

// watchIdentities calls rescan at each tick until ctx is cancelled.
func (s *Service) watchIdentities(ctx context.Context, tick <-chan time.Time) error {
	var identities identityScan
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
			s.rescan(ctx, &identities)
		}
	}
}

func (s *Service) people() *engine.Approvers { return s.approvers.Load() }
