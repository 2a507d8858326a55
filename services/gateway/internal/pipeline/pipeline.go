// Package pipeline is the life of a call: decide, wait for approval, reserve,
// record the intent, forward, record the outcome, settle. Where any of it can't
// be done the call is refused; there is no other way to an upstream.
package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/meters"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/wait"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// peerTimeout bounds each question to another service. One that is away is
	// known at once; this is for one that hangs, and longer than a busy machine
	// takes.
	peerTimeout = time.Second
	// settleTimeout bounds giving a reservation back.
	settleTimeout = time.Second
)

// A Journal records what was decided and what came of it.
type Journal interface {
	// Intent records that a call is about to be sent. On an error it must not be.
	Intent(ctx context.Context, r *journal.Record) error
	// Outcome records what came of a call.
	Outcome(ctx context.Context, r *journal.Record) error
	// Refusal records that a call was refused.
	Refusal(ctx context.Context, r *journal.Record) error
	// Claim records that an approved call is about to be claimed. On an error it must
	// not be.
	Claim(ctx context.Context, r *journal.Record) error
	// Settled records that nothing is left to be told about an approved call.
	Settled(ctx context.Context, r *journal.Record) error
	// Passed records how many messages that need no rule came.
	Passed(ctx context.Context, r *journal.Record) error
	// HMAC returns the keyed digest by which arguments are recorded.
	HMAC(b []byte) string
}

// Deps are the live objects that a [Pipeline] works with. Every field is
// required.
type Deps struct {
	Policy  policyv1.PolicyServiceClient
	Limiter ratelimitv1.RateLimitServiceClient
	Journal Journal
	Waiter  *wait.Waiter
	Tracer  trace.Tracer
	Meters  *meters.Meters
	Log     *slog.Logger
}

// Pipeline carries calls out. It is safe for concurrent use.
type Pipeline struct {
	deps   Deps
	abuse  abuse
	passed passed
	// cut ends when calls on their way are to end, which stop makes it.
	cut  context.Context
	stop context.CancelFunc
	// draining ends when calls are to be held no longer, which drain makes it.
	draining context.Context
	drain    context.CancelFunc
	// telling are the outcomes of approved calls that are being told.
	telling sync.WaitGroup
}

// New returns a pipeline.
func New(deps Deps) (*Pipeline, error) {
	if deps.Policy == nil || deps.Limiter == nil || deps.Journal == nil || deps.Waiter == nil || deps.Tracer == nil || deps.Meters == nil || deps.Log == nil {
		return nil, errors.New("pipeline: every dependency is required")
	}
	p := &Pipeline{deps: deps, abuse: abuse{stretches: make(map[principal.Key]*stretch)}, passed: passed{by: make(map[principal.Key]*minute)}}
	p.cut, p.stop = context.WithCancel(context.Background())
	p.draining, p.drain = context.WithCancel(context.Background())
	return p, nil
}

// Drain lets go of the calls that wait for people: they get their tickets.
func (p *Pipeline) Drain() { p.drain() }

// Stop ends the calls that are with their servers, now and from now on: that
// their outcome is not known is recorded, and their callers are told. It does not
// wait for them.
func (p *Pipeline) Stop() {
	p.drain()
	p.stop()
}

// Wait waits until the approval service was told of every call, or ctx ends; what it
// was not told then a replay tells it. No call may be under way.
func (p *Pipeline) Wait(ctx context.Context) {
	defer context.AfterFunc(ctx, p.stop)()
	p.telling.Wait()
}

// A Requester sends requests to a server, as [upstream.Conn] does.
type Requester interface {
	Request(ctx context.Context, req upstream.Request, events func(message []byte)) (upstream.Answer, error)
}

