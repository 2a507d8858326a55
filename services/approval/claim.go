package approval

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
)

// defaultLease is the duration of a claim's lease if the request does not set a duration.
const defaultLease = time.Minute

// ClaimApproval implements approvalv1.ApprovalServiceServer.
func (s *Service) ClaimApproval(ctx context.Context, req *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	principal := authn.CallerOf(ctx).Principal
	statement, err := s.decisions.accept(decisionUse{
		signed: req.GetSignedDecision(), unsigned: req.GetDecision(), principal: principal, approval: req.GetApprovalId(), attempt: req.GetAttempt(),
		identity: req.GetServerIdentity(), definition: req.GetDefinitionDigest(),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	var resp *approvalv1.ClaimApprovalResponse
	err = s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, principal.GetTenant(), req.GetApprovalId())
		if err != nil {
			return err
		}
		if !bytes.Equal(store.RequesterDigest(principal), store.RequesterDigest(r.Approval.GetRequester())) {
			return store.ErrNotFound
		}
		if err := checkCallOf(statement, r); err != nil {
			return err
		}
		resp, err = s.claim(ctx, tx, r, req)
		return err
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

// checkCallOf returns an error if the statement is about a call other than the call of r.
func checkCallOf(s *policyv1.DecisionStatement, r *lifecycle.Record) error {
	if r.Ended() { // the params may have been deleted, and an ended approval can't be claimed
		return nil
	}
	if len(r.Alike) == 0 { // the record was written by an older version of the store, without this digest
		alike, err := binding.DigestIgnoringDefinition(r.Approval.GetRequester(), r.Call.GetCall())
		if err != nil {
			return err
		}
		r.Alike = alike[:]
	}
	return checkCallDigest(s, r.Alike)
}

func (s *Service) claim(ctx context.Context, tx *store.Tx, r *lifecycle.Record, req *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	grant, err := coveringGrant(ctx, tx, r)
	if err != nil {
		return nil, err
	}
	standing := &voteChecker{tokens: s.tokens, record: r, owners: s.agentOwners(authn.CallerOf(ctx).Principal)}
	refusal, err := r.Claim(lifecycle.ClaimRequest{
		Claim:    lifecycle.Claim{ID: req.GetClaimId(), Holder: req.GetHolder(), Lease: req.GetLimitLeaseId(), Attempt: req.GetAttempt()},
		Decision: req.GetDecision(), Times: s.defaultTimes(), Definition: req.GetDefinitionDigest(), ServerIdentity: req.GetServerIdentity(),
		Duration: leaseDuration(req.GetLease()), VoidReason: standing.voidReason, Grant: grant,
	}, tx.Now)
	if err := errors.Join(err, standing.err); err != nil {
		return nil, err
	}
	if r.RequestsDecision() {
		full, err := s.checkRequestRate(ctx, tx, authn.CallerOf(ctx).Principal)
		if err != nil {
			return nil, err
		}
		if full != nil { // the approval does not change, so the limits that were reserved for its attempt stay reserved
			return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: full}}, nil
		}
	}
	if len(r.Moves) > 0 {
		if err := saveWithGrant(ctx, tx, r, grant); err != nil {
			return nil, err
		}
	}
	if refusal != nil {
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: &approvalv1.Refusal{
			Code: refusal.Code, Message: refusal.Message, Approval: r.Approval, LeaseUnused: refusal.LeaseUnused,
		}}}, nil
	}
	return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{
		Bound: r.Call, Approval: r.Approval, LeaseExpires: r.Approval.GetClaim().GetLeaseExpires(), Votes: approvingVotes(r, grant),
	}}}, nil
}

// approvingVotes returns the valid votes to approve the call. If a grant covers the call of r, these are the votes for
// the approval that created the grant. Otherwise, they are the votes for r.
func approvingVotes(r, grant *lifecycle.Record) []*approvalv1.Vote {
	of := r
	if grant != nil && r.Approval.GetGrantedBy() != "" {
		of = grant
	}
	return slices.DeleteFunc(slices.Clone(of.Approval.GetVotes()), func(v *approvalv1.Vote) bool {
		return v.GetVoidReason() != "" || v.GetVerdict() != approvalv1.Verdict_VERDICT_APPROVE
	})
}

