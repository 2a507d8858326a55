// Package pipeline executes calls. For each call it asks the policy service, waits for an approval, reserves limits,
// records the intent, sends the call to the server and records the outcome. If the call was approved, it also reports
// the outcome to the approval service. If a step before sending fails, the call is refused. No other package sends
// clients' messages to servers, except messages that are allowed without a policy rule.
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
	"github.com/sluice-mesh/sluice/services/gateway/internal/arguments"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/decisioncache"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Deps are the dependencies of a [Pipeline]. Every field is required.
type Deps struct {
	Policy    policyv1.PolicyServiceClient
	Decisions *decisioncache.Cache
	Limiter   ratelimitv1.RateLimitServiceClient
	Journal   attempt.Journal
	Arguments *arguments.Store
	Approvals *approvals.Client
	Tracer    trace.Tracer
	Meters    *meters.Meters
	Log       *slog.Logger
}

// Pipeline executes calls. It is safe for concurrent use.
type Pipeline struct {
	deps      Deps
	attempts  *attempt.Client
	approvals *approvals.Manager
	refusals  refusalCounter
	exempt    *exemptCounter
	// stop cancels stopCtx when calls in flight must end.
	stopCtx context.Context
	stop    context.CancelFunc
}

// New returns a pipeline, or an error if a dependency is missing.
func New(deps Deps) (*Pipeline, error) {
	if deps.Meters == nil || deps.Log == nil || deps.Arguments == nil {
		return nil, errors.New("pipeline: every dependency is required")
	}
	attempts, err := attempt.NewClient(attempt.Deps{Policy: deps.Policy, Decisions: deps.Decisions, Limiter: deps.Limiter, Journal: deps.Journal, Tracer: deps.Tracer, Log: deps.Log})
	if err != nil {
		return nil, err
	}
	approved, err := approvals.New(deps.Approvals, attempts, deps.Log)
	if err != nil {
		return nil, err
	}
	p := &Pipeline{deps: deps, attempts: attempts, approvals: approved, refusals: newRefusalCounter(), exempt: newExemptCounter()}
	p.stopCtx, p.stop = context.WithCancel(context.Background())
	return p, nil
}

// NewValidity returns the validity of a response that the gateway is about to request from the policy service. The
// response is valid for the same period as a decision.
func (p *Pipeline) NewValidity() decisioncache.Validity { return p.deps.Decisions.NewValidity() }

// Drain makes the gateway stop holding calls that wait for approvers. Each of these calls is refused, and the refusal
// contains the id of the call's approval.
func (p *Pipeline) Drain() { p.approvals.Drain() }

// IsMiscounting reports whether calls with rate limits are currently refused because two instances of the ratelimit
// service answer alternately.
func (p *Pipeline) IsMiscounting() bool { return p.attempts.IsMiscounting() }

// Stop cancels all calls that were sent to servers, and all later calls. The journal records their outcomes as unknown,
// and the callers receive answers. Stop does not wait for the calls to end.
func (p *Pipeline) Stop() {
	p.approvals.Stop()
	p.stop()
}

// Wait waits until all outcomes have been reported to the approval service. The caller must make sure that no call is
// in flight. If ctx is cancelled, Wait cancels the remaining reports. The gateway sends them after its next start, when
// it replays the journal.
func (p *Pipeline) Wait(ctx context.Context) { p.approvals.Wait(ctx) }

// WaitFor waits until approvers have decided on an approval, or until the hold time for the client is over. It does not
// execute the call.
func (p *Pipeline) WaitFor(ctx context.Context, w approvals.WaitRequest) (*approvalv1.Approval, *refusal.Refusal) {
	return p.approvals.WaitDecision(ctx, w)
}

// Approval returns the current state of one of the principal's approvals.
func (p *Pipeline) Approval(ctx context.Context, who *identityv1.Principal, approval string) (*approvalv1.Approval, *refusal.Refusal) {
	return p.approvals.Approval(ctx, who, approval)
}

// Withdraw cancels one of the principal's approvals. The approval must be pending, or approved and not yet claimed.
func (p *Pipeline) Withdraw(ctx context.Context, who *identityv1.Principal, approval, reason string) error {
	return p.approvals.Withdraw(ctx, who, approval, reason)
}

// Replay reports the outcomes of calls to the approval service. The calls are those whose outcomes had not been
// reported when the gateway last stopped. Replay retries until the service answers or ctx is cancelled. The pipeline
// can execute calls while Replay is running.
func (p *Pipeline) Replay(ctx context.Context, calls []approvals.OpenCall) error {
	return p.approvals.Replay(ctx, calls)
}

