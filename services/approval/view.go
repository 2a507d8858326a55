package approval

import (
	"context"
	"errors"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/approval/internal/view"
)

// maxDraws is the maximum number of times that the view is rendered for one vote. The view is rendered again if the
// approval changes before the vote is stored.
const maxDraws = 4

// drawnView is a view and the state of the approval from which it was rendered.
type drawnView struct {
	*view.View

	// version is the version of the approval. unsettled is the result of [store.Tx.Unsettled].
	version   int64
	unsettled string
}

// drawView renders the view of the approval that read returns. It returns nil if read returns nil. Rendering the view
// of a large call is slow. Therefore, drawView renders outside the transaction. The processor time counts as the
// requester's share in [Service.drawTurns], so that other requesters don't wait.
func (s *Service) drawView(ctx context.Context, asker *identityv1.Principal, read func(context.Context, *store.Tx) (*lifecycle.Record, error)) (*drawnView, error) {
	end, err := s.drawTurns.Acquire(ctx, string(store.PrincipalDigest(asker)))
	if err != nil {
		return nil, err
	}
	defer end()
	var r *lifecycle.Record
	var facts view.Facts
	err = s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if r, err = read(ctx, tx); err != nil || r == nil {
			return err
		}
		if facts.Previous, err = tx.Previous(ctx, r); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		facts.Unsettled, err = tx.Unsettled(ctx, r)
		return err
	})
	if err != nil || r == nil {
		return nil, err
	}
	drawn, err := view.Draw(r, facts)
	if err != nil {
		return nil, err
	}
	return &drawnView{View: drawn, version: r.Approval.GetVersion(), unsettled: facts.Unsettled}, nil
}

// viewForVote renders the view whose digest a vote to approve must contain. It returns nil if the vote is a denial, or
// if the approval is not pending.
func (s *Service) viewForVote(ctx context.Context, tenant, id string, verdict approvalv1.Verdict) (*drawnView, error) {
	if verdict != approvalv1.Verdict_VERDICT_APPROVE {
		return nil, nil //nolint:nilnil // a denial needs no view
	}
	var head *lifecycle.Record
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		head, err = tx.GetHead(ctx, tenant, id)
		return err
	})
	if err != nil || head.Approval.GetState() != pending {
		return nil, err
	}
	return s.drawView(ctx, head.Approval.GetRequester(), func(ctx context.Context, tx *store.Tx) (*lifecycle.Record, error) {
		return tx.Get(ctx, tenant, id)
	})
}

// isCurrent reports whether the view of r still has the same digest. It returns false for a nil receiver.
func (s *drawnView) isCurrent(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (bool, error) {
	if s == nil || s.version != r.Approval.GetVersion() {
		return false, nil
	}
	unsettled, err := tx.Unsettled(ctx, r)
	return unsettled == s.unsettled, err
}

// viewForNotice renders the view for a notice that asks approvers to vote. asked is a copy of the approval at the time
// when the notice was written. viewForNotice returns nil if the approval no longer waits for the same decision.
func (s *Service) viewForNotice(ctx context.Context, asked *approvalv1.Approval) (*approvalv1.View, error) {
	drawn, err := s.drawView(ctx, asked.GetRequester(), func(ctx context.Context, tx *store.Tx) (*lifecycle.Record, error) {
		r, err := tx.GetAnyTenant(ctx, asked.GetId())
		if err != nil || r.Approval.GetState() != pending || !r.Approval.GetDecideBefore().AsTime().Equal(asked.GetDecideBefore().AsTime()) {
			return nil, err
		}
		return r, nil
	})
	if err != nil || drawn == nil {
		return nil, err
	}
	return drawn.Part(0, "")
}
