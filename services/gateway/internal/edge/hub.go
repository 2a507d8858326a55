package edge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/inflight"
	"github.com/sluice-mesh/sluice/services/gateway/internal/joint"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/reach"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// many tells whether the message at hand is for all servers together. What a client says there is
// for one of them, by the names that it holds: it is written anew with that server's own names, and
// takes the way of a message to that server, in a session of its own with it. Lists are made of those
// of all.
func (x *exchange) many() bool { return x.server == "" }

// routeMany carries a message to where its method belongs.
func (x *exchange) routeMany(ctx context.Context) {
	m := x.msg
	own := m.Kind == gate.Request && (m.Method == mcp.MethodPing || m.Method == mcp.MethodToolsList || m.Method == mcp.MethodToolsCall && m.Name == mcp.ToolApprovalWait)
	if own && !x.admitted(ctx, m.Method) {
		return
	}
	switch {
	case m.Kind == gate.Response:
		x.answeredOne(ctx)
	case m.Kind == gate.Notification:
		x.notifyMany(ctx)
	case m.Method == mcp.MethodPing:
		x.pong(ctx)
	case m.Method == mcp.MethodToolsList:
		x.listMany(ctx)
	case own:
		x.awaitApproval(ctx)
	case fieldOf(m.Method) != "":
		x.gather(ctx)
	default:
		x.one(ctx)
	}
}

// one carries a request to the server that it names.
func (x *exchange) one(ctx context.Context) {
	y, refused := x.aim()
	if refused != nil {
		x.refuse(ctx, x.newWriter(), refused)
		return
	}
	defer func() { x.failure, x.held = y.failure, y.held }()
	spans.Message(trace.SpanFromContext(ctx), y.msg, y.place())
	left, refused := y.enter(ctx)
	if refused != nil {
		y.refuse(ctx, y.newWriter(), refused)
		return
	}
	defer left()
	y.route(ctx)
}

// aim is the request at hand as its server is to get it.
func (x *exchange) aim() (*exchange, *refusal.Refusal) {
	server, edits, err := joint.Aim(x.msg.Method, x.msg.Raw)
	target, configured := x.targets[server]
	if err == nil && !configured {
		err = fmt.Errorf("there is no server %q here", spans.Clip(server))
	}
	if err != nil {
		return nil, unaimed(x.msg.Method, err)
	}
	if found := target.found.Last(); found != nil && x.msg.Method == mcp.MethodToolsCall {
		_, rest, _ := joint.Cut(x.msg.Name)
		name, one := found.Aliases.Called(server, rest)
		if !one {
			return nil, &refusal.Refusal{Code: commonv1.Code_CODE_TOOL_UNKNOWN, Message: "two tools of the server would have this name."}
		}
		edits = []gate.Edit{joint.Say(x.msg.NameValue, name)}
	}
	y, err := x.to(server, edits...)
	if err != nil {
		return nil, &refusal.Refusal{Code: unparsed(err, 0).code, Message: unparsed(err, 0).message}
	}
	return y, nil
}

// unaimed is the refusal of a request that is for no server.
func unaimed(method string, err error) *refusal.Refusal {
	why := strings.TrimSuffix(err.Error(), ".")
	switch method {
	case mcp.MethodToolsCall:
		return &refusal.Refusal{Code: commonv1.Code_CODE_TOOL_UNKNOWN, Message: why + "; tools are called <server>__<tool> here, as tools/list says."}
	case "prompts/get", "completion/complete":
		return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: why + "; prompts are called <server>__<prompt> here, as prompts/list says."}
	case "resources/read", mcp.MethodSubscribe, "resources/unsubscribe":
		return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: why + "; URIs begin with mcp.<server>+ here, as resources/list says."}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "it is for no one of the servers here; send it to /mcp/<server>."}
	}
}

// at is the message at hand at one of the servers.
func (x *exchange) at(server string) *exchange {
	return &exchange{
		Edge: x.Edge, caller: x.caller, w: x.w, r: x.r, server: server, target: x.targets[server], msg: x.msg, received: x.received,
		sess: x.sess, has: x.has, hub: x.sess,
	}
}

// to is the message at hand as one of the servers is to get it, with these edits made. It goes
// through the gate as any other.
func (x *exchange) to(server string, edits ...gate.Edit) (*exchange, error) {
	raw, err := gate.Splice(x.msg.Raw, edits...)
	if err != nil {
		return nil, err
	}
	end, err := x.has.Answer.TurnFor(x.r.Context(), len(raw))
	if err != nil {
		return nil, err
	}
	defer end()
	if !x.has.Hold(len(raw)) {
		return nil, inflight.ErrFull
	}
	y := x.at(server)
	y.msg, err = gate.Parse(raw, x.limits)
	return y, err
}

// enter has a request counted as one to its server, and puts it into the session with that, until
// left is called.
func (x *exchange) enter(ctx context.Context) (left func(), refused *refusal.Refusal) {
	x.target.used.Store(time.Now().UnixNano())
	has, err := x.inFlight.Enter(x.principal, x.server)
	if err != nil {
		full := tooMuchInFlight()
		return nil, &refusal.Refusal{Code: full.code, Message: full.message}
	}
	done, refused := x.member(ctx)
	if refused != nil {
		has.Leave()
		return nil, refused
	}
	x.has = has
	return func() { done(); has.Leave() }, nil
}