// Result is the result of a call. Exactly one of Answer and Refusal is set.
type Result struct {
	// Answer is the server's answer. Status is the HTTP status of that answer, or 0 if the transport is not HTTP.
	Answer *jsonrpc.Answer
	Status int
	// Refusal is the reason why there is no answer.
	Refusal *refusal.Refusal
	// ID is the id of the recorded decision. It is set even if the policy service has not evaluated the call. Decision
	// is the policy service's decision, or nil if there is none.
	ID       string
	Decision *policyv1.Decision
	// Held is how long the gateway held the call while it waited for approvers.
	Held time.Duration
	// StreamEnded is true if the server has closed its stream before the answer without sending an event id. Such a
	// server expects the client to reconnect, but the gateway needs an event id to resume the stream.
	StreamEnded bool
	// Approved is true if a person has approved this particular call. It is false if an approval covers several calls.
	Approved bool
	// Unrecorded is true if the journal does not contain the call's outcome yet.
	Unrecorded bool
}

// Do executes a call. The caller must not modify the call after passing it to Do. Do returns when the call has ended,
// even if ctx is cancelled earlier. In MCP revisions with sessions, a call continues when its client disconnects.
func (p *Pipeline) Do(ctx context.Context, call *attempt.Call) Result {
	// callerCtx is cancelled when the caller disconnects. The call itself continues.
	callerCtx := ctx
	// The span is set again, because finding it through WithoutCancel is slow.
	ctx = trace.ContextWithSpan(context.WithoutCancel(ctx), trace.SpanFromContext(ctx))
	a, refused := p.admit(ctx, callerCtx, attempt.New(call))
	if refused != nil {
		return p.refuse(ctx, a, refused)
	}
	a = p.attempts.ReserveObserved(ctx, a)
	a, err := p.recordArguments(ctx, a)
	if err == nil {
		err = p.attempts.RecordIntent(ctx, a)
	}
	if err != nil {
		p.approvals.ReleaseUnsent(ctx, a, "its intent could not be recorded")
		return p.refuse(ctx, a, p.attempts.NotSent(ctx, a, err))
	}
	span := trace.SpanFromContext(ctx)
	spans.Decision(span, a.ID, "", a.Decision, a.Lease)
	if a.Claim != nil {
		spans.Approval(span, a.Claim.GetId(), a.HeldFor)
	}
	p.deps.Meters.CountAllowed(ctx)
	p.reportObserved(ctx, a)
	return p.forward(ctx, a)
}

// admit asks the policy service to evaluate a call, requests an approval if the policy requires one, and reserves
// limits. If the principal's refusals are no longer recorded individually, admit first waits until no other call of the
// principal is being evaluated.
func (p *Pipeline) admit(ctx, callerCtx context.Context, a attempt.Attempt) (_ attempt.Attempt, refused *refusal.Refusal) {
	if a.Stale {
		return a, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	turn, refused := p.refusals.takeSlot(callerCtx, offenderOfCall(a.Call))
	if refused != nil {
		return a, refused
	}
	defer func() { turn.end(refused != nil) }()
	if a.HidesTools {
		if a, refused = p.mustBeListed(ctx, a); refused != nil {
			return a, refused
		}
	}
	if a, refused = p.judge(ctx, a); refused != nil {
		return a, refused
	}
	if a, refused = p.redactArguments(ctx, a); refused != nil {
		return a, refused
	}
	switch {
	case a.NeedsApproval():
		turn.end(false) // the call might wait for approvers for a long time
		a, refused = p.approvals.RequestAndClaim(ctx, callerCtx, a)
	default: // a call that the policy denies ends here
		refused = p.approvals.EndSuperseded(ctx, a, a.Refusal())
	}
	if refused == nil && a.Claim != nil { // the policy service has decided again for the claim
		a = addRedactions(ctx, a)
	}
	if refused == nil && a.Claim == nil && a.IsLimited() { // for a claim, the limits are reserved already
		a, refused = p.attempts.Reserve(ctx, a, a.ID)
	}
	return a, refused
}

func (p *Pipeline) refuse(ctx context.Context, a attempt.Attempt, refused *refusal.Refusal) Result {
	refused.ID = p.recordRefusal(ctx, p.attempts.RefusalRecord(ctx, a, refused))
	span := trace.SpanFromContext(ctx)
	spans.Decision(span, refused.ID, enum.NameOrEmpty(refused.Code), a.Decision, a.Lease)
	if asked := refused.Approval; asked != nil {
		spans.Approval(span, asked.ID, a.HeldFor)
	}
	p.deps.Meters.CountRefused(ctx, refused.Code)
	p.reportObserved(ctx, a)
	return Result{Refusal: refused, ID: refused.ID, Decision: a.Decision, Held: a.HeldFor}
}

// reportObserved counts a call that would have had a different result if the rules with mode: observe were enforced. It
// also adds that result to the call's span.
func (p *Pipeline) reportObserved(ctx context.Context, a attempt.Attempt) {
	if would := a.Observed(); would != (journal.Observed{}) {
		spans.Observed(trace.SpanFromContext(ctx), would)
		p.deps.Meters.CountObserved(ctx, would.Effect)
	}
}

// RecordRefusal records a request from an authenticated caller that was refused before the policy service evaluated it.
// It returns the id of the refusal's record.
func (p *Pipeline) RecordRefusal(ctx context.Context, r attempt.RefusedRequest) string {
	p.deps.Meters.CountRefused(ctx, r.Code)
	return p.recordRefusal(ctx, r.Record(ctx))
}
