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

// allowsVendorNotification decides on and records a server's notification with a method of its own. Without a rule none passes. If
// no rule could allow it, it is dropped without a decision and a record, because servers may send many.
func (x *Exchange) allowsVendorNotification(m *jsonrpc.Answer) bool {
	ctx := x.ClientCtx
	if m.Kind != jsonrpc.Notification || !mcp.IsVendorNotification(m.Method) || x.Session == nil || !x.Deps.Visibility.MayUse(ctx, x.Principal, x.ServerName, m.Method) {
		return false
	}
	read, err := jsonrpc.Parse(m.Raw, x.Deps.Limits)
	if err != nil {
		return false
	}
	counted, err := x.Session.ClientRequests.AddFromServer(inputID()) // counts with the server's requests in a minute
	if err != nil {
		x.Deps.Log.DebugContext(ctx, "server notification dropped", "server", x.ServerName, "why", err)
		return false
	}
	counted.Close()
	return x.Decide(ctx, read, true) == nil
}

// sendVendorNotification decides on and records a client's notification with a method of its own, and sends it to the server if it
// is allowed. Servers over gRPC and servers without sessions get none.
func (x *Exchange) sendVendorNotification(ctx context.Context) {
	if x.Server.Upstream.Transport() == "grpc" || x.Server.IsStateless() {
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	has := x.Slot.Answer.Sibling()
	defer has.Close()
	x.Deps.Pipeline.Do(ctx, attempt.Call{
		Principal: x.Acting(), Stale: x.Stale || x.Revoked(), Revoked: x.Revoked, Server: x.ServerName, Message: x.Message, Received: time.Now(), Timeout: NotifyTimeout,
		Transport: x.Server.Upstream.Transport(), Version: x.Session.Version, Client: x.ClientName, Upstream: notifier{x.Session.Upstream}, Memory: has, Identity: x.Server.Identity,
	})
}

// notifier is the forwarder of notifications, which have no answers.
type notifier struct{ to *upstream.Session }

// Forward implements [attempt.Forwarder].
func (n notifier) Forward(ctx context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if err := n.to.Notify(ctx, req); err != nil {
		return upstream.Answer{}, err
	}
	answer, err := jsonrpc.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`), jsonrpc.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
