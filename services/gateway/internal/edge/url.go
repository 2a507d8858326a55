package edge

import (
	"context"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// url is what the URL of a message stands for: one server ([serverURL]), or all servers ([aggregateURL]).
type url interface {
	// resolve finds the server of the URL. It refuses a URL that is unknown to the caller.
	resolve() *refusal.Refusal
	// limits bound what is parsed of the message.
	limits(gate.Limits) gate.Limits
	// open opens a session.
	open(ctx context.Context) dispatch.Response
	// inSession carries out a message in a session of the revisions that have them.
	inSession(ctx context.Context, m v2025) dispatch.Response
	// stateless carries out a message of 2026-07-28.
	stateless(ctx context.Context, m *v2026) dispatch.Response
	// mayListen refuses a stream. It is false if there is none for the caller.
	mayListen(ctx context.Context) (refused *refusal.Refusal, has bool)
	// listen passes on the stream of a session behind an event. It is false if there is none.
	listen(ctx context.Context, after string) (resp dispatch.Response, has bool)
	// connect sets how what stands for a session sends requests.
	connect(sess *session.Session, m *v2026)
	// hasManyClients reports whether a server knows the client of a message of 2026-07-28 only by what the message says.
	hasManyClients(m *v2026) bool
}

// urlOf returns what a URL with this name of a server stands for. Without a name it stands for all.
func urlOf(x *exchange) url {
	if x.server == "" {
		return aggregateURL{x}
	}
	return serverURL{x}
}

// serverURL is /mcp/{server}.
type serverURL struct{ *exchange }

func (x serverURL) resolve() *refusal.Refusal {
	if x.isAbsent(x.client, x.Caller, x.server) {
		return unknownServer(x.server)
	}
	x.target = x.targets[x.server]
	return nil
}

func (serverURL) limits(l gate.Limits) gate.Limits { return l }

func (x serverURL) open(ctx context.Context) dispatch.Response { return x.exchange.open(ctx) }

func (serverURL) inSession(ctx context.Context, m v2025) dispatch.Response { return m.route(ctx) }

func (serverURL) stateless(ctx context.Context, m *v2026) dispatch.Response { return m.toServer(ctx) }

func (x serverURL) mayListen(ctx context.Context) (*refusal.Refusal, bool) {
	said, err := x.standing(ctx)
	if err != nil {
		return refusal.ProtocolError(commonv1.Code_CODE_POLICY_UNAVAILABLE, ""), true
	}
	return nil, said.Some
}

func (x serverURL) listen(ctx context.Context, after string) (dispatch.Response, bool) {
	return x.hear(ctx, after)
}

func (x serverURL) connect(sess *session.Session, m *v2026) {
	sess.Upstream = x.target.Server.Later(m.opens(), nil)
}

// hasManyClients is true unless the server has sessions: a session has one client, which declares its capabilities once.
func (serverURL) hasManyClients(m *v2026) bool { return !m.bridged }

// aggregateURL is /mcp. What a client sends there is for one of the servers, by the names that it has: it is written again
// with that server's own names, and handled as a message to that server, in a session with that server that belongs to the
// client's session. Lists are joined of those of all servers.
type aggregateURL struct{ *exchange }

func (aggregateURL) resolve() *refusal.Refusal { return nil }

// limits allow ids of servers with the names of the servers.
func (aggregateURL) limits(l gate.Limits) gate.Limits {
	l.IDBytes *= 2
	return l
}

func (x aggregateURL) open(ctx context.Context) dispatch.Response { return x.openHub(ctx) }

func (x aggregateURL) inSession(ctx context.Context, _ v2025) dispatch.Response {
	return x.routeHub(ctx)
}

func (aggregateURL) stateless(ctx context.Context, m *v2026) dispatch.Response {
	return m.postHub(ctx)
}

// mayListen is decided for each server, when the server sends something.
func (aggregateURL) mayListen(context.Context) (*refusal.Refusal, bool) { return nil, true }

func (x aggregateURL) listen(ctx context.Context, _ string) (dispatch.Response, bool) {
	return x.hearHub(ctx), true
}

func (aggregateURL) connect(sess *session.Session, m *v2026) {
	sess.Members = &session.Members{Abilities: m.can}
}

func (aggregateURL) hasManyClients(*v2026) bool { return false }
