package approvals

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// EndSuperseded completes the check of a call for which the policy requires no approval. denied is the refusal of the
// call, or nil if the policy allows the call. If this gateway has requested an approval for an equal call earlier,
// EndSuperseded cancels that approval, unless it was claimed or [attempt.Attempt.ApprovalStaysValid] is true.
//
// EndSuperseded returns the refusal of the call, or nil if the call may run. It also refuses a call that refers to an
// ended approval. In that case, the call might already have run without the caller receiving the answer, and the call
// must not run twice.
func (k *Manager) EndSuperseded(ctx context.Context, a attempt.Attempt, denied *refusal.Refusal) *refusal.Refusal {
	if denied == nil && !a.Allows() {
		return a.PolicyChanged()
	}
	if denied == nil {
		if refused := k.RefuseIfEnded(ctx, a); refused != nil {
			return refused
		}
	}
	if k.HasTicket(a) {
		return k.cancelSuperseded(ctx, a, denied)
	}
	return denied
}

// cancelSuperseded checks a call for which the policy no longer requires an approval, although the gateway has
// requested one for an equal call. It first cancels that approval if no call has claimed it. Otherwise a later call
// could use the votes.
//
// cancelSuperseded returns nil if the policy allows the call and the approval was cancelled. If the approval cannot be
// cancelled, it refuses the call even if the policy allows it. If the policy denies the call, it always returns that
// denial.
func (k *Manager) cancelSuperseded(ctx context.Context, a attempt.Attempt, denied *refusal.Refusal) *refusal.Refusal {
	if denied != nil && (!a.Denies() || a.ApprovalStaysValid()) {
		return denied
	}
	reason := "policy requires no approval for this call now"
	if denied != nil {
		reason = "policy denies this call now"
	}
	if err := k.cancelUnclaimed(ctx, a, reason); err != nil {
		k.log.WarnContext(ctx, "an approval that policy no longer requires was not ended", "decision_id", a.ID, "error", err)
		if denied == nil {
			return &refusal.Refusal{
				Code:    commonv1.Code_CODE_APPROVAL_UNAVAILABLE,
				Message: "policy allows this call, but the approval that was requested for it before can't be ended now; try again.",
			}
		}
	}
	if denied == nil && !a.Allows() {
		return a.PolicyChanged()
	}
	return denied
}

// cancelUnclaimed cancels the approval that this gateway has requested for a call, unless a call has claimed it.
func (k *Manager) cancelUnclaimed(ctx context.Context, a attempt.Attempt, reason string) error {
	for range maxClaims {
		approval, err := k.client.unclaimedApproval(ctx, *callFor(a))
		if err != nil || approval == "" {
			return err
		}
		switch err := k.Withdraw(ctx, a.Principal, approval, reason); status.Code(err) { //nolint:exhaustive // every other code is a failure
		case codes.OK, codes.NotFound:
			k.client.tickets.forget(approval)
			return nil
		case codes.FailedPrecondition: // the approval was claimed or decided just before
		default:
			return err
		}
	}
	return status.Error(codes.Aborted, "the approval keeps changing: try again")
}

func callFor(a attempt.Attempt) *Call {
	return &Call{
		Principal: a.Principal, Server: a.Server, Identity: a.Identity, Method: a.Sent.Method, Name: a.Name(),
		Params: a.Sent.Params.Of(a.Sent.Raw),
	}
}
