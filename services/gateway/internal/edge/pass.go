package edge

import (
	"context"
	"fmt"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// maxPassing is the maximum size of a message that needs no rule, in bytes.
const maxPassing = 64 << 10

// methodAnswer is the method under which answers of clients are counted.
const methodAnswer = "response"

// passes reports whether the message needs no rule.
func (x *core) passes() bool {
	return x.msg.Kind == gate.Response || mcp.AlwaysPasses(x.msg.Method) || x.msg.Method == mcp.MethodListen || x.msg.Method == mcp.MethodToolsCall && x.msg.Name == mcp.ToolApprovalWait || x.era.isOwnTask()
}

// admitted counts a message that needs no rule, under a method of a closed list. It returns nil, or the response to a
// message whose sender has sent too many.
func (x *core) admitted(ctx context.Context, method string) *dispatch.Response {
	refused := x.Deps.Pipeline.Pass(pipeline.Passing{Principal: x.Principal, Server: x.server, Method: method, Bytes: len(x.msg.Raw)})
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

// pong answers a ping. The answer does not depend on the server; a client learns from its calls whether the server is
// available.
func (x *core) pong(ctx context.Context) dispatch.Response {
	if x.Stale {
		return x.refuse(ctx, policyAway())
	}
	return x.own(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, x.id()), nil)
}

// addressed adds the edit that makes an answer to the gateway's own request an answer to the client's.
func (x *core) addressed(answer *gate.Answer, edits []gate.Edit) []gate.Edit {
	return append(edits, gate.Edit{Span: answer.ID, With: x.id()})
}

// tooLarge refuses a message that has more than maxPassing bytes; nil otherwise.
func (x *core) tooLarge() *refusal.Refusal {
	if len(x.msg.Raw) <= maxPassing {
		return nil
	}
	return refusal.ProtocolError(commonv1.Code_CODE_BODY_TOO_LARGE, fmt.Sprintf("a message of this kind may have %d bytes.", maxPassing))
}
