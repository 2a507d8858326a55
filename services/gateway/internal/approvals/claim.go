package approvals

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// claimResult is the result of an attempt to claim an approval. The zero value means that the approval service has
// refused the claim.
type claimResult struct {
	// claimed contains the approved call. It is nil if the claim was not made.
	claimed *approvalv1.Claimed
	// refusal is the approval service's reason for refusing the claim, or nil.
	refusal *approvalv1.Refusal
	// changed is true if the claim was not made because the approval has changed.
	changed bool
	// err is not nil if the gateway does not know whether the claim was made.
	err error
}

// claim tries to claim an approval for a call. It records the claim in the journal, reserves the call's limits, and
// sends the claim to the approval service. All calls that compete for the approval reserve their limits with the same
// idempotency key, so that the limits are reserved only once. If the policy denies the call, claim reserves nothing.
//
// The returned attempt contains the claim's id and the last decision of the policy service. It also contains the
// approval, unless the gateway knows that the claim was not made.
func (k *Manager) claim(ctx context.Context, a attempt.Attempt, by *approvalv1.Approval, decided *policyv1.DecideCallResponse, definition []byte) (attempt.Attempt, claimResult, *refusal.Refusal) {
	a = a.WithClaim(by)
	key, recorded := binding.LimitKey(by, attempt.LimitsOf(a.Decision.GetLimits())), ""
	if a.Refusal() == nil && a.IsLimited() {
		recorded = key
	}
	if err := k.attempts.RecordClaim(ctx, a, recorded); err != nil {
		if !errors.Is(err, journal.ErrQuota) { // ErrQuota means that nothing was written, so nothing has to be settled
			a = k.recordUnclaimed(ctx, a)
		}
		return a.WithoutClaim(), claimResult{}, k.attempts.NotSent(ctx, a, err)
	}
	if recorded != "" {
		var refused *refusal.Refusal
		if a, refused = k.attempts.Reserve(ctx, a, key); refused != nil {
			return k.recordUnclaimed(ctx, a), claimResult{}, refused
		}
	}
	// gofail: var gatewayBeforeClaim struct{}
	resp, last, err := k.client.Claim(ctx, ClaimRequest{
		Principal: a.Principal, Approval: by, ID: a.ID, Decided: decided, Lease: a.Lease.GetId(),
		Definition: definition, ServerIdentity: a.Identity,
		Attest: func(ctx context.Context, approval string, n int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
			next, refused := k.attempts.Attest(ctx, a, definition, approval, n)
			if refused == nil && binding.LimitKey(by, attempt.LimitsOf(next.GetDecision().GetLimits())) != key {
				refused = Unavailable() // the limits in the new decision differ from the reserved limits
			}
			return next, refused
		},
	})
	a.Decision = last
	switch {
	case status.Code(err) == codes.Aborted: // another attempt has claimed the approval, and may use the reserved limits
		return k.recordUnclaimed(ctx, a), claimResult{changed: true}, nil
	case err != nil:
		return a, claimResult{err: err}, nil
	case resp.GetClaimed() == nil:
		if resp.GetRefusal().GetLeaseUnused() {
			k.attempts.ReleaseLease(ctx, a.Lease.GetId(), a.ID)
		}
		return k.recordUnclaimed(ctx, a), claimResult{refusal: resp.GetRefusal()}, nil
	}
	// gofail: var gatewayAfterClaim struct{}
	return a, claimResult{claimed: resp.GetClaimed()}, nil
}

// restoreStored replaces the received call with the call that the approval service has stored, because the gateway must
// send exactly the call that was approved. If the stored call cannot be restored, restoreStored releases the claim.
func (k *Manager) restoreStored(ctx context.Context, a attempt.Attempt, c *approvalv1.Claimed) (attempt.Attempt, *refusal.Refusal) {
	stored, err := restore(a.Message, c.GetBound().GetCall())
	if err != nil {
		k.log.ErrorContext(ctx, "the stored call could not be restored", "decision_id", a.ID, "error", err)
		return k.releaseClaim(ctx, a, "the stored call could not be restored"), Unavailable()
	}
	a.Sent = stored
	a.Claim = &attempt.Claim{Approval: a.Claim.Approval, Attempt: a.Claim.Attempt, Votes: c.GetVotes()}
	telemetry.Link(trace.SpanFromContext(ctx), c.GetApproval().GetTraceParent())
	return a, nil
}

// recordUnclaimed records that a claim was not made, and returns the attempt without the claim.
func (k *Manager) recordUnclaimed(ctx context.Context, a attempt.Attempt) attempt.Attempt {
	k.attempts.RecordSettled(ctx, a)
	return a.WithoutClaim()
}

// releaseClaim releases the claim of a call that will not be sent, and returns the attempt without the claim.
func (k *Manager) releaseClaim(ctx context.Context, a attempt.Attempt, reason string) attempt.Attempt {
	k.ReleaseUnsent(ctx, a, reason)
	return a.WithoutClaim()
}

// restore returns the message to send. It consists of the stored call and of the id and the volatile `_meta` members of
// the received message.
func restore(received *jsonrpc.Message, call *policyv1.Call) (*jsonrpc.Message, error) {
	raw, err := jsonrpc.Restore(received, call.GetParamsJson())
	if err != nil {
		return nil, err
	}
	return jsonrpc.Parse(raw, widenedLimits())
}

// widenedLimits returns the parser limits for a message that the gateway has changed after the policy service evaluated
// it. They are higher than the limits for clients' messages, so that the members added by the gateway do not make the
// message too large.
func widenedLimits() jsonrpc.Limits {
	limits := jsonrpc.DefaultLimits()
	limits.Bytes += 4 << 10
	limits.Tokens += 32
	return limits
}
