package edge

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/telemetry"
)

// maxPassing is how large a message may be that needs no rule, in bytes. What it may
// say that anybody acts on is far shorter.
const maxPassing = 64 << 10

// methodAnswer is how a client's answers are called where they are counted.
const methodAnswer = "response"

// passes tells whether the message at hand needs no rule.
func (x *exchange) passes() bool {
	return x.msg.Kind == gate.Response || mcp.AlwaysPasses(x.msg.Method) || x.msg.Method == mcp.MethodToolsCall && x.msg.Name == mcp.ToolApprovalWait
}

// checkSize refuses what needs no rule and is large all the same.
func (x *exchange) checkSize() *rejection {
	if !x.passes() || len(x.msg.Raw) <= maxPassing {
		return nil
	}
	refused := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_BODY_TOO_LARGE)
	refused.message = fmt.Sprintf("a message of this kind may have %d bytes.", maxPassing)
	return refused
}

// admitted counts a message that needs no rule, under a method of a closed list. Where
// its sender has sent too many, it is refused, on record.
func (x *exchange) admitted(ctx context.Context, method string) bool {
	refused := x.deps.Pipeline.Pass(pipeline.Passing{Principal: x.principal, Server: x.server, Method: method, Bytes: len(x.msg.Raw)})
	switch {
	case refused == nil:
		return true
	case x.msg.Kind == gate.Request:
		x.turnDown(ctx, x.newWriter(), refused)
	default:
		x.drop(ctx, refused.Code)
		x.accepted()
	}
	return false
}

// standing is what the caller could come by on the server; an error where policy
// can't be asked. Whatever passes without a rule depends on it.
func (x *exchange) standing(ctx context.Context) (reach.Standing, error) {
	if x.stale {
		return reach.Standing{}, errStale
	}
	said, err := x.reach.Of(ctx, x.principal, x.server)
	if err != nil {
		x.deps.Log.WarnContext(ctx, "policy did not say whether anything is in a caller's reach", "server", x.server, "error", err)
	}
	return said, err
}

// pong answers a ping. Whether the server is there is none of it: a client learns that
// from its calls.
func (x *exchange) pong(ctx context.Context) {
	if x.stale {
		x.turnDown(ctx, x.newWriter(), policyAway())
		return
	}
	x.newWriter().message(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, x.id()))
}

// traced returns a request of the gateway's own in the trace of ctx, whose answer has
// that room.
func traced(ctx context.Context, req upstream.Request, has *room.Holding) upstream.Request {
	req.TraceParent, req.Room = telemetry.TraceParent(trace.SpanContextFromContext(ctx)), has
	return req
}

// addressed are the edits that make an answer to a request of the gateway's own one
// to the client's.
func (x *exchange) addressed(answer *gate.Answer, edits []gate.Edit) []gate.Edit {
	return append(edits, gate.Edit{Span: answer.ID, With: x.id()})
}
