package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// forward sends the judged bytes on and records what came of them. The intent is
// on record.
func (r *run) forward(ctx context.Context) Result {
	defer r.keep(ctx)()
	answer, err := r.send(ctx)
	// gofail: var gatewayAfterSend struct{}
	outcome := r.outcome(ctx, answer, err)
	result := Result{Answer: answer.Message}
	if err != nil {
		r.deps.Log.WarnContext(ctx, "call has no usable answer", "decision_id", r.id, "server", r.Server, "code", enum.Given(outcomeCode(err)))
		r.deps.Log.DebugContext(ctx, "call has no usable answer", "decision_id", r.id, "error", err) // it may quote what a server wrote
		result = Result{Refusal: &refusal.Refusal{ID: r.id, Code: outcomeCode(err), Message: unusable(answer.Status, err), PolicyRevision: r.decision.GetPolicyRevision()}}
	}
	if err := r.written(ctx, spans.JournalOutcome, outcome, r.deps.Journal.Outcome); err != nil {
		r.deps.Log.ErrorContext(ctx, "outcome not recorded yet", "decision_id", r.id, "error", err)
		result.Unrecorded = true
	}
	if errors.Is(err, upstream.ErrNeverSent) {
		soon(r.neverSent(ctx, "the server could not be reached"))
	} else {
		soon(r.told(ctx, outcome))
	}
	return result
}

// unusable says in words why a server's answer can't be used, as far as its status or
// the gateway tells; empty where neither does.
func unusable(status int, err error) string {
	if errors.Is(err, room.ErrFull) {
		return "the server answered, but there was no room for the answer: read the others first, or make fewer such calls at once. Whether the call ran is not known."
	}
	if errors.Is(err, upstream.ErrSlow) {
		return upstream.ErrSlow.Error() + ". Whether the call ran is not known."
	}
	if status < http.StatusMultipleChoices {
		return ""
	}
	return fmt.Sprintf("the server answered with HTTP status %d; whether the call ran is not known.", status)
}

// send is the one place from which a judged request leaves.
func (r *run) send(ctx context.Context) (upstream.Answer, error) {
	timeout := r.Timeout
	if d := r.decision.GetTimeout(); d != nil {
		timeout = d.AsDuration()
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	defer context.AfterFunc(r.cut, cancel)()
	ctx, span := r.deps.Tracer.Start(ctx, spans.Name(r.Message), trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	spans.Message(span, r.Message, r.place())
	req, err := Prepare(r.Message, span.SpanContext())
	if err != nil {
		return upstream.Answer{}, errors.Join(upstream.ErrNeverSent, err)
	}
	req.Once = r.approved != nil // people have approved one sending
	req.Room = r.Room
	// gofail: var gatewayBeforeSend struct{}
	answer, err := r.Conn.Request(ctx, req, r.Events)
	if err != nil {
		spans.Failed(span, enum.Given(outcomeCode(err)))
	} else {
		spans.Answer(span, answer.Message)
	}
	return answer, err
}

// place is where the call goes, for its span.
func (r *run) place() spans.Place {
	return spans.Place{Server: r.Server, Transport: spans.Transport(r.Transport), Version: r.Version, Session: r.Principal.GetSession()}
}

// Prepare makes what goes upstream of what was judged: the same bytes, save that
// our own `_meta` keys go and that a client's trace context becomes ours.
func Prepare(m *gate.Message, span trace.SpanContext) (upstream.Request, error) {
	parent := telemetry.TraceParent(span)
	var carry gate.Trace
	if m.Meta.TraceParent != "" {
		carry.Parent = parent
	}
	sent, err := m.Outgoing(carry)
	return upstream.Request{Message: sent, TraceParent: parent}, err
}

// widened are the limits of a message that was judged and then spliced: what we
// added must not make it too large.
func widened() gate.Limits {
	limits := gate.DefaultLimits()
	limits.Bytes += 4 << 10
	limits.Tokens += 32
	return limits
}

// outcomeCode says what a caller learns of a call without a usable answer.
func outcomeCode(err error) commonv1.Code {
	switch {
	case errors.Is(err, upstream.ErrNeverSent):
		return commonv1.Code_CODE_UPSTREAM_UNAVAILABLE
	case errors.Is(err, upstream.ErrTimeout):
		return commonv1.Code_CODE_UPSTREAM_TIMEOUT
	default:
		return commonv1.Code_CODE_OUTCOME_UNKNOWN
	}
}

// class says what came of a call, for its record.
func class(a upstream.Answer, err error) journal.ResultClass {
	switch {
	case errors.Is(err, upstream.ErrNeverSent):
		return journal.ResultNeverSent
	case err != nil:
		return journal.ResultUnknown
	case a.Message.Error.Present():
		return journal.ResultProtocolError
	case a.Message.IsError:
		return journal.ResultToolError
	default:
		return journal.ResultOK
	}
}

func millisSince(t time.Time) float64 {
	return float64(time.Since(t)) / float64(time.Millisecond)
}
