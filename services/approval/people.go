package approval

import (
	"bytes"
	"context"
	"errors"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/approval/internal/view"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// Decide implements approvalv1.ApprovalServiceServer.
func (s *Service) Decide(ctx context.Context, req *approvalv1.DecideRequest) (*approvalv1.DecideResponse, error) {
	person := authn.CallerOf(ctx).Person
	var out *approvalv1.Approval
	err := s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, person.GetTenant(), req.GetApprovalId())
		if err != nil {
			return err
		}
		ballot := lifecycle.Ballot{
			Voter: person, Verdict: req.GetVerdict(), Comment: req.GetComment(), Channel: approvalv1.VoteChannel_VOTE_CHANNEL_TOKEN,
			Shown: req.GetViewDigest(), OwnersMay: s.cfg.OwnerMayApprove,
		}
		if req.GetVerdict() == approvalv1.Verdict_VERDICT_APPROVE && r.Approval.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
			drawn, err := draw(ctx, tx, r)
			if err != nil {
				return err
			}
			ballot.View = drawn.Digest()
		}
		if err := r.Vote(ballot, tx.Now); err != nil {
			return err
		}
		out = r.Approval
		if len(r.Moves) == 0 {
			return nil
		}
		return tx.Save(ctx, r)
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return &approvalv1.DecideResponse{Approval: out}, nil
}

// draw draws the view of an approval as it is in this transaction.
func draw(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (*view.View, error) {
	previous, err := tx.Previous(ctx, r)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	return view.Draw(r, view.Facts{Previous: previous})
}

// visible tells whether a caller sees an approval of its tenant: an agent sees
// what it asked for itself, everybody else all.
func visible(caller *authn.Caller, r *lifecycle.Record) bool {
	p := caller.Principal
	if caller.Person != nil || p.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT {
		return true
	}
	return bytes.Equal(store.Asker(p), store.Asker(r.Approval.GetRequester()))
}

// actor is whom the history names.
func actor(caller *authn.Caller) string {
	if caller.Person != nil {
		return caller.Person.GetSubject()
	}
	return caller.Principal.GetSubject()
}

// standing tells whether voters may still decide. An error means that nobody
// knows.
type standing struct {
	tokens *authn.Tokens
	record *lifecycle.Record
	err    error
}

// of returns why a vote counts no longer; empty where it does.
func (s *standing) of(vote *approvalv1.Vote) string {
	people, err := s.tokens.Of(s.record.Approval.GetRequester().GetTenant(), vote.GetSubject())
	if err != nil {
		s.err = err
		return ""
	}
	decides := false
	for _, p := range people {
		if p.GetRole() != authv1.TokenRole_TOKEN_ROLE_OPERATOR && p.GetRole() != authv1.TokenRole_TOKEN_ROLE_APPROVER {
			continue
		}
		decides = true
		if s.record.Names(p.GetGroups()) {
			return ""
		}
	}
	if decides {
		return "the voter has left the groups that decide"
	}
	return "the voter may decide on nothing any more"
}
