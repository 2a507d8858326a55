package dispatch

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// allowsVendorNotification reports whether the client may receive a notification from the server that MCP does not
// define. The policy service evaluates the notification, and the decision is recorded. If no rule can allow the
// notification, it is dropped without an evaluation or a record, because servers may send many such notifications.
func (x *Exchange) allowsVendorNotification(m *jsonrpc.Answer) bool {
	ctx := x.ClientCtx
	if m.Kind != jsonrpc.Notification || !mcp.IsVendorNotification(m.Method) || x.Session == nil || !x.Deps.Visibility.MayUse(ctx, x.Principal, x.ServerName, m.Method) {
		return false
	}
	read, err := jsonrpc.Parse(m.Raw, x.Deps.Limits)
	if err != nil {
		return false
	}
	// The notification counts toward the limit on the server's requests per minute.
	counted, err := x.Session.ClientRequests.AddFromServer(inputID())
	if err != nil {
		x.Deps.Log.DebugContext(ctx, "server notification dropped", "server", x.ServerName, "why", err)
		return false
	}
	counted.Close()
	return x.Decide(ctx, read, true) == nil
}

// sendVendorNotification handles a notification from the client that MCP does not define. The policy service evaluates
// it, and the decision is recorded. If the notification is allowed, it is sent to the server. gRPC servers and
// stateless servers can't receive such notifications, so the notification is refused.
func (x *Exchange) sendVendorNotification(ctx context.Context) {
	if x.Server.Upstream.Transport() == "grpc" || x.Server.IsStateless() {
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	memory := x.Slot.Answer.Sibling()
	defer memory.Close()
	x.Deps.Pipeline.Do(ctx, &attempt.Call{
		Principal: x.ActingPrincipal(), Stale: x.Stale || x.Revoked(ctx), Credential: x.Credential, Server: x.ServerName, Message: x.Message, Received: time.Now(), Timeout: NotifyTimeout,
		Transport: x.Server.Upstream.Transport(), Version: x.Session.Version, Client: x.ClientName, Upstream: notifier{x.Session.Upstream}, Memory: memory, Identity: x.Server.Identity,
	})
}

type notifier struct{ to *upstream.Session }

// Forward implements [attempt.Forwarder].
func (n notifier) Forward(ctx context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if err := n.to.Notify(ctx, req); err != nil {
		return upstream.Answer{}, err
	}
	answer, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
