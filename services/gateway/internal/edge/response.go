package edge

import (
	"context"
	"errors"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// refuse records a refusal of the message, and returns it as the response.
func (x *core) refuse(ctx context.Context, refused *refusal.Refusal) dispatch.Response {
	record := attempt.Unjudged{Principal: x.Principal, Server: spans.Clip(x.server), Code: refused.Code, Message: refused.Message, Bytes: x.size}
	if x.msg != nil && x.msg.Kind != gate.Invalid {
		record.Principal, record.Method, record.Name, record.Bytes = x.acting(), x.msg.Method, gate.Recorded(x.msg), len(x.msg.Raw)
	}
	refused.ID = x.Deps.Pipeline.RecordRefusal(ctx, record)
	return x.refused(ctx, refused)
}

// refused returns the response to a request whose refusal is on record, or needs no record.
func (x *core) refused(ctx context.Context, refused *refusal.Refusal) dispatch.Response {
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
		out.Status = refused.Status()
	}
	out.Refusal, out.ErrorType = refused, failure
	return out
}

// own returns a response with a body of the gateway; with status 500 if err is set, because the body could not be
// encoded.
func (x *core) own(ctx context.Context, body []byte, err error) dispatch.Response {
	if err != nil {
		x.Deps.Log.ErrorContext(ctx, "answer could not be encoded", "error", err)
		return dispatch.Response{Status: http.StatusInternalServerError}
	}
	return dispatch.Response{Body: [][]byte{body}}
}

// edited returns the response for a server's answer with these edits, which include those of [gate.Answer.Clean].
func (x *core) edited(ctx context.Context, a *gate.Answer, edits []gate.Edit) dispatch.Response {
	edits, err := x.renamed(a, x.msg.Method, edits)
	var body [][]byte
	if err == nil {
		body, err = gate.Plan(a.Raw, edits...)
	}
	if errors.Is(err, errNotRead) { // the caller has disconnected, or waits for too many messages
		return x.refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server answered, but this caller waits for too many large answers; read them first."})
	}
	if err != nil {
		x.Deps.Log.WarnContext(ctx, "answer was not passed on", "server", x.server, "mcp_method", x.msg.Method, "error", err)
		return x.refused(ctx, x.unusable(ctx, "the server answered, but the answer can't be passed on: "+err.Error()+"."))
	}
	return dispatch.Response{Body: body, ErrorType: spans.Answer(trace.SpanFromContext(ctx), a)}
}

// renamed adds the edits that replace the server's names by those that the client knows, in an answer to a method or in
// a notification.
func (x *core) renamed(m *gate.Answer, method string, edits []gate.Edit) ([]gate.Edit, error) {
	names, err := x.addressing.rename(method, m.Raw, edits)
	return append(edits, names...), err
}