// Call is one request that passed the gate.
type Call struct {
	// Principal is on whose behalf; never nil. Its session and run are set.
	Principal *identityv1.Principal
	// Stale says that the principal's token may have been revoked meanwhile, for
	// the source of the tokens is away. The call is refused.
	Stale bool
	// Revoked tells the same of a later time, and whether the token was: for calls
	// that have waited.
	Revoked func() bool
	// Server is where the call goes, Transport how it is reached (`http` or
	// `stdio`), and Version the protocol revision of the session.
	Server, Transport, Version string
	// Client is the name that the client gives itself; a claim.
	Client string
	// Message is the request as it was judged.
	Message *gate.Message
	// Received is when its last byte came.
	Received time.Time
	// Timeout bounds the upstream's work, unless policy says otherwise.
	Timeout time.Duration
	// Conn is the session with the upstream, and Room what its answer takes.
	Conn Requester
	Room *room.Holding
	// Events takes what the upstream sends before its answer; may be nil.
	Events func(message []byte)
	// Held is called where the call is about to wait for a person, and Progress while
	// it does. Either may be nil.
	Held     func()
	Progress func(n int)
	// Confirm asks whoever sits at the agent; nil where the client can't.
	Confirm wait.Confirm
	// Identity is what stands behind the server's name, as approvals are bound to it.
	Identity string
	// Listing tells whether the caller's list has the tool; nil where nothing is hidden
	// from the caller, and for other methods. Errors: [ErrUnlisted], or that policy
	// can't be asked.
	Listing func(ctx context.Context) (Listing, error)
	// Definition returns the digest of the tool's definition: as the session listed it
	// or, where it has not or now is set, as the server lists it now. It is nil where
	// the server lists no such tool.
	Definition func(ctx context.Context, now bool) ([]byte, error)
}

// Result is what came of a call. Exactly one of Answer and Refusal is set.
type Result struct {
	// Answer is the upstream's.
	Answer *gate.Answer
	// Refusal says why there is none.
	Refusal *refusal.Refusal
	// Held is for how long the call was held open for people.
	Held time.Duration
	// Unrecorded says that the call ran and that its outcome could not be recorded
	// yet.
	Unrecorded bool
}

// run is one call on its way.
type run struct {
	*Pipeline
	Call

	// caller ends when the caller has gone.
	caller   context.Context //nolint:containedctx // the call's own goes on without it
	id       string
	decision *policyv1.Decision
	lease    *ratelimitv1.Lease
	approved *approved // nil for a call that no person was asked about
	held     held
	// endTurn lets the principal's next call be judged; it may be called again.
	endTurn func(refused bool)
}

// Do carries a call out. It returns when the answer is there, also where ctx ends
// before: on the protocol's 2025 revisions a client that hangs up cancels
// nothing, neither the call nor that it is counted.
func (p *Pipeline) Do(ctx context.Context, call Call) (result Result) {
	r := &run{Pipeline: p, Call: call, caller: ctx, id: newID()}
	defer func() { result.Held = r.held.total }()
	ctx = trace.ContextWithSpan(context.WithoutCancel(ctx), trace.SpanFromContext(ctx)) // where it is found at once
	if call.Stale {
		return r.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE})
	}
	for _, step := range []func(context.Context) *refusal.Refusal{r.takeTurn, r.exists, r.decide, r.await, r.reserve} {
		if refused := step(ctx); refused != nil {
			r.endTurn(true)
			return r.refuse(ctx, refused)
		}
	}
	r.endTurn(false)
	if err := p.written(ctx, spans.JournalIntent, r.intent(ctx), p.deps.Journal.Intent); err != nil {
		r.neverSent(ctx, "its intent could not be recorded")
		return r.refuse(ctx, r.unrecorded(ctx, err))
	}
	spans.Decision(trace.SpanFromContext(ctx), r.id, "", r.decision, r.lease)
	if r.approved != nil {
		spans.Approval(trace.SpanFromContext(ctx), r.approved.GetId(), r.held.total)
	}
	p.deps.Meters.Allowed(ctx)
	return r.forward(ctx)
}

// newID returns a decision's identifier: a UUID whose order is that of time.
func newID() string { return uuid.Must(uuid.NewV7()).String() }

// decide asks policy and refuses what it does not let pass.
func (r *run) decide(ctx context.Context) *refusal.Refusal {
	if refused := r.judge(ctx); refused != nil {
		return refused
	}
	refused := r.verdict()
	if refused != nil && r.denies() {
		r.redeem(ctx) // what people approved before has ended
	}
	return refused
}

// judge asks policy, once.
func (r *run) judge(ctx context.Context) *refusal.Refusal {
	_, refused := r.ask(ctx, &policyv1.DecideCallRequest{Call: r.call(nil)})
	return refused
}

