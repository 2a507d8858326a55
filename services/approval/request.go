package approval

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
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
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// RequestApproval implements approvalv1.ApprovalServiceServer.
func (s *Service) RequestApproval(ctx context.Context, req *approvalv1.RequestApprovalRequest) (*approvalv1.RequestApprovalResponse, error) {
	principal, d := authn.CallerOf(ctx).Principal, req.GetDecision()
	switch {
	case d.GetEffect() != policyv1.Effect_EFFECT_REQUIRE_APPROVAL || d.GetApproval() == nil:
		return nil, toStatus(errNotAsked)
	case !allowsSelfVote(req):
		return nil, toStatus(errConfirmation)
	}
	selfVote := req.GetSelfVote()
	ask := approvalRequest{service: s, principal: principal, canConfirm: req.GetCanConfirm(), waitedFor: req.GetApprovalId(), question: lifecycle.OpenRequest{
		ID: uuid.NewString(), DecisionID: req.GetDecisionId(), Requester: principal, Decision: d, Times: s.defaultTimes(),
		TraceParent: telemetry.TraceParent(trace.SpanContextFromContext(ctx)),
	}}
	statement, err := s.decisions.accept(decisionUse{
		signed: req.GetSignedDecision(), unsigned: d, principal: principal, approval: selfVote.GetApprovalId(),
		identity: req.GetBound().GetServerIdentity(), definition: req.GetBound().GetCall().GetDefinitionDigest(),
	})
	if err != nil {
		return nil, toStatus(err)
	}
	if err := ask.bindCall(ctx, req.GetBound()); err != nil {
		return nil, toStatus(err)
	}
	if err := checkCallDigest(statement, ask.question.Alike); err != nil {
		return nil, toStatus(err)
	}
	var resp *approvalv1.RequestApprovalResponse
	if selfVote != nil {
		resp, err = ask.recordSelfVote(ctx, selfVote)
	} else {
		resp, err = ask.inTransaction(ctx, ask.attachOrOpen)
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return resp, nil
}

type approvalRequest struct {
	service   *Service
	principal *identityv1.Principal
	question  lifecycle.OpenRequest
	// canConfirm is true if the client can show a form to the person who uses the agent.
	canConfirm bool
	// waitedFor is the id of the approval for which the call has already waited. It is empty if the call has not waited.
	waitedFor string
}

func (a *approvalRequest) recordSelfVote(ctx context.Context, word *approvalv1.SelfVote) (*approvalv1.RequestApprovalResponse, error) {
	ctx, span := a.service.tracer.Start(ctx, voteSpan)
	defer span.End()
	resp, err := a.inTransaction(ctx, func(ctx context.Context, tx *store.Tx) (*approvalv1.RequestApprovalResponse, error) {
		return a.saveSelfVote(ctx, tx, word)
	})
	if err != nil {
		describeFailedVote(span, word.GetVerdict(), err)
		return nil, err
	}
	describeVote(span, word.GetVerdict(), resp.GetAsked().GetApproval())
	return resp, nil
}

func (a *approvalRequest) inTransaction(ctx context.Context, do func(context.Context, *store.Tx) (*approvalv1.RequestApprovalResponse, error)) (resp *approvalv1.RequestApprovalResponse, err error) {
	err = a.service.store.Do(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		resp, err = do(ctx, tx)
		return err
	})
	return resp, err
}

// bindCall parses the call and sets its digests. Because the call may be large, bindCall first waits for processor time
// in [Service.readTurns].
func (a *approvalRequest) bindCall(ctx context.Context, call *approvalv1.BoundCall) error {
	end, err := a.service.readTurns.Acquire(ctx, string(store.PrincipalDigest(a.principal)))
	if err != nil {
		return err
	}
	defer end()
	digest, params, err := binding.Bind(a.principal, call)
	if err != nil {
		return errors.Join(errParams, err)
	}
	boundCall := proto.CloneOf(call)
	boundCall.Call.ParamsJson = params
	alike, err1 := binding.DigestIgnoringDefinition(a.principal, boundCall.GetCall())
	bare, err2 := binding.EssentialDigest(a.principal, boundCall)
	if err := errors.Join(err1, err2); err != nil {
		return errors.Join(errParams, err)
	}
	a.question.Call, a.question.Digest, a.question.Alike, a.question.Bare = boundCall, digest[:], alike[:], bare[:]
	return nil
}

// allowsSelfVote reports whether the terms allow the self vote in the request. A self vote is cast by the person who
// uses the agent. It returns true if the request has no self vote.
func allowsSelfVote(req *approvalv1.RequestApprovalRequest) bool {
	return req.GetSelfVote() == nil || lifecycle.AllowsSelfVote(req.GetDecision().GetApproval())
}

