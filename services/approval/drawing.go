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

// maxDraws is how often a view is drawn again for one vote because the approval has
// moved meanwhile.
const maxDraws = 4

// sight is a view, and what it was drawn of.
type sight struct {
	*view.View

	version   int64
	unsettled string
}

// draw draws the view of the approval that read returns, for which there is none where
// that is nil. A view of a large call takes long: so it is drawn after the transaction,
// in a turn of who asked for the call, and nobody else waits for it.
func (s *Service) draw(ctx context.Context, asker *identityv1.Principal, read func(context.Context, *store.Tx) (*lifecycle.Record, error)) (*sight, error) {
	end, err := s.drawing.Take(ctx, string(store.Who(asker)))
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
	return &sight{View: drawn, version: r.Approval.GetVersion(), unsettled: facts.Unsettled}, nil
}

// sight draws what a person is shown who votes like this; nil where that is not
// compared.
func (s *Service) sight(ctx context.Context, tenant, id string, verdict approvalv1.Verdict) (*sight, error) {
	if verdict != approvalv1.Verdict_VERDICT_APPROVE {
		return nil, nil //nolint:nilnil // a denial needs no view
	}
	var head *lifecycle.Record
	err := s.store.Look(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		head, err = tx.Head(ctx, tenant, id)
		return err
	})
	if err != nil || head.Approval.GetState() != pending {
		return nil, err
	}
	return s.draw(ctx, head.Approval.GetRequester(), func(ctx context.Context, tx *store.Tx) (*lifecycle.Record, error) {
		return tx.Get(ctx, tenant, id)
	})
}

// still reports whether the view of a record would be drawn the same by now, as far as
// its digest goes.
func (s *sight) still(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (bool, error) {
	if s == nil || s.version != r.Approval.GetVersion() {
		return false, nil
	}
	unsettled, err := tx.Unsettled(ctx, r)
	return unsettled == s.unsettled, err
}

// noticed draws what a notice shows that asks people.
func (s *Service) noticed(ctx context.Context, asked *approvalv1.Approval) (*approvalv1.View, error) {
	drawn, err := s.draw(ctx, asked.GetRequester(), func(ctx context.Context, tx *store.Tx) (*lifecycle.Record, error) {
		r, err := tx.ByClaimant(ctx, asked.GetId())
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
