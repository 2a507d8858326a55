package edge

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// response is what a message is answered with.
type response struct {
	// body is the JSON-RPC response, in parts; nil for none, as after a notification, or after a stream that has ended.
	body [][]byte
	// status is the HTTP status if no event stream has begun; 0 means 200.
	status int
	// refusal is why the message was refused; nil if the gateway or a server has answered it.
	refusal *refusal.Refusal
	// failure is the type of the error in the answer, as OpenTelemetry's error.type; empty for none.
	failure string
	// session is the id of the session that initialize has opened; empty otherwise.
	session string
	// held is for how long people were waited for, and the client while it answered its server.
	held time.Duration
	// unrecorded reports whether the outcome of the call is not on record yet.
	unrecorded bool
	// detached reports whether the client has to come back for the answer, because its server ended the stream so.
	detached bool
	// id and decision are those of a call that policy has decided; zero otherwise.
	id       string
	decision *policyv1.Decision
}

// accepted is the response to a notification, or to an answer of the client.
func accepted() response { return response{status: http.StatusAccepted} }

// refuse records a refusal of the message, and returns it as the response.
func (x *exchange) refuse(ctx context.Context, refused *refusal.Refusal) response {
	record := attempt.Unjudged{Principal: x.Principal, Server: spans.Clip(x.server), Code: refused.Code, Message: refused.Message, Bytes: x.size}
	if x.msg != nil && x.msg.Kind != gate.Invalid {
		record.Principal, record.Method, record.Name, record.Bytes = x.acting(), x.msg.Method, gate.Recorded(x.msg), len(x.msg.Raw)
	}
	refused.ID = x.deps.Pipeline.RecordRefusal(ctx, record)
	return x.refused(ctx, refused)
}

// refused is the response to a request whose refusal is on record, or needs no record.
func (x *exchange) refused(ctx context.Context, refused *refusal.Refusal) response {
	to := refusal.Request{ResultType: x.resultType}
	if x.msg != nil {
		to.ID, to.Method = x.id(), x.msg.Method
	}
	span, failure := trace.SpanFromContext(ctx), ""
	if !refused.IsProtocolError && to.Method == mcp.MethodToolsCall {
		failure = spans.ToolError(span)
	} else {
		failure = spans.Error(span, refused.RPCCode())
	}
	body, err := refused.Answer(to)
	out := x.own(ctx, body, err)
	if err == nil {
		out.status = refused.Status()
	}
	out.refusal, out.failure = refused, failure
	return out
}

// own is a response with a body of the gateway's own, or with status 500 if it could not be written.
func (x *exchange) own(ctx context.Context, body []byte, err error) response {
	if err != nil {
		x.deps.Log.ErrorContext(ctx, "answer could not be written", "error", err)
		return response{status: http.StatusInternalServerError}
	}
	return response{body: [][]byte{body}}
}

// edited is a server's answer with the edits made, those of [gate.Answer.Clean] among them.
func (x *exchange) edited(ctx context.Context, a *gate.Answer, edits []gate.Edit) response {
	edits, err := x.joined(a, x.msg.Method, edits)
	var body [][]byte
	if err == nil {
		body, err = gate.Plan(a.Raw, edits...)
	}
	if err != nil {
		return x.own(ctx, nil, err)
	}
	return response{body: body, failure: spans.Answer(trace.SpanFromContext(ctx), a)}
}