// coveringGrant returns the record of the approval whose grant covers the call of r, or nil if no grant covers it. A
// grant is an approval for several calls.
func coveringGrant(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (*lifecycle.Record, error) {
	switch by := r.Approval.GetGrantedBy(); {
	case by != "":
		return tx.Get(ctx, r.Approval.GetRequester().GetTenant(), by)
	case r.Approval.GetGrant() != nil:
		return r, nil
	default:
		return nil, nil //nolint:nilnil // no grant covers the call
	}
}

func saveWithGrant(ctx context.Context, tx *store.Tx, r, grant *lifecycle.Record) error {
	if grant != nil && grant != r {
		if err := tx.Save(ctx, grant); err != nil {
			return err
		}
	}
	return tx.Save(ctx, r)
}

// changeClaimed applies a change that the holder of a claim requests. It saves the approval, and also the record whose
// grant covers the call if there is one.
func (s *Service) changeClaimed(ctx context.Context, id string, change func(tx *store.Tx, r, grant *lifecycle.Record) error) (*approvalv1.Approval, error) {
	var out *approvalv1.Approval
	err := s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.GetAnyTenant(ctx, id)
		if err != nil {
			return err
		}
		grant, err := coveringGrant(ctx, tx, r)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		if err := change(tx, r, grant); err != nil {
			return err
		}
		out = r.Approval
		if len(r.Moves) == 0 {
			return tx.UpdateClaim(ctx, r)
		}
		return saveWithGrant(ctx, tx, r, grant)
	})
	return out, toStatus(err)
}

// RenewClaim implements approvalv1.ApprovalServiceServer.
func (s *Service) RenewClaim(ctx context.Context, req *approvalv1.RenewClaimRequest) (*approvalv1.RenewClaimResponse, error) {
	a, err := s.changeClaimed(ctx, req.GetApprovalId(), func(tx *store.Tx, r, _ *lifecycle.Record) error {
		return r.Renew(req.GetClaimId(), req.GetHolder(), leaseDuration(req.GetLease()), tx.Now)
	})
	if err != nil {
		return nil, err
	}
	return &approvalv1.RenewClaimResponse{LeaseExpires: a.GetClaim().GetLeaseExpires()}, nil
}

// ReleaseClaim implements approvalv1.ApprovalServiceServer.
func (s *Service) ReleaseClaim(ctx context.Context, req *approvalv1.ReleaseClaimRequest) (*approvalv1.ReleaseClaimResponse, error) {
	a, err := s.changeClaimed(ctx, req.GetApprovalId(), func(tx *store.Tx, r, grant *lifecycle.Record) error {
		return r.Release(req.GetClaimId(), req.GetHolder(), req.GetReason(), grant, tx.Now)
	})
	if err != nil {
		return nil, err
	}
	return &approvalv1.ReleaseClaimResponse{Approval: a}, nil
}

// CompleteClaim implements approvalv1.ApprovalServiceServer.
func (s *Service) CompleteClaim(ctx context.Context, req *approvalv1.CompleteClaimRequest) (*approvalv1.CompleteClaimResponse, error) {
	var settled bool
	a, err := s.changeClaimed(ctx, req.GetApprovalId(), func(tx *store.Tx, r, _ *lifecycle.Record) (err error) {
		settled, err = r.Complete(req.GetClaimId(), req.GetHolder(), req.GetOutcome(), tx.Now)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &approvalv1.CompleteClaimResponse{Approval: a, Completed: settled}, nil
}

// ResolveOutcome implements approvalv1.ApprovalServiceServer.
func (s *Service) ResolveOutcome(ctx context.Context, req *approvalv1.ResolveOutcomeRequest) (*approvalv1.ResolveOutcomeResponse, error) {
	by := authn.CallerOf(ctx).Person
	a, err := s.changeApproval(ctx, by.GetTenant(), req.GetApprovalId(), func(tx *store.Tx, r *lifecycle.Record) error {
		return r.Resolve(by.GetSubject(), req.GetResolution(), req.GetComment(), tx.Now)
	})
	if err != nil {
		return nil, err
	}
	return &approvalv1.ResolveOutcomeResponse{Approval: a}, nil
}

// CancelApproval implements approvalv1.ApprovalServiceServer.
func (s *Service) CancelApproval(ctx context.Context, req *approvalv1.CancelApprovalRequest) (*approvalv1.CancelApprovalResponse, error) {
	caller := authn.CallerOf(ctx)
	a, err := s.changeApproval(ctx, caller.Tenant(), req.GetApprovalId(), func(tx *store.Tx, r *lifecycle.Record) error {
		if !isVisible(caller, r) {
			return store.ErrNotFound
		}
		return r.Cancel(actorSubject(caller), req.GetReason(), tx.Now)
	})
	if err != nil {
		return nil, err
	}
	return &approvalv1.CancelApprovalResponse{Approval: a}, nil
}

// changeApproval applies a change to an approval of the tenant. It saves the approval if the change recorded a
// transition.
func (s *Service) changeApproval(ctx context.Context, tenant, id string, change func(tx *store.Tx, r *lifecycle.Record) error) (*approvalv1.Approval, error) {
	var out *approvalv1.Approval
	err := s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) error {
		r, err := tx.Get(ctx, tenant, id)
		if err != nil {
			return err
		}
		if err := change(tx, r); err != nil {
			return err
		}
		out = r.Approval
		if len(r.Moves) == 0 {
			return nil
		}
		return tx.Save(ctx, r)
	})
	return out, toStatus(err)
}

func leaseDuration(d *durationpb.Duration) time.Duration {
	if d == nil {
		return defaultLease
	}
	return d.AsDuration()
}