// ask puts a question to policy, whose answer is the run's decision.
func (r *run) ask(ctx context.Context, req *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(authn.OnBehalfOf(ctx, r.Principal), peerTimeout)
	defer cancel()
	resp, err := r.deps.Policy.DecideCall(ctx, req)
	if err != nil {
		r.deps.Log.WarnContext(ctx, "policy did not decide", "decision_id", r.id, "error", err)
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
	}
	r.decision = resp.GetDecision()
	return resp, nil
}

// call is the call as policy and people judge it.
func (r *run) call(definition []byte) *policyv1.Call {
	return &policyv1.Call{
		Method: r.Message.Method, Server: r.Server, Name: name(r.Message),
		ParamsJson: string(r.Message.Params.Of(r.Message.Raw)), DefinitionDigest: definition,
	}
}

// judging returns a way to ask policy about the call, signed for the approval service:
// of a tool of this definition.
func (r *run) judging(definition []byte) wait.Judge {
	return func(ctx context.Context, approval string, attempt int32) (*policyv1.DecideCallResponse, *refusal.Refusal) {
		return r.ask(ctx, &policyv1.DecideCallRequest{
			Call: r.call(definition), Attest: &policyv1.Attest{ServerIdentity: r.Identity, ApprovalId: approval, Attempt: attempt},
		})
	}
}

// verdict refuses what the decision does not let pass, were it not for a person.
func (r *run) verdict() *refusal.Refusal {
	switch r.decision.GetEffect() {
	case policyv1.Effect_EFFECT_ALLOW, policyv1.Effect_EFFECT_REQUIRE_APPROVAL:
		if r.decision.GetHidden() { // a decision that says both lets nothing through
			return r.denied(commonv1.Code_CODE_TOOL_UNKNOWN)
		}
		return r.unknownTerms()
	case policyv1.Effect_EFFECT_DENY:
		return r.denied(r.decision.GetCode())
	case policyv1.Effect_EFFECT_UNSPECIFIED:
		fallthrough
	default:
		return r.denied(commonv1.Code_CODE_POLICY_UNAVAILABLE)
	}
}

// unknownTerms refuses a decision whose terms this gateway can't carry out:
// leaving one out would let more through than policy said.
func (r *run) unknownTerms() *refusal.Refusal {
	d := r.decision
	if len(d.GetRedactions()) == 0 && !d.GetStrictSchema() && !slices.ContainsFunc(d.GetLimits(), isUnknown) {
		return nil
	}
	refused := r.denied(commonv1.Code_CODE_POLICY_UNAVAILABLE)
	refused.Message = "the policy asks for something that this gateway can't do yet; upgrade the gateway."
	return refused
}

// denied builds a refusal of what the decision says.
func (r *run) denied(code commonv1.Code) *refusal.Refusal {
	if code == commonv1.Code_CODE_UNSPECIFIED {
		code = commonv1.Code_CODE_DENIED_BY_DEFAULT
	}
	refused := &refusal.Refusal{
		Code:           code,
		Message:        r.decision.GetMessage(),
		Rule:           r.decision.GetRule(),
		PolicyRevision: r.decision.GetPolicyRevision(),
	}
	if r.decision.GetHidden() || refused.Code == commonv1.Code_CODE_TOOL_UNKNOWN { // a hidden tool answers as one that is not there
		refused.Code, refused.Message, refused.Rule = commonv1.Code_CODE_TOOL_UNKNOWN, "", nil
	}
	return refused
}

// refuse records a refusal and makes it the result.
func (r *run) refuse(ctx context.Context, refused *refusal.Refusal) Result {
	refused.ID = r.recordRefusal(ctx, r.refusal(ctx, refused))
	spans.Decision(trace.SpanFromContext(ctx), refused.ID, enum.Given(refused.Code), r.decision, r.lease)
	if a := refused.Approval; a != nil {
		spans.Approval(trace.SpanFromContext(ctx), a.ID, r.held.total)
	}
	r.deps.Meters.Refused(ctx, refused.Code)
	return Result{Refusal: refused}
}

// name returns what a request names, which is what policy matches.
func name(m *gate.Message) string {
	if m.URI != "" {
		return m.URI
	}
	return m.Name
}
