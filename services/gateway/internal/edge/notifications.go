package edge

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// carriesFrom has policy decide on a server's notification that the protocol does not know, on record; no
// rule lets none pass. One that no rule could let pass is not asked about: servers may say many.
func (x *exchange) carriesFrom(m *gate.Answer) bool {
	ctx := x.client
	if m.Kind != gate.Notification || !mcp.IsOwnNotification(m.Method) || x.sess == nil || !x.reach.May(ctx, x.Principal, x.server, m.Method) {
		return false
	}
	read, err := gate.Parse(m.Raw, x.limits)
	if err != nil {
		return false
	}
	counted, err := x.sess.Asked.Ask(inputID()) // with what else the server asks, in a minute
	if err != nil {
		x.deps.Log.DebugContext(ctx, "notification of a server dropped", "server", x.server, "why", err)
		return false
	}
	counted.Close()
	return x.judged(ctx, read, true) == nil
}

// carriesTo has policy decide on a client's notification that the protocol does not know, on record, and
// sends it to the server where that may hear it. Over gRPC, and without sessions, a server hears none.
func (x *exchange) carriesTo(ctx context.Context) {
	if x.target.Server.Transport() == "grpc" || x.target.sessionless() {
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	has := x.has.Answer.Beside()
	defer has.Close()
	x.deps.Pipeline.Do(ctx, attempt.Call{
		Principal: x.acting(), Stale: x.Stale || x.Revoked(), Revoked: x.Revoked, Server: x.server, Message: x.msg, Received: time.Now(), Timeout: notifyTimeout,
		Transport: x.target.Server.Transport(), Version: x.sess.Version, Client: x.clientName, Upstream: notifier{x.sess.Upstream}, Room: has, Identity: x.target.Identity,
	})
}

// notifier sends notifications, which have no answers.
type notifier struct{ to *upstream.Session }

// Forward implements [attempt.Forwarder].
func (n notifier) Forward(ctx context.Context, req upstream.Request, _ func([]byte)) (upstream.Answer, error) {
	if err := n.to.Notify(ctx, req); err != nil {
		return upstream.Answer{}, err
	}
	answer, err := gate.ReadAnswer([]byte(`{"jsonrpc":"2.0","id":0,"result":{}}`), gate.AnswerLimits())
	return upstream.Answer{Message: answer}, err
}
