package dispatch

import (
	"context"
	"errors"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// Refuse records the refusal of the message and returns it as the response.
func (x *Exchange) Refuse(ctx context.Context, refused *refusal.Refusal) Response {
	record := attempt.RefusedRequest{Principal: x.Principal, Server: spans.Clip(x.ServerName), Code: refused.Code, Message: refused.Message, Bytes: x.Size}
	if x.Message != nil && x.Message.Kind != jsonrpc.Invalid {
		record.Principal, record.Method, record.Name, record.Bytes = x.ActingPrincipal(), x.Message.Method, jsonrpc.RecordName(x.Message), len(x.Message.Raw)
	}
	refused.ID = x.Deps.Pipeline.RecordRefusal(ctx, record)
	return x.RefusedResponse(ctx, refused)
}

// RefusedResponse returns the response to a refused request. Unlike [Exchange.Refuse], it does not record the refusal.
func (x *Exchange) RefusedResponse(ctx context.Context, refused *refusal.Refusal) Response {
	to := refusal.Request{ResultType: x.ResultType}
	if x.Message != nil {
		to.ID, to.Method = x.ID(), x.Message.Method
	}
	span, failure := trace.SpanFromContext(ctx), ""
	if !refused.IsProtocolError && to.Method == mcp.MethodToolsCall {
		failure = spans.ToolError(span)
	} else {
		failure = spans.Error(span, refused.RPCCode())
	}
	body, err := refused.Answer(to)
	out := x.OwnResponse(ctx, body, err)
	if err == nil {
		out.Status = refused.Status()
	}
	out.Refusal, out.ErrorType = refused, failure
	return out
}

// OwnResponse returns a response with a body that the gateway has encoded. err is the error of the encoding. If it is
// not nil, the response has HTTP status 500.
func (x *Exchange) OwnResponse(ctx context.Context, body []byte, err error) Response {
	if err != nil {
		x.Deps.Log.ErrorContext(ctx, "answer could not be encoded", "error", err)
		return Response{Status: http.StatusInternalServerError}
	}
	return Response{Body: [][]byte{body}}
}

// Edited returns a response with a server's answer, to which it applies the given edits. They must include the edits
// from [jsonrpc.Answer.Clean].
func (x *Exchange) Edited(ctx context.Context, a *jsonrpc.Answer, edits []jsonrpc.Edit) Response {
	edits, err := x.addNameEdits(a, x.Message.Method, edits)
	var body [][]byte
	if err == nil {
		body, err = jsonrpc.PlanEdits(a.Raw, edits...)
	}
	if errors.Is(err, ErrUnread) { // the caller has disconnected, or too many messages for the caller wait for a time slice
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_OUTCOME_UNKNOWN, Message: "the server answered, but this caller waits for too many large answers; read them first."})
	}
	if err != nil {
		x.Deps.Log.WarnContext(ctx, "answer was not passed on", "server", x.ServerName, "mcp_method", x.Message.Method, "error", err)
		return x.RefusedResponse(ctx, x.UnusableAnswer(ctx, "the server answered, but the answer can't be passed on: "+err.Error()+"."))
	}
	span := trace.SpanFromContext(x.ClientCtx) // ctx contains the same span, but looking it up there needs an allocation
	return Response{Body: body, ErrorType: spans.Answer(span, a)}
}

// addNameEdits adds the edits that replace the server's names with the client's names. m is an answer to a request with
// the given method, or a notification.
func (x *Exchange) addNameEdits(m *jsonrpc.Answer, method string, edits []jsonrpc.Edit) ([]jsonrpc.Edit, error) {
	names, err := x.Addressing.Rename(method, m.Raw, edits)
	return append(edits, names...), err
}

// ErrUnread means that a message was not parsed, because the caller has disconnected or too many messages for the
// caller wait for a time slice.
var ErrUnread = errors.New("the answer was not read")
