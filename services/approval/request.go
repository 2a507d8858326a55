package approval

import (
	"bytes"
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
	"github.com/sluice-mesh/sluice/services/approval/internal/lifecycle"
	"github.com/sluice-mesh/sluice/services/approval/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/binding"
)

// Request implements approvalv1.ApprovalServiceServer.
func (s *Service) Request(ctx context.Context, req *approvalv1.RequestRequest) (*approvalv1.RequestResponse, error) {
	who, d := authn.CallerOf(ctx).Principal, req.GetDecision()
	switch {
	case d.GetEffect() != policyv1.Effect_EFFECT_REQUIRE_APPROVAL || d.GetApproval() == nil:
		return nil, toStatus(errNotAsked)
	case !confirms(req):
		return nil, toStatus(errConfirmation)
	}
	digest, params, err := s.bind(ctx, who, req.GetBound())
	if err != nil {
		return nil, toStatus(err)
	}
	kept := proto.CloneOf(req.GetBound())
	kept.Call.ParamsJson = params
	ask := asking{service: s, who: who, question: lifecycle.Question{
		ID: uuid.NewString(), DecisionID: req.GetDecisionId(), Digest: digest[:], Requester: who, Call: kept, Decision: d, Times: s.times(),
	}}
	var resp *approvalv1.RequestResponse
	err = s.store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		if verdict := answerOf(req); verdict != approvalv1.Verdict_VERDICT_UNSPECIFIED {
			resp, err = ask.answered(ctx, tx, req.GetShownApprovalId(), verdict)
			return err
		}
		resp, err = ask.in(ctx, tx)
		return err
	})
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

// bind reads a call, in the caller's turn.
func (s *Service) bind(ctx context.Context, who *identityv1.Principal, call *approvalv1.BoundCall) (binding.Digest, string, error) {
	end, err := s.reading.Take(ctx, string(store.Who(who)))
	if err != nil {
		return binding.Digest{}, "", err
	}
	defer end()
	digest, params, err := binding.Bind(who, call)
	if err != nil {
		return binding.Digest{}, "", errors.Join(errParams, err)
	}
	return digest, params, nil
}

// asking is one call's question.
type asking struct {
	service  *Service
	who      *identityv1.Principal
	question lifecycle.Question
}

// confirms tells whether a request has no word of whoever sits at the agent, or one
// that the terms let that person say.
func confirms(req *approvalv1.RequestRequest) bool {
	terms := req.GetDecision().GetApproval()
	if !req.GetSelfConfirmed() && !req.GetSelfDeclined() {
		return req.GetShownApprovalId() == ""
	}
	return req.GetSelfConfirmed() != req.GetSelfDeclined() && req.GetShownApprovalId() != "" && terms.GetSelfConfirm() && terms.GetQuorum() == 1
}

// answerOf is what whoever sits at the agent has said; unspecified where nobody was
// asked.
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
	return saved(ctx, tx, r)
}

// answered passes the word of whoever sits at the agent to the approval that was
// shown there: to no other, for one that has run its course meanwhile was confirmed
// once.
func (a *asking) answered(ctx context.Context, tx *store.Tx, shown string, verdict approvalv1.Verdict) (*approvalv1.RequestResponse, error) {
	r, err := tx.Get(ctx, a.who.GetTenant(), shown)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(r.Approval.GetDigest(), a.question.Digest) {
		return nil, store.ErrNotFound
	}
	if err := r.Answer(verdict, a.question.Decision, tx.Now); err != nil {
		return nil, err
	}
	return saved(ctx, tx, r)
}

// saved answers with an approval that the call has already, once its moves are kept.
func saved(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (*approvalv1.RequestResponse, error) {
	if len(r.Moves) > 0 {
		if err := tx.Save(ctx, r); err != nil {
			return nil, err
		}
	}
	return asked(r, false), nil
}

// open opens an approval, unless too many are pending already.
func (a *asking) open(ctx context.Context, tx *store.Tx) (*approvalv1.RequestResponse, error) {
	if err := a.outdate(ctx, tx); err != nil {
		return nil, err
	}
	q := a.question
	q.Call = proto.CloneOf(q.Call) // a transaction may run twice
	r := lifecycle.Open(q, tx.Now)
	if err := a.cover(ctx, tx, r); err != nil {
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

// outdate ends what waits for the same call of a tool, or at a server, that was another
// one then: nobody decides on what is not called any more.
func (a *asking) outdate(ctx context.Context, tx *store.Tx) error {
	waiting, err := tx.Waiting(ctx, a.who, a.question.Call)
	if err != nil {
		return err
	}
	for _, id := range waiting {
		r, err := tx.Get(ctx, a.who.GetTenant(), id)
		if err != nil {
			return err
		}
		as := proto.CloneOf(r.Call)
		as.ServerIdentity, as.Call.DefinitionDigest = a.question.Call.GetServerIdentity(), a.question.Call.GetCall().GetDefinitionDigest()
		digest, _, err := binding.Bind(a.who, as)
		if err != nil {
			return err
		}
		if !bytes.Equal(digest[:], a.question.Digest) {
			continue // another call
		}
		r.Outdate(tx.Now)
		if err := tx.Save(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// cover approves what a grant covers.
func (a *asking) cover(ctx context.Context, tx *store.Tx, r *lifecycle.Record) error {
	if a.question.Decision.GetApproval().GetGrant() == nil {
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
