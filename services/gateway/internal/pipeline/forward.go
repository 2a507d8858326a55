package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// forward sends the evaluated message to the server and records the outcome. The journal must already contain the
// intent.
func (p *Pipeline) forward(ctx context.Context, a attempt.Attempt) Result {
	defer p.approvals.RenewClaim(ctx, a)()
	answer, err := p.send(ctx, a)
	// gofail: var gatewayAfterSend struct{}
	class, unrecorded := p.attempts.RecordOutcome(ctx, a, answer, err)
	for _, c := range a.Redactor.Counts() {
		p.deps.Meters.CountRedacted(ctx, c.Name, c.N)
	}
	result := Result{Answer: answer.Message, Status: answer.Status, ID: a.ID, Decision: a.Decision, Held: a.HeldFor}
	result.Approved = a.Claim != nil && a.Claim.GetGrantedBy() == ""
	if err != nil {
		result.StreamEnded = errors.Is(err, upstream.ErrStreamEnded)
		p.deps.Log.WarnContext(ctx, "call has no usable answer", "decision_id", a.ID, "server", a.Server, "code", enum.NameOrEmpty(attempt.Code(err)), "why", upstream.PublicReason(answer, err))
		p.deps.Log.DebugContext(ctx, "call has no usable answer", "decision_id", a.ID, "error", upstream.ForLog(err))
		result.Answer = nil
		result.Refusal = &refusal.Refusal{ID: a.ID, Code: attempt.Code(err), Message: attempt.AnswerProblem(answer.Status, err), PolicyRevision: a.Decision.GetPolicyRevision()}
		if errors.Is(err, upstream.ErrCircuitOpen) {
			result.Refusal.RetryAfter = upstream.OpenDuration
		}
		if cause := upstream.CauseOf(err); cause != nil {
			result.Refusal.RetryAfter, result.Refusal.Permanent = cause.RetryAfter, cause.Lasts
		}
		if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
			result.Refusal.RetryAfter = limit.RetryAfter
		}
		if withheld, ok := errors.AsType[*attempt.WithheldError](err); ok {
			result.Refusal = withheld.Refusal
			result.Refusal.ID = a.ID
		}
	}
	if unrecorded != nil {
		p.deps.Log.ErrorContext(ctx, "outcome not recorded yet", "decision_id", a.ID, "error", unrecorded)
		result.Unrecorded = true
	}
	switch {
	case errors.Is(err, upstream.ErrNeverSent):
		p.approvals.ReleaseUnsent(ctx, a, unsentReason(err)).WaitBriefly()
	case a.Claim != nil:
		p.approvals.ReportOutcome(ctx, a, class).WaitBriefly()
	}
	return result
}

// unsentReason returns the reason why a call was not sent, in a form that approvers can read.
func unsentReason(err error) string {
	if _, withheld := errors.AsType[*attempt.WithheldError](err); withheld {
		return "policy refused the call when it was about to be sent, or the caller's token was no longer valid"
	}
	if upstream.IsSignIn(err) {
		return "a person has to sign in at the server first"
	}
	return "the server could not be reached"
}

// sendContext is the context of a request to a server. It has the values of the caller's context. It is cancelled when
// the pipeline stops or the timeout expires. It is not cancelled together with the caller's context.
type sendContext struct {
	context.Context //nolint:containedctx // this type is a context

	values   context.Context //nolint:containedctx // only the values of this context are used
	deadline time.Time       // zero if a PausableDeadline measures the timeout
}