// attachOrOpen returns the existing approval of the call, or opens a new one.
func (a *approvalRequest) attachOrOpen(ctx context.Context, tx *store.Tx) (*approvalv1.RequestApprovalResponse, error) {
	newest, err := tx.Newest(ctx, a.principal.GetTenant(), a.question.Digest)
	if errors.Is(err, store.ErrNotFound) {
		return a.openUnlessEnded(ctx, tx)
	}
	if err != nil {
		return nil, err
	}
	switch newest.Approval.GetState() { //nolint:exhaustive // an approval in another state has ended
	case approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED:
		return a.attach(ctx, tx, newest)
	case approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN:
		if a.question.Decision.GetIdempotent() && tx.Now.Before(newest.Approval.GetExecuteBefore().AsTime()) {
			return askedResponse(newest, false), nil
		}
	}
	return a.openUnlessEnded(ctx, tx)
}

// openUnlessEnded opens an approval, unless the call has waited for an approval that has ended. Otherwise, a call that
// is repeated when its approval ends would open another approval for which no caller waits.
func (a *approvalRequest) openUnlessEnded(ctx context.Context, tx *store.Tx) (*approvalv1.RequestApprovalResponse, error) {
	if a.waitedFor == "" {
		return a.openUnlessDenied(ctx, tx)
	}
	was, err := tx.Get(ctx, a.principal.GetTenant(), a.waitedFor)
	if err != nil {
		return nil, err
	}
	if principal.Of(was.Approval.GetRequester()) != principal.Of(a.principal) {
		return nil, store.ErrNotFound
	}
	switch was.Approval.GetState() { //nolint:exhaustive // an approval in another state has ended
	case approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED:
		return a.openUnlessDenied(ctx, tx) // the approval is for another call, for example one with another tool definition
	}
	return askedResponse(was, false), nil
}

// openUnlessDenied opens an approval, unless a person has denied the same call and the cool-down has not ended. The
// params of the two calls may differ in `_meta` and in other non-essential members.
func (a *approvalRequest) openUnlessDenied(ctx context.Context, tx *store.Tx) (*approvalv1.RequestApprovalResponse, error) {
	was, err := tx.Denied(ctx, a.principal.GetTenant(), a.question.Digest, a.question.Bare)
	if err != nil {
		return nil, err
	}
	if was == nil {
		return a.open(ctx, tx)
	}
	return refusalResponse(&approvalv1.Refusal{
		Code: commonv1.Code_CODE_APPROVAL_DENIED, Message: was.GetReason(), RetryAfter: roundUpToMillis(was.GetDeniedUntil().AsTime().Sub(tx.Now)), Approval: was,
	}), nil
}

// attach updates the existing approval of the call to the policy service's current decision. It asks approvers again if
// the approval terms have changed. The response says whether the client can ask the person who uses the agent to
// confirm the call.
func (a *approvalRequest) attach(ctx context.Context, tx *store.Tx, r *lifecycle.Record) (*approvalv1.RequestApprovalResponse, error) {
	askedAgain := r.UpdateDecision(a.question.Decision, a.service.defaultTimes(), tx.Now)
	if !askedAgain && !a.mayConfirm(r) {
		return askedResponse(r, false), nil
	}
	full, err := a.service.checkRequestRate(ctx, tx, a.principal)
	switch {
	case err != nil:
		return nil, err
	case full != nil && askedAgain: // the approval keeps its old terms, but the policy service decides again when the call is claimed
		return refusalResponse(full), nil
	case full != nil: // the person who uses the agent is not asked, only approvers
		return askedResponse(r, false), nil
	case askedAgain:
		err = tx.Save(ctx, r)
	default:
		err = tx.CountRequest(ctx, a.principal)
	}
	return a.withConfirm(askedResponse(r, false), r), err
}

// mayConfirm reports whether the client may ask the person who uses the agent to confirm the call.
func (a *approvalRequest) mayConfirm(r *lifecycle.Record) bool {
	return a.canConfirm && r.Approval.GetState() == pending && lifecycle.AllowsSelfVote(r.Approval.GetTerms())
}

func (a *approvalRequest) withConfirm(resp *approvalv1.RequestApprovalResponse, r *lifecycle.Record) *approvalv1.RequestApprovalResponse {
	resp.GetAsked().Confirm = a.mayConfirm(r)
	return resp
}

// saveSelfVote records the vote of the person who uses the agent. The vote counts for the approval that was shown to
// the person. If that approval has already ended, the vote does not count for a newer approval of the same call.
func (a *approvalRequest) saveSelfVote(ctx context.Context, tx *store.Tx, word *approvalv1.SelfVote) (*approvalv1.RequestApprovalResponse, error) {
	r, err := tx.Get(ctx, a.principal.GetTenant(), word.GetApprovalId())
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(r.Approval.GetDigest(), a.question.Digest) {
		return nil, store.ErrNotFound
	}
	if err := r.RecordSelfVote(word.GetVerdict(), a.question.Decision, a.service.cfg.CoolDown, tx.Now); err != nil {
		return nil, err
	}
	if len(r.Moves) > 0 {
		if err := tx.Save(ctx, r); err != nil {
			return nil, err
		}
	}
	return askedResponse(r, false), nil
}

