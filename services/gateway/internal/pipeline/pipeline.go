// Package pipeline is the life of a call: decide, wait for approval, reserve,
// record the intent, forward, record the outcome, settle. Where any of it can't
// be done the call is refused; what a client wrote has no other way to an upstream.
package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/trace"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/approvals"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/kept"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// Deps are the live objects that a [Pipeline] works with. Every field is
// required.
type Deps struct {
	Policy  policyv1.PolicyServiceClient
	Kept    *kept.Decisions
	Limiter ratelimitv1.RateLimitServiceClient
	Journal attempt.Journal
	Waiter  *approvals.Waiter
	Tracer  trace.Tracer
	Meters  *meters.Meters
	Log     *slog.Logger
}

// Pipeline carries calls out. It is safe for concurrent use.
type Pipeline struct {
	deps      Deps
	desk      *attempt.Desk
	approvals *approvals.Clerk
	abuse     abuse
	passed    *passed
	// cut ends when calls on their way are to end, which stop makes it.
	cut  context.Context
	stop context.CancelFunc
}

// New returns a pipeline.
func New(deps Deps) (*Pipeline, error) {
	if deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("pipeline: every dependency is required")
	}
	desk, err := attempt.NewDesk(attempt.Deps{Policy: deps.Policy, Kept: deps.Kept, Limiter: deps.Limiter, Journal: deps.Journal, Tracer: deps.Tracer, Log: deps.Log})
	if err != nil {
		return nil, err
	}
	approved, err := approvals.New(deps.Waiter, desk, deps.Log)
	if err != nil {
		return nil, err
	}
	p := &Pipeline{deps: deps, desk: desk, approvals: approved, abuse: newAbuse(), passed: newPassed()}
	p.cut, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// Drain lets go of the calls that wait for people: they get their tickets.
func (p *Pipeline) Drain() { p.approvals.Drain() }

// Miscounting reports whether limited calls are refused because two instances of the ratelimit role answer in turn.
func (p *Pipeline) Miscounting() bool { return p.desk.Miscounting() }

// Stop ends the calls that are with their servers, now and from now on: that
// their outcome is not known is recorded, and their callers are told. It does not
// wait for them.
func (p *Pipeline) Stop() {
	p.approvals.Stop()
	p.stop()
}

// Wait waits until the approval service was told of every call, or ctx ends; what it
// was not told then a replay tells it. No call may be under way.
func (p *Pipeline) Wait(ctx context.Context) { p.approvals.Wait(ctx) }

// WaitFor waits until people have decided, or for as long as a call of that client
// is held. It runs nothing.
func (p *Pipeline) WaitFor(ctx context.Context, w approvals.Waiting) (*approvalv1.Approval, *refusal.Refusal) {
	return p.approvals.WaitFor(ctx, w)
}

// Approval is an approval of the principal's, as it stands.
func (p *Pipeline) Approval(ctx context.Context, who *identityv1.Principal, approval string) (*approvalv1.Approval, *refusal.Refusal) {
	return p.approvals.Approval(ctx, who, approval)
}

// Withdraw ends an approval of the principal's that nobody has decided on, or that was not used.
func (p *Pipeline) Withdraw(ctx context.Context, who *identityv1.Principal, approval, reason string) error {
	return p.approvals.Withdraw(ctx, who, approval, reason)
}

// Replay tells the approval service what came of the calls that were left open. It
// tries until the service answers or ctx ends; meanwhile others pass.
func (p *Pipeline) Replay(ctx context.Context, left []approvals.Left) error {
	return p.approvals.Replay(ctx, left)
}

