package approval

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval/internal/binding"
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// Request implements approvalv1.ApprovalServiceServer.
func (s *Service) Request(ctx context.Context, req *approvalv1.RequestRequest) (*approvalv1.RequestResponse, error) {
	who, d := authn.CallerOf(ctx).Principal, req.GetDecision()
	switch {
	case d.GetEffect() != policyv1.Effect_EFFECT_REQUIRE_APPROVAL || d.GetApproval() == nil:
		return nil, toStatus(errNotAsked)
	case req.GetSelfConfirmed() && req.GetSelfDeclined():
		return nil, toStatus(errConfirmation)
	case (req.GetSelfConfirmed() || req.GetSelfDeclined()) && (!d.GetApproval().GetSelfConfirm() || d.GetApproval().GetQuorum() != 1):
		return nil, toStatus(errConfirmation)
	}
	digest, params, err := binding.Bind(who, req.GetBound())
	if err != nil {
		return nil, toStatus(errors.Join(errParams, err))
	}
	kept := proto.CloneOf(req.GetBound())
	kept.Call.ParamsJson = params
	ask := asking{service: s, who: who, answer: answerOf(req), question: lifecycle.Question{
		ID: uuid.NewString(), DecisionID: req.GetDecisionId(), Digest: digest[:], Requester: who, Call: kept, Decision: d, Times: s.times(),
	}}
	var resp *approvalv1.RequestResponse
	err = s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		resp, err = ask.in(ctx, tx)
		return err
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

// asking is one call's question.
type asking struct {
	service  *Service
	who      *identityv1.Principal
	question lifecycle.Question
	// answer is that of whoever sits at the agent; unspecified where nobody was
	// asked.
	answer approvalv1.Verdict
}

// answerOf is what whoever sits at the agent has said.
func answerOf(req *approvalv1.RequestRequest) approvalv1.Verdict {
	switch {
	case req.GetSelfConfirmed():
		return approvalv1.Verdict_VERDICT_APPROVE
	case req.GetSelfDeclined():
		return approvalv1.Verdict_VERDICT_DENY
	default:
		return approvalv1.Verdict_VERDICT_UNSPECIFIED
	}
}

// in answers by what the call has already.
func (a *asking) in(ctx context.Context, tx *store.Tx) (*approvalv1.RequestResponse, error) {
	newest, err := tx.Newest(ctx, a.who.GetTenant(), a.question.Digest)
	if errors.Is(err, store.ErrNotFound) {
		return a.open(ctx, tx)
	}
	if err != nil {
		return nil, err
	}
	switch newest.Approval.GetState() { //nolint:exhaustive // what is over is no answer
	case approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED:
		return a.attach(ctx, tx, newest)
	case approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN:
		if a.question.Decision.GetIdempotent() && tx.Now.Before(newest.Approval.GetExecuteBefore().AsTime()) {
			return asked(newest, false), nil
		}
	case approvalv1.ApprovalState_APPROVAL_STATE_DENIED:
		if !newest.DeniedByPerson() {
			break // policy did, and asks by now
		}
		if left := newest.Approval.GetEnded().AsTime().Add(a.service.cfg.CoolDown).Sub(tx.Now); left > 0 {
			return refused(&approvalv1.Refusal{
				Code: commonv1.Code_CODE_APPROVAL_DENIED, Message: newest.Approval.GetReason(), RetryAfter: wholeMillis(left), Approval: newest.Approval,
			}), nil
		}
	}
	return a.open(ctx, tx)
}

// attach brings the approval that the call has up to what policy says now.
func (a *asking) attach(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (*approvalv1.RequestResponse, error) {
	r.Ask(a.question.Decision, a.service.times(), tx.Now)
	switch r.Approval.GetState() { //nolint:exhaustive // a claimed call is on its way
	case approvalv1.ApprovalState_APPROVAL_STATE_PENDING:
		r.Answer(a.answer, tx.Now)
	case approvalv1.ApprovalState_APPROVAL_STATE_APPROVED:
		if err := a.declined(r, tx.Now); err != nil {
			return nil, err
		}
	}
	if len(r.Moves) > 0 {
		if err := tx.Save(ctx, r); err != nil {
			return nil, err
		}
	}
	return asked(r, false), nil
}

// declined ends a call that others have approved meanwhile, where whoever sits at
// the agent does not want it.
func (a *asking) declined(r *lifecycle.Record, now time.Time) error {
	if a.answer != approvalv1.Verdict_VERDICT_DENY {
		return nil
	}
	return r.Cancel(a.who.GetSubject(), "declined at the agent", now)
}

// open opens an approval, unless too many are pending already.
func (a *asking) open(ctx context.Context, tx *store.Tx) (*approvalv1.RequestResponse, error) {
	q := a.question
	q.Call = proto.CloneOf(q.Call) // a transaction may run twice
	r := lifecycle.Open(q, tx.Now)
	if err := a.settle(ctx, tx, r); err != nil {
		return nil, err
	}
	if r.Approval.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		full, err := a.tooMany(ctx, tx)
		if err != nil || full != nil {
			return full, err
		}
	}
	if err := tx.Save(ctx, r); err != nil {
		return nil, err
	}
	return asked(r, true), nil
}

// settle decides what needs no more people: a call that was answered at the agent,
// or that a grant covers.
func (a *asking) settle(ctx context.Context, tx *store.Tx, r *lifecycle.Record) error {
	if r.Answer(a.answer, tx.Now); r.Approval.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_PENDING {
		return nil
	}
	if r.Approval.GetTerms().GetGrant() == nil {
		return nil
	}
	grants, err := tx.Grants(ctx, r)
	if err != nil {
		return err
	}
	for _, by := range grants {
		if by.Covers(a.question.Decision, tx.Now) {
			r.Cover(by, tx.Now)
			break
		}
	}
	return nil
}

// tooMany refuses where the caller, or somebody who stands behind it, has as many
// pending as one may have.
func (a *asking) tooMany(ctx context.Context, tx *store.Tx) (*approvalv1.RequestResponse, error) {
	for _, who := range append([]*identityv1.Principal{a.who}, a.who.GetChain()...) {
		n, err := tx.Pending(ctx, store.Who(who))
		if err != nil {
			return nil, err
		}
		if n >= a.service.cfg.MaxPending {
			return refused(&approvalv1.Refusal{Code: commonv1.Code_CODE_TOO_MANY_PENDING}), nil
		}
	}
	return nil, nil //nolint:nilnil // there is room
}

func asked(r *lifecycle.Record, opened bool) *approvalv1.RequestResponse {
	return &approvalv1.RequestResponse{Result: &approvalv1.RequestResponse_Asked{Asked: &approvalv1.Asked{Approval: r.Approval, Opened: opened}}}
}

func refused(r *approvalv1.Refusal) *approvalv1.RequestResponse {
	return &approvalv1.RequestResponse{Result: &approvalv1.RequestResponse_Refusal{Refusal: r}}
}

// wholeMillis rounds up, so that who waits as long as it was told is not too early.
func wholeMillis(d time.Duration) *durationpb.Duration {
	return durationpb.New((d + time.Millisecond - 1).Truncate(time.Millisecond))
}
