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
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/binding"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// answer is the approval service's to a claim. Of the zero value it has refused.
type answer struct {
	// claimed is the call as people have approved it; nil where the claim was not made.
	claimed *approvalv1.Claimed
	// refusal says why it was not.
	refusal *approvalv1.Refusal
	// changed says that it was not because the approval is another by now.
	changed bool
	// err says that it is not known whether it was made.
	err error
}

// claim tries to claim an approval for a call: it records the claim, reserves the call's
// limits, unless policy denies it, under a key that all who race for the approval share,
// and asks the approval service. The attempt that comes back is under the claim's name,
// and says what policy said last. It has the approval where the claim was made, or where
// that is not known.
func (k *Clerk) claim(ctx context.Context, a attempt.Attempt, by *approvalv1.Approval, decided *policyv1.DecideCallResponse, definition []byte) (attempt.Attempt, answer, *refusal.Refusal) {
	a = a.Claims(by)
	key, recorded := binding.LimitKey(by, attempt.Reserved(a.Decision.GetLimits())), ""
	if a.Refusal() == nil && a.IsLimited() {
		recorded = key
	}
	if err := k.desk.Claiming(ctx, a, recorded); err != nil {
		if !errors.Is(err, journal.ErrShare) { // then nothing was written, so nothing is to be settled
			a = k.drop(ctx, a)
		}
		return a.Free(), answer{}, k.desk.NotSent(ctx, a, err)
	}
	if recorded != "" {
		var refused *refusal.Refusal
		if a, refused = k.desk.Reserve(ctx, a, key); refused != nil {
			return k.drop(ctx, a), answer{}, refused
		}
	}
	// gofail: var gatewayBeforeClaim struct{}
	resp, last, err := k.waiter.Claim(ctx, Claiming{
		Principal: a.Principal, Approval: by, ID: a.ID, Decided: decided, Lease: a.Lease.GetId(),
		Definition: definition, ServerIdentity: a.Identity,
		Attest: func(ctx context.Context, approval string, n int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
			again, refused := k.desk.Attest(ctx, a, definition, approval, n)
			if refused == nil && binding.LimitKey(by, attempt.Reserved(again.GetDecision().GetLimits())) != key {
				refused = Unavailable() // other limits than those that were reserved
			}
			return again, refused
		},
	})
	a.Decision = last
	switch {
	case status.Code(err) == codes.Aborted: // another attempt; what was reserved may be its claim's
		return k.drop(ctx, a), answer{changed: true}, nil
	case err != nil:
		return a, answer{err: err}, nil
	case resp.GetClaimed() == nil:
		if resp.GetRefusal().GetLeaseUnused() {
			k.desk.GiveBack(ctx, a.Lease.GetId(), a.ID)
		}
		return k.drop(ctx, a), answer{refusal: resp.GetRefusal()}, nil
	}
	// gofail: var gatewayAfterClaim struct{}
	return a, answer{claimed: resp.GetClaimed()}, nil
}

// take puts the stored call in place of the one that came: what runs is what was
// approved. Where that can't be the claim is given back.
func (k *Clerk) take(ctx context.Context, a attempt.Attempt, c *approvalv1.Claimed) (attempt.Attempt, *refusal.Refusal) {
	stored, err := restore(a.Message, c.GetBound().GetCall())
	if err != nil {
		k.log.ErrorContext(ctx, "the stored call could not be restored", "decision_id", a.ID, "error", err)
		return k.abandon(ctx, a, "the stored call could not be restored"), Unavailable()
	}
	a.Sent = stored
	a.Claim = &attempt.Claim{Approval: a.Claim.Approval, Attempt: a.Claim.Attempt, Votes: c.GetVotes()}
	telemetry.Link(trace.SpanFromContext(ctx), c.GetApproval().GetTraceParent())
	return a, nil
}

// drop leaves a claim that was not made, and returns what goes on without it.
func (k *Clerk) drop(ctx context.Context, a attempt.Attempt) attempt.Attempt {
	k.desk.Settled(ctx, a)
	return a.Free()
}

// abandon gives back a claim whose call is not sent after all, and returns what goes on
// without it.
func (k *Clerk) abandon(ctx context.Context, a attempt.Attempt, reason string) attempt.Attempt {
	k.NeverSent(ctx, a, reason)
	return a.Free()
}

// restore makes the message that is sent of the stored call: with the id and the
// volatile `_meta` of the one that came, and else what was approved.
func restore(came *gate.Message, call *policyv1.Call) (*gate.Message, error) {
	raw, err := gate.Restore(came, call.GetParamsJson())
	if err != nil {
		return nil, err
	}
	return gate.Parse(raw, widened())
}

// widened are the limits of a message that was judged and then spliced: what we
// added must not make it too large.
func widened() gate.Limits {
	limits := gate.DefaultLimits()
	limits.Bytes += 4 << 10
	limits.Tokens += 32
	return limits
}
