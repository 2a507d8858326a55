package pipeline

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/trace"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
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
	var open held
	a, refused := p.deps.Waiter.Decided(context.WithoutCancel(ctx), w.Approval, wait.Question{
		Principal: w.Principal, Until: p.deps.Waiter.HoldUntil(w.Client, time.Now()), Caller: ctx, Drain: p.draining,
		Held: open.from(w.Held), Progress: w.Progress,
	})
	open.end()
	spans.Approval(trace.SpanFromContext(ctx), a.GetId(), open.total)
	return a, refused
}

// held is for how long a call was held open in all.
type held struct {
	begin time.Time
	total time.Duration
}

// from returns what is to be called where a call is about to wait: then it counts.
func (h *held) from(then func()) func() {
	return func() {
		h.begin = time.Now()
		if then != nil {
			then()
		}
	}
}

// end counts what has begun.
func (h *held) end() {
	if !h.begin.IsZero() {
		h.total += time.Since(h.begin)
	}
	h.begin = time.Time{}
}
