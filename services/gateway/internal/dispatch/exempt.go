package dispatch

import (
	"context"
	"fmt"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// maxExemptBytes is the maximum size, in bytes, of a message that needs no rule.
const maxExemptBytes = 64 << 10

// MethodResponse is the method name with which clients' responses to servers' requests are counted.
const MethodResponse = "response"

// NeedsNoRule reports whether the message is allowed even if no policy rule allows it.
func (x *Exchange) NeedsNoRule() bool {
	return x.Message.Kind == jsonrpc.Response || mcp.MethodNeedsNoRule(x.Message.Method) || x.Message.Method == mcp.MethodListen || x.Message.Method == mcp.MethodToolsCall && x.Message.Name == mcp.ToolApprovalWait || x.Era.IsOwnTask()
}

// CountExempt counts a message that needs no rule. method is the method name with which the message is counted. It must
// be one of a fixed set of names. CountExempt returns nil if the message is admitted. If the caller has sent too many
// messages, it returns the response to this message.
func (x *Exchange) CountExempt(ctx context.Context, method string) *Response {
	refused := x.Deps.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: x.Principal, Server: x.ServerName, Method: method, Bytes: len(x.Message.Raw)})
	switch {
	case refused == nil:
		return nil
	case x.Message.Kind == jsonrpc.Request:
		return new(x.Refuse(ctx, refused))
	default:
		x.RefuseNotification(ctx, refused.Code)
		return new(Accepted())
	}
}

// AnswerPing responds to a ping from the client. It sends no request to the server, so the response does not show
// whether the server is available.
func (x *Exchange) AnswerPing(ctx context.Context) Response {
	if x.Stale {
		return x.Refuse(ctx, PolicyUnavailable())
	}
	return x.OwnResponse(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{}}`, x.ID()), nil)
}

// WithClientID adds an edit that replaces the id in the server's answer with the id of the client's request. The answer
// contains the id of the gateway's own request.
func (x *Exchange) WithClientID(answer *jsonrpc.Answer, edits []jsonrpc.Edit) []jsonrpc.Edit {
	return append(edits, jsonrpc.Edit{Span: answer.ID, With: x.ID()})
}

// CheckSize returns a refusal if the message is larger than 64 KiB. Otherwise, it returns nil.
func (x *Exchange) CheckSize() *refusal.Refusal {
	if len(x.Message.Raw) <= maxExemptBytes {
		return nil
	}
	return refusal.ProtocolError(commonv1.Code_CODE_BODY_TOO_LARGE, fmt.Sprintf("a message of this kind may have at most %d bytes.", maxExemptBytes))
}
