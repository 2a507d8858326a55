package pipeline

import (
	"context"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
)

// Waiting is a wish to wait for people who decide on a call.
type Waiting struct {
	// Principal waits, and Approval is what for: one of its own.
	Principal *identityv1.Principal
	Approval  string
	// Client is the name that the client gives itself; a claim.
	Client string
	// Held and Progress are called as those of a [Call].
	Held     func()
	Progress func(n int)
}

// WaitFor waits until people have decided, or for as long as a call of that client
// is held. It runs nothing.
func (p *Pipeline) WaitFor(ctx context.Context, w Waiting) (*approvalv1.Approval, *refusal.Refusal) {
	return p.deps.Waiter.Decided(context.WithoutCancel(ctx), w.Approval, wait.Question{
		Principal: w.Principal, Until: p.deps.Waiter.HoldUntil(w.Client, time.Now()), Caller: ctx, Drain: p.draining,
		Held: w.Held, Progress: w.Progress,
	})
}