// member puts the message at hand into the session with its server that the one with many has. Where
// there is none yet one is made, of which the server hears with the first request.
func (x *exchange) member(ctx context.Context) (done func(), refused *refusal.Refusal) {
	key := x.key(x.server)
	use := func(id string) error {
		sess, used, err := x.deps.Sessions.Use(id, key)
		if err == nil {
			x.in(sess)
			done = used
		}
		return err
	}
	err := x.hub.Members.Of(x.server, use, func() (string, error) {
		said, err := x.standing(ctx)
		if err != nil {
			return "", err
		}
		sess := x.newMember(key, said)
		return sess.ID, x.deps.Sessions.Add(sess)
	})
	switch {
	case err == nil:
		return done, nil
	case errors.Is(err, session.ErrTooMany):
		return nil, notOpened(err)
	default:
		return nil, policyAway()
	}
}

// newMember is a session with a server that belongs to one with many. In records both have one name.
func (x *exchange) newMember(key session.Key, said reach.Standing) *session.Session {
	hub, target, who := x.hub, x.target, principal.Of(x.principal)
	claims := x.tellable(hub.Members.Abilities, said)
	id, _ := session.NewID()
	sess := &session.Session{
		ID: id, Digest: hub.Digest, Key: key, Agent: hub.Agent, Version: hub.Version, Opened: time.Now(),
		Client: session.Client{Name: hub.Client.Name, Version: hub.Client.Version, Elicits: hub.Client.Elicits},
	}
	if said.Some {
		sess.Client.Asks = methodsOf(claims)
	}
	sess.Upstream = target.Server.Later(func(ctx context.Context, has *room.Holding) (*upstream.Session, error) {
		up, opened, err := target.open(ctx, who, upstream.Initialize(hub.Version, hub.Client.Name, hub.Client.Version, claims...), has)
		if err != nil {
			return nil, err
		}
		return up, begin(ctx, up, opened.Message, mcp.IsSupported)
	}, hub.Members.Tell)
	return sess
}

// existing puts the message at hand into the session with its server that the one with many has; false
// where there is none.
func (x *exchange) existing() (done func(), ok bool) {
	id, known := x.hub.Members.All()[x.server]
	if !known {
		return nil, false
	}
	sess, done, err := x.deps.Sessions.Use(id, x.key(x.server))
	if err != nil {
		return nil, false // it has ended
	}
	x.in(sess)
	return done, true
}

// answeredOne passes a client's answer on to the server whose request it answers. One that nobody
// waits for is dropped.
func (x *exchange) answeredOne(ctx context.Context) {
	server, id, ok := joint.CutID(x.id())
	if _, configured := x.targets[server]; ok && configured {
		y, err := x.to(server, gate.Edit{Span: x.msg.ID, With: id})
		if err != nil {
			x.rejectMessage(*unparsed(err, len(x.msg.Raw)))
			return
		}
		if done, open := y.existing(); open {
			defer done()
			y.route(ctx)
			return
		}
	}
	if large := x.tooLarge(); large != nil {
		x.rejectMessage(*large)
		return
	}
	if x.admitted(ctx, methodAnswer) {
		x.accepted()
	}
}

// notifyMany tells those servers of a notification that it is for.
func (x *exchange) notifyMany(ctx context.Context) {
	m := x.msg
	roots := m.Method == mcp.MethodRootsChanged && slices.Contains(methodsOf(x.sess.Members.Abilities), mcp.MethodRoots)
	if !mcp.AlwaysPasses(m.Method) && !roots {
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		x.accepted()
		return
	}
	if !x.admitted(ctx, m.Method) {
		return
	}
	defer x.accepted()
	switch m.Method {
	case mcp.MethodCancelled:
		x.sess.Calls.GiveUp(gate.IDKey(m.RequestID.Of(m.Raw))) // it may wait for people
		x.noteAll(ctx)
	case mcp.MethodRootsChanged:
		x.noteAll(ctx)
	case mcp.MethodProgress:
		server, token, ok := joint.CutID(m.ProgressToken.Of(m.Raw))
		if _, configured := x.targets[server]; !ok || !configured {
			return
		}
		y, err := x.to(server, gate.Edit{Span: m.ProgressToken, With: token})
		if err != nil {
			return // the token is none of a server's
		}
		if done, open := y.existing(); open {
			defer done()
			y.noted(ctx)
		}
	}
}

// noteAll tells every server that the session has used.
func (x *exchange) noteAll(ctx context.Context) {
	for server := range x.sess.Members.All() {
		y := x.at(server)
		if done, open := y.existing(); open {
			if y.notifies() {
				y.noted(ctx)
			}
			done()
		}
	}
}

// shown is a raw id or token of a server's as its client knows it.
func (x *exchange) shown(id []byte) []byte {
	if x.hub == nil {
		return id
	}
	return joint.ID(x.server, id)
}

// joined adds the edits by which an answer to a method, or a notification, says names as the client
// knows them.
func (x *exchange) joined(m *gate.Answer, method string, edits []gate.Edit) ([]gate.Edit, error) {
	if x.hub == nil {
		return edits, nil
	}
	names, err := joint.Join(x.server, method, m.Raw)
	return append(edits, names...), err
}
