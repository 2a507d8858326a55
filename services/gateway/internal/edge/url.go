package edge

import (
	"context"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
)

// url is what the URL of a message addresses: one server ([serverURL]), or all servers ([aggregateURL]).
type url interface {
	// resolve finds the server of the URL. It refuses a URL that is unknown to the caller.
	resolve() *refusal.Refusal
	// limits returns the limits for parsing the message.
	limits(jsonrpc.Limits) jsonrpc.Limits
	// open opens a session.
	open(ctx context.Context) dispatch.Response
	// inSession carries out a message in a session of the revisions that have them.
	inSession(ctx context.Context, m v2025) dispatch.Response
	// stateless carries out a message of 2026-07-28.
	stateless(ctx context.Context, m *v2026) dispatch.Response
	// mayListen refuses a stream. has is false if there is none for the caller.
	mayListen(ctx context.Context) (refused *refusal.Refusal, has bool)
	// listen forwards the stream of a session after an event. has is false if there is none.
	listen(ctx context.Context, after string) (resp dispatch.Response, has bool)
	// connect sets how the state of a caller without a session sends requests.
	connect(sess *session.Session, m *v2026)
	// hasManyClients reports whether one state serves all clients of a caller, because the server knows the client of a
	// message of 2026-07-28 only by the message itself.
	hasManyClients(m *v2026) bool
}

// urlOf returns what the URL of the exchange addresses: all servers if it names no server.
func urlOf(x *exchange) url {
	if x.ServerName == "" {
		return aggregateURL{x}
	}
	return serverURL{x}
}

// serverURL is /mcp/{server}.
type serverURL struct{ *exchange }

func (x serverURL) resolve() *refusal.Refusal {
	if x.isAbsent(x.ClientCtx, x.Caller, x.ServerName) {
		return unknownServer(x.ServerName)
	}
	x.Server = x.targets[x.ServerName]
	x.Timeout, x.Discovery = x.Server.Timeout, x.Server.Own()
	x.Server.Touch()
	return nil
}

func (serverURL) limits(l jsonrpc.Limits) jsonrpc.Limits { return l }

func (x serverURL) open(ctx context.Context) dispatch.Response { return x.exchange.open(ctx) }

func (serverURL) inSession(ctx context.Context, m v2025) dispatch.Response { return m.route(ctx) }

func (serverURL) stateless(ctx context.Context, m *v2026) dispatch.Response { return m.toServer(ctx) }

func (x serverURL) mayListen(ctx context.Context) (*refusal.Refusal, bool) {
	access, err := x.Access(ctx)
	if err != nil {
		return refusal.ProtocolError(commonv1.Code_CODE_POLICY_UNAVAILABLE, ""), true
	}
	return nil, access.MayCall
}

func (x serverURL) listen(ctx context.Context, after string) (dispatch.Response, bool) {
	return x.hear(ctx, after)
}

func (x serverURL) connect(sess *session.Session, m *v2026) {
	sess.Upstream = x.Server.Upstream.Later(m.opens(), nil)
}

// hasManyClients returns false if the server has sessions: a session has one client, which declares its capabilities
// once.
func (serverURL) hasManyClients(m *v2026) bool { return !m.bridged }

// aggregateURL is /mcp. The names in a message there name the server. The message is rewritten with the server's own
// names, and handled as a message to that server, in a member session that belongs to the client's session. Lists of
// all servers are joined.
type aggregateURL struct{ *exchange }

func (aggregateURL) resolve() *refusal.Refusal { return nil }

// limits allows longer ids, because the ids of servers' requests get the names of the servers.
func (aggregateURL) limits(l jsonrpc.Limits) jsonrpc.Limits {
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

// mayListen refuses nothing, because each server's stream is decided when the server sends something.
func (aggregateURL) mayListen(context.Context) (*refusal.Refusal, bool) { return nil, true }

func (x aggregateURL) listen(ctx context.Context, _ string) (dispatch.Response, bool) {
	return x.hearHub(ctx), true
}

func (aggregateURL) connect(sess *session.Session, m *v2026) {
	sess.Members = &session.Members{Abilities: m.can}
}

func (aggregateURL) hasManyClients(*v2026) bool { return false }
