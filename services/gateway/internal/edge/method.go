package edge

import (
	"context"
	"errors"
	"net/http"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"

	"go.opentelemetry.io/otel/trace"
)

// notifyTimeout bounds handing a notification to a server.
const notifyTimeout = 5 * time.Second

// call carries a request through the pipeline: tools/call, and every method that
// does not pass by itself.
func (x *exchange) call(ctx context.Context) {
	out := x.newWriter()
	waits, end := x.waits(ctx)
	defer end()
	listing, err := x.listing(ctx)
	result := x.deps.Pipeline.Do(waits, pipeline.Call{
		Principal: x.acting(),
		Stale:     x.stale || err != nil,
		Listing:   listing,
		Revoked:   x.revoked,
		Server:    x.server,
		Message:   x.msg,
		Received:  x.received,
		Timeout:   x.target.Timeout,
		Transport: x.target.Server.Transport(),
		Version:   x.sess.Version,
		Client:    x.sess.Client.Name,
		Conn:      x,
		Room:      &x.has.answer,
		Events:    out.event,
		Held:      out.begin,
		Progress:  out.waiting,
		Confirm:   x.confirm(out),
		Identity:  x.target.Identity,

		Definition: x.definition,
	})
	x.held = result.Held
	if result.Unrecorded {
		out.unrecorded()
	}
	if result.Refusal != nil {
		x.refuse(ctx, out, result.Refusal)
		return
	}
	x.failure = spans.Answer(trace.SpanFromContext(ctx), result.Answer)
	out.answer(ctx, result.Answer)
}

// waits returns a context that ends when the client gives the request up, and a
// function to call when it is answered.
func (x *exchange) waits(ctx context.Context) (context.Context, func()) {
	ctx, giveUp := context.WithCancel(ctx)
	x.under = x.sess.Calls.Begin(gate.IDKey(x.id()), giveUp)
	return ctx, func() {
		x.under.End()
		giveUp()
	}
}

// Request implements [pipeline.Requester]: it sends the call in its session, and notes
// that it did, for nobody is told of the end of one that was not sent.
func (x *exchange) Request(ctx context.Context, req upstream.Request, events func([]byte)) (upstream.Answer, error) {
	x.under.Sent()
	return x.sess.Conn.Request(ctx, req, events)
}

// turnDown refuses a request that has not gone through the pipeline, on record.
func (x *exchange) turnDown(ctx context.Context, out *writer, refused *refusal.Refusal) {
	refused.ID = x.deps.Pipeline.Reject(ctx, pipeline.Rejected{
		Principal: x.acting(), Server: x.server, Method: x.msg.Method, Name: pipeline.Recorded(x.msg),
		Code: refused.Code, Message: refused.Message, Bytes: len(x.msg.Raw),
	})
	x.refuse(ctx, out, refused)
}

// errStale means that the caller's token may have been revoked meanwhile.
var errStale = errors.New("whether the token still counts is not known")

// policyAway is the refusal of what can't be judged.
func policyAway() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
}

// refuse answers a refused request in the form that its method's clients
// understand.
func (x *exchange) refuse(ctx context.Context, out *writer, refused *refusal.Refusal) {
	var body []byte
	var err error
	span := trace.SpanFromContext(ctx)
	if x.msg.Method == mcp.MethodToolsCall {
		x.failure = spans.ToolError(span)
		body, err = refused.ToolResult(x.id())
	} else {
		x.failure = spans.Error(span, mcp.CodeRefused)
		body, err = refused.Error(x.id(), mcp.CodeRefused)
	}
	if err != nil {
		x.deps.Log.ErrorContext(ctx, "refusal could not be written", "error", err)
		out.fail()
		return
	}
	out.message(body)
}

// ask sends a request of the gateway's own for the client's, and brings the answer,
// unless ctx ends.
func (x *exchange) ask(ctx context.Context, req upstream.Request, out *writer) (*gate.Answer, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, x.target.Timeout)
	defer cancel()
	answer, err := x.sess.Conn.Request(ctx, traced(ctx, req, &x.has.answer), out.event)
	if err != nil {
		return nil, x.silent(ctx, answer, err)
	}
	x.failure = spans.Answer(trace.SpanFromContext(ctx), answer.Message)
	return answer.Message, nil
}

// silent logs that a server gave no usable answer, and is the refusal that follows.
func (x *exchange) silent(ctx context.Context, answer upstream.Answer, err error) *refusal.Refusal {
	x.deps.Log.WarnContext(ctx, "server did not answer", "server", x.server, "mcp_method", x.msg.Method, "why", upstream.Why(answer, err))
	x.deps.Log.DebugContext(ctx, "server did not answer", "server", x.server, "error", err) // it may quote what a server wrote
	return unanswered(err)
}

// unanswered is the refusal of a request that is no call and has no answer.
func unanswered(err error) *refusal.Refusal {
	refused := &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	switch {
	case errors.Is(err, upstream.ErrTimeout):
		refused.Code = commonv1.Code_CODE_UPSTREAM_TIMEOUT
	case errors.Is(err, upstream.ErrSlow):
		refused.Message = upstream.ErrSlow.Error() + "."
	case errors.Is(err, room.ErrFull):
		refused.Message = room.ErrFull.Error() + "; read others first."
	}
	return refused
}

// notify takes a notification. Any that does not always pass is refused, and what is
// refused is on record alone: a notification has no answer.
func (x *exchange) notify(ctx context.Context) {
	defer x.accepted()
	sent := false
	if x.msg.Method == mcp.MethodCancelled { // a call that waits for a person is not to run by itself
		sent = x.sess.Calls.GiveUp(gate.IDKey(x.msg.RequestID.Of(x.msg.Raw)))
	}
	if !mcp.AlwaysPasses(x.msg.Method) {
		x.drop(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	said, err := x.standing(ctx)
	switch {
	case err != nil:
		x.drop(ctx, commonv1.Code_CODE_POLICY_UNAVAILABLE)
	case !said.Some:
	case sent:
		x.tell(ctx, upstream.Cancelled(x.msg.RequestID.Of(x.msg.Raw)))
	case x.msg.Method == mcp.MethodInitialized && !x.sess.Ready.Swap(true):
		x.tell(ctx, upstream.Initialized())
	} // progress is of requests to clients, which none gets
}

// tell sends a notification of the gateway's own for the client's.
func (x *exchange) tell(ctx context.Context, n upstream.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	if err := x.sess.Conn.Notify(ctx, traced(ctx, n, nil)); err != nil {
		x.deps.Log.WarnContext(ctx, "notification not delivered", "server", x.server, "mcp_method", x.msg.Method, "why", upstream.Why(upstream.Answer{}, err))
		x.deps.Log.DebugContext(ctx, "notification not delivered", "server", x.server, "error", err) // as in silent
	}
}

// drop records that a notification goes no further.
func (x *exchange) drop(ctx context.Context, code commonv1.Code) {
	x.deps.Pipeline.Reject(ctx, pipeline.Rejected{
		Principal: x.acting(), Server: x.server, Method: x.msg.Method, Code: code, Bytes: len(x.msg.Raw),
	})
}

func (x *exchange) accepted() { x.w.WriteHeader(http.StatusAccepted) }