// Deadline implements context.Context.
func (c sendContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

// Value implements context.Context. A value in c.Context takes precedence over a value of the caller's context, because
// package context uses such a value to find the context that cancels c.
func (c sendContext) Value(key any) any {
	if own := c.Context.Value(key); own != nil {
		return own
	}
	return c.values.Value(key)
}

// A server that knows a call's deadline can report a timeout slightly before the gateway does. serverNotice is the
// maximum difference. If a server reports a timeout even earlier, the server has reached a timeout of its own.
const serverNotice = time.Second

// send sends an allowed request to the server. No other function sends callers' requests.
func (p *Pipeline) send(ctx context.Context, a attempt.Attempt) (upstream.Answer, error) {
	timeout, maxTimeout := a.Timeout, a.MaxTimeout
	if d := a.Decision.GetTimeout(); d != nil { // progress notifications do not extend a timeout that the policy sets
		timeout, maxTimeout = d.AsDuration(), 0
	}
	events, deadline := a.Redactor.Events(a.Events()), a.Deadline
	if maxTimeout > timeout && events != nil {
		if deadline == nil {
			deadline = new(upstream.PausableDeadline)
		}
		events = extendOnProgress(events, deadline)
	}
	stopCtx, cancel := context.WithCancelCause(p.stopCtx)
	defer cancel(nil)
	sendCtx := sendContext{Context: stopCtx, values: ctx}
	if deadline != nil {
		deadline.Begin(timeout, maxTimeout, cancel)
		defer deadline.Stop()
	} else {
		sendCtx.deadline = time.Now().Add(timeout)
		defer time.AfterFunc(timeout, func() { cancel(context.DeadlineExceeded) }).Stop()
	}
	if timeout <= 0 { // cancel before sending, so that the cancellation does not race with the request
		cancel(context.DeadlineExceeded)
	}
	ctx, span := spans.Send(sendCtx, p.deps.Tracer, a.Sent, a.Place())
	defer span.End()
	req, err := Prepare(a.Sent, span.SpanContext(), a.DeclaredCapabilities)
	if err != nil {
		return upstream.Answer{}, errors.Join(upstream.ErrNeverSent, err)
	}
	req.Mirrored = a.ParamHeaders
	req.Once = a.Claim != nil // approvers have allowed the call to run once
	req.Room, req.Leave = a.Memory, cancel
	ctx = authn.OnBehalfOf(ctx, a.Principal) // only services of the mesh receive the principal
	req.Permit = p.attempts.Permit(ctx, a)
	// gofail: var gatewayBeforeSend struct{}
	began := time.Now()
	answer, err := a.Upstream.Forward(ctx, req, events)
	answer.Message = a.Redactor.Answer(a.Sent.Method, answer.Message)
	if errors.Is(err, upstream.ErrTimeout) {
		late := timeoutError(a, timeout, maxTimeout, deadline)
		if took := time.Since(began); timeout-took > serverNotice && late.Key != "" {
			late = attempt.TimeoutError{After: took.Round(time.Second), ByServer: true}
		}
		err = fmt.Errorf("%w: %w", late, err)
	}
	if err != nil {
		spans.Failed(span, enum.NameOrEmpty(attempt.Code(err)))
	} else {
		spans.Answer(span, answer.Message)
	}
	return answer, err
}

// extendOnProgress returns a function that passes each message to events. Progress notifications also restart the
// server's timeout.
func extendOnProgress(events func([]byte), deadline *upstream.PausableDeadline) func([]byte) {
	return func(message []byte) {
		if !bytes.Contains(message, []byte("progress")) {
			events(message)
			return
		}
		if m, err := jsonrpc.ReadAnswer(message, jsonrpc.AnswerLimits()); err == nil && m.Kind == jsonrpc.Notification && m.Method == mcp.MethodProgress {
			deadline.Progressed()
		}
		events(message)
	}
}

// timeoutError returns an error that states which timeout the call has exceeded.
func timeoutError(a attempt.Attempt, timeout, maxTimeout time.Duration, deadline *upstream.PausableDeadline) attempt.TimeoutError {
	if a.FromServer {
		return attempt.TimeoutError{}
	}
	if a.Decision.GetTimeout() != nil {
		rule := a.Decision.GetTimeoutRule()
		return attempt.TimeoutError{After: timeout, Key: "the timeout of rule " + rule.GetDocument() + "/" + rule.GetRule()}
	}
	if worked, all := deadline.Worked(); all {
		return attempt.TimeoutError{After: worked.Round(time.Second), Key: "servers." + a.Server + ".max_timeout"}
	}
	return attempt.TimeoutError{After: timeout, Key: "servers." + a.Server + ".timeout", Progress: maxTimeout > timeout}
}

// Prepare returns the request that the gateway sends to the server for an evaluated message. It removes this project's
// keys from `_meta` and replaces the client's trace context with the gateway's. If capabilities is not nil, it also
// replaces the client's capabilities. Everything else is unchanged.
func Prepare(m *jsonrpc.Message, span trace.SpanContext, capabilities []byte) (upstream.Request, error) {
	parent := telemetry.TraceParent(span)
	var carry jsonrpc.Trace
	if m.Meta.TraceParent != "" {
		carry.Parent = parent
	}
	sent, err := m.Outgoing(carry, capabilities)
	return upstream.Request{Message: sent, TraceParent: parent}, err
}
