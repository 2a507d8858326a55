package edge

import (
	"context"
	"fmt"

	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
)

// maxPassing is how large a message may be that needs no rule, in bytes. What it may
// say that anybody acts on is far shorter.
const maxPassing = 64 << 10

// methodAnswer is how a client's answers are called where they are counted.
const methodAnswer = "response"

// passes reports whether the message at hand needs no rule.
func (x *exchange) passes() bool {
	return x.msg.Kind == gate.Response || mcp.AlwaysPasses(x.msg.Method) || x.msg.Method == mcp.MethodListen || x.msg.Method == mcp.MethodToolsCall && x.msg.Name == mcp.ToolApprovalWait || x.protocol.isOwnTask()
}

// admitted counts a message that needs no rule, under a method of a closed list. It returns nil, or the response to a
// message whose sender has sent too many.
func (x *exchange) admitted(ctx context.Context, method string) *dispatch.Response {
	refused := x.deps.Pipeline.Pass(pipeline.Passing{Principal: x.Principal, Server: x.server, Method: method, Bytes: len(x.msg.Raw)})
	switch {
	case refused == nil:
		return nil
	case x.msg.Kind == gate.Request:
		return new(x.refuse(ctx, refused))
	default:
		x.refuseSilently(ctx, refused.Code)
		return new(dispatch.Accepted())
	}
}

// pong answers a ping. Whether the server is there is none of it: a client learns that
// from its calls.
func (x *exchange) pong(ctx context.Context) dispatch.Response {
	if x.Stale {
		return x.refuse(ctx, policyAway())
	}
	return x.own(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, x.id()), nil)
}

// addressed are the edits that make an answer to a request of the gateway's own one
// to the client's.
func (x *exchange) addressed(answer *gate.Answer, edits []gate.Edit) []gate.Edit {
	return append(edits, gate.Edit{Span: answer.ID, With: x.id()})
}
