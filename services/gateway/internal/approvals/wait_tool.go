package approvals

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/authn"
)

// WaitRequest is a request to wait for the decision on an approval.
type WaitRequest struct {
	// Principal is the caller. Approval is the id of one of the caller's approvals.
	Principal *identityv1.Principal
	Approval  string
	// Client is the name that the client declares. It is not verified.
	Client string
	// Reply is notified when the request starts to wait. It may be nil.
	Reply attempt.Reply
}

// Approval returns the current state of one of the principal's approvals.
func (k *Manager) Approval(ctx context.Context, p *identityv1.Principal, approval string) (*approvalv1.Approval, *refusal.Refusal) {
	return k.client.get(authn.OnBehalfOf(ctx, p), approval)
}

// Withdraw cancels one of the principal's approvals. The approval must be pending, or approved and not yet claimed.
func (k *Manager) Withdraw(ctx context.Context, p *identityv1.Principal, approval, reason string) error {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, p), askTimeout)
	defer cancel()
	_, err := k.client.client.CancelApproval(ctx, &approvalv1.CancelApprovalRequest{ApprovalId: approval, Reason: reason})
	return err
}

// WaitDecision waits until the approval is no longer pending, or until the hold time for the client is over. It does
// not make the call.
func (k *Manager) WaitDecision(ctx context.Context, w WaitRequest) (*approvalv1.Approval, *refusal.Refusal) {
	result, refused := k.client.WaitDecided(context.WithoutCancel(ctx), w.Approval, Request{
		Principal: w.Principal, Until: k.client.HoldUntil(w.Client, time.Now()), Caller: ctx, Drain: k.draining,
		Reply: w.Reply,
	})
	spans.Approval(trace.SpanFromContext(ctx), result.Approval.GetId(), result.Held)
	return result.Approval, refused
}