// open opens an approval, unless the principal has reached the limit of pending approvals or of approval requests.
func (a *approvalRequest) open(ctx context.Context, tx *store.Tx) (*approvalv1.RequestApprovalResponse, error) {
	if err := a.cancelOutdated(ctx, tx); err != nil {
		return nil, err
	}
	q := a.question
	q.Call = proto.CloneOf(q.Call) // the transaction may run twice
	r := lifecycle.Open(q, tx.Now)
	if err := a.coverByGrant(ctx, tx, r); err != nil {
		return nil, err
	}
	if r.RequestsDecision() {
		full, err := a.checkLimits(ctx, tx)
		if err != nil || full != nil {
			return refusalResponse(full), err
		}
	}
	if err := tx.Save(ctx, r); err != nil {
		return nil, err
	}
	return a.withConfirm(askedResponse(r, true), r), nil
}

// cancelOutdated cancels the pending and approved approvals of the same call that are bound to another definition of
// the tool or to another server. The calls of these approvals can no longer run.
func (a *approvalRequest) cancelOutdated(ctx context.Context, tx *store.Tx) error {
	waiting, err := tx.OtherDefinitions(ctx, a.principal, a.question.Call, a.question.Alike)
	if err != nil {
		return err
	}
	for _, id := range waiting {
		r, err := tx.Get(ctx, a.principal.GetTenant(), id)
		if err != nil {
			return err
		}
		r.CancelOutdated(tx.Now)
		if err := tx.Save(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (a *approvalRequest) coverByGrant(ctx context.Context, tx *store.Tx, r *lifecycle.Record) error {
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

// checkLimits returns a refusal if one of the caller's accounts (see [store.Accounts]) has reached the limit of pending
// approvals or of approval requests. Otherwise, it returns nil.
func (a *approvalRequest) checkLimits(ctx context.Context, tx *store.Tx) (*approvalv1.Refusal, error) {
	for _, account := range store.Accounts(a.principal) {
		n, err := tx.Pending(ctx, account.Digest)
		if err != nil {
			return nil, err
		}
		if n >= account.Factor*a.service.cfg.MaxPending {
			full := quota.FullError{
				Account: account.Key, Caller: principal.Of(a.principal), Person: account.Person,
				Held: n, Limit: account.Factor * a.service.cfg.MaxPending, What: "calls that wait for people",
			}
			return &approvalv1.Refusal{Code: commonv1.Code_CODE_TOO_MANY_PENDING, Message: tooManyPending(&full)}, nil
		}
	}
	return a.service.checkRequestRate(ctx, tx, a.principal)
}

// tooManyPending returns the message of a refusal because of too many pending calls. The message says whose calls are
// pending, and what the caller can do.
func tooManyPending(full *quota.FullError) string {
	return full.Error() + " (approvals.max_pending). Call sluice_approval_wait, which returns when one of them is decided, or wait until people have decided, and then make this call again."
}

// checkRequestRate returns a refusal if one of the caller's accounts (see [store.Accounts]) has reached the limit of
// approval requests. Otherwise, it returns nil.
func (s *Service) checkRequestRate(ctx context.Context, tx *store.Tx, who *identityv1.Principal) (*approvalv1.Refusal, error) {
	left, err := tx.RetryAfter(ctx, who, s.cfg.MaxAsked, s.cfg.AskedWindow)
	if err != nil || left == 0 {
		return nil, err
	}
	return &approvalv1.Refusal{
		Code: commonv1.Code_CODE_TOO_MANY_PENDING, RetryAfter: roundUpToMillis(left),
		Message: fmt.Sprintf("people were asked %d times within %s about calls of this caller, or of a principal that it works for, which is the limit (approvals.max_asked): they are not asked about further calls until that time has passed. "+
			"Calls about which they were already asked can be made again meanwhile.", s.cfg.MaxAsked, formatDuration(s.cfg.AskedWindow)),
	}, nil
}

// formatDuration formats a duration without trailing zero units. For example, it returns 1h instead of 1h0m0s.
func formatDuration(d time.Duration) string {
	text := d.String()
	for _, part := range []struct{ after, zero string }{{"m", "0s"}, {"h", "0m"}} {
		if short, ok := strings.CutSuffix(text, part.after+part.zero); ok {
			text = short + part.after
		}
	}
	return text
}

func askedResponse(r *lifecycle.Record, opened bool) *approvalv1.RequestApprovalResponse {
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Asked{Asked: &approvalv1.Asked{Approval: r.Approval, Opened: opened}}}
}

func refusalResponse(r *approvalv1.Refusal) *approvalv1.RequestApprovalResponse {
	if r == nil {
		return nil
	}
	return &approvalv1.RequestApprovalResponse{Result: &approvalv1.RequestApprovalResponse_Refusal{Refusal: r}}
}

// roundUpToMillis rounds a duration up to whole milliseconds. Otherwise a caller that waits for exactly this duration
// might retry too early.
func roundUpToMillis(d time.Duration) *durationpb.Duration {
	return durationpb.New((d + time.Millisecond - 1).Truncate(time.Millisecond))
}