// Result is what came of a call. Exactly one of Answer and Refusal is set.
type Result struct {
	// Answer is the upstream's, and Status its HTTP status; 0 where the transport has none.
	Answer *gate.Answer
	Status int
	// Refusal says why there is none.
	Refusal *refusal.Refusal
	// ID is the decision's, and Decision what policy said; nil where it said nothing.
	ID       string
	Decision *policyv1.Decision
	// Held is for how long the call was held open for people.
	Held time.Duration
	// Left says that the server has ended the stream of its answer for the client to come back, and
	// gave no way to.
	Left bool
	// Unrecorded says that the call ran and that its outcome could not be recorded
	// yet.
	Unrecorded bool
}

// Do carries a call out. It returns when the answer is there, also where ctx ends
// before: on the protocol's 2025 revisions a client that hangs up cancels
// nothing, neither the call nor that it is counted.
func (p *Pipeline) Do(ctx context.Context, call attempt.Call) Result {
	gone := ctx                                                                         // ends when the caller has gone; the call goes on without it
	ctx = trace.ContextWithSpan(context.WithoutCancel(ctx), trace.SpanFromContext(ctx)) // where it is found at once
	a, refused := p.admit(ctx, gone, attempt.New(&call))
	if refused != nil {
		return p.refuse(ctx, a, refused)
	}
	if err := p.desk.Intent(ctx, a); err != nil {
		p.approvals.NeverSent(ctx, a, "its intent could not be recorded")
		return p.refuse(ctx, a, p.desk.NotSent(ctx, a, err))
	}
	span := trace.SpanFromContext(ctx)
	spans.Decision(span, a.ID, "", a.Decision, a.Lease)
	if a.Claim != nil {
		spans.Approval(span, a.Claim.GetId(), a.HeldFor)
	}
	p.deps.Meters.Allowed(ctx)
	return p.forward(ctx, a)
}

// admit has a call decided, has people asked where policy wants that, and reserves its
// limits. A principal whose refusals are only counted waits for its turn.
func (p *Pipeline) admit(ctx, gone context.Context, a attempt.Attempt) (_ attempt.Attempt, refused *refusal.Refusal) {
	if a.Stale {
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	turn, refused := p.abuse.take(gone, blamedFor(a.Call))
	if refused != nil {
		return a, refused
	}
	defer func() { turn.end(refused != nil) }()
	if a.Hides {
		if a, refused = p.mustBeListed(ctx, a); refused != nil {
			return a, refused
		}
	}
	if a, refused = p.judge(ctx, a); refused != nil {
		return a, refused
	}
	switch {
	case a.Asks():
		turn.end(false) // people take their time
		a, refused = p.approvals.Ask(ctx, gone, a)
	case p.approvals.Knows(a): // an approval of such a call was requested before
		refused = p.approvals.Supersede(ctx, a)
	default:
		refused = a.Refusal()
	}
	if refused == nil && a.Claim == nil && !a.Asks() {
		refused = p.approvals.Report(ctx, a)
	}
	if refused == nil && a.Claim == nil && a.IsLimited() { // a claim has reserved its own
		a, refused = p.desk.Reserve(ctx, a, a.ID)
	}
	return a, refused
}

// refuse records a refusal and makes it the result.
func (p *Pipeline) refuse(ctx context.Context, a attempt.Attempt, refused *refusal.Refusal) Result {
	refused.ID = p.recordRefusal(ctx, p.desk.RefusalRecord(ctx, a, refused))
	span := trace.SpanFromContext(ctx)
	spans.Decision(span, refused.ID, enum.Given(refused.Code), a.Decision, a.Lease)
	if asked := refused.Approval; asked != nil {
		spans.Approval(span, asked.ID, a.HeldFor)
	}
	p.deps.Meters.Refused(ctx, refused.Code)
	return Result{Refusal: refused, ID: refused.ID, Decision: a.Decision, Held: a.HeldFor}
}

// RecordRefusal records a request of an identified caller that was rejected or refused
// before policy was asked about it, and returns the identifier of its decision.
func (p *Pipeline) RecordRefusal(ctx context.Context, r attempt.Unjudged) string {
	p.deps.Meters.Refused(ctx, r.Code)
	return p.recordRefusal(ctx, r.Record(ctx))
}
