package v2025

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// open opens a client's session with the gateway. If a rule can allow the caller to call the server, it also opens a
// session with the server.
func (x Message) open(ctx context.Context) dispatch.Response {
	access, err := x.Access(ctx)
	if err != nil {
		return x.Refuse(ctx, dispatch.PolicyUnavailable())
	}
	if err := x.Slot.Admit(ctx); err != nil {
		return x.Refuse(ctx, dispatch.NotAdmitted(err))
	}
	done, err := x.Sessions.BeginOpen(x.Slot.Owner.Accounts)
	if err != nil {
		return x.Refuse(ctx, protocol.SessionNotOpened(err))
	}
	defer done()
	up, opened, opensLater, err := x.initializeServer(ctx, access)
	switch {
	case errors.Is(err, protocol.ErrVersion):
		return x.RefusedResponse(ctx, x.UnsupportedVersion(x.Message.Version))
	case errors.Is(err, toolreport.ErrNotReported):
		return x.Refuse(ctx, x.DiscoveryFailed(ctx, err))
	case err != nil:
		return x.Refuse(ctx, x.ServerFailed(ctx, opened, err))
	}
	answer := opened.Message
	if refused := x.CheckInputRequests(ctx, answer); refused != nil {
		x.closeUnused(up)
		return x.Refuse(ctx, refused)
	}
	if answer.Error.Present() {
		x.closeUnused(up)
		return x.Edited(ctx, answer, x.WithClientID(answer, answer.Clean(nil)))
	}
	if opensLater {
		if answer, err = x.RedactGreeting(answer); err != nil {
			return x.Refuse(ctx, protocol.SessionNotOpened(err))
		}
	}
	version := x.negotiatedVersion(answer, access, opensLater)
	sess, err := x.newSession(up, version, access)
	if err != nil {
		x.closeUnused(up)
		return x.Refuse(ctx, protocol.SessionNotOpened(err))
	}
	sess.Ready.Store(opensLater)
	out := x.Edited(ctx, answer, x.WithClientID(answer, editGreeting(answer, version, access)))
	out.Session = sess.ID
	return out
}

// initializeServer sends initialize to the server and returns the server's answer. It does not do this if no rule can
// allow the caller to call the server, or if a person has to sign in at the server first. In these cases, it returns
// the answer that the gateway itself has received from the server, and opensLater is true. The session with the server
// is then opened later, when a call by the caller is allowed or the client needs the server.
func (x Message) initializeServer(ctx context.Context, access visibility.Access) (sess *upstream.Session, answer upstream.Answer, opensLater bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.Timeout)
	defer cancel()
	var abilities []mcp.Ability
	if access.MayCall {
		abilities = x.AbilitiesFor(access)
	}
	client, clientVersion := x.Message.Client()
	server, caller, person := x.Server, principal.Of(x.Principal), principal.ConnectionsOf(x.Principal)
	open := func(ctx context.Context, version string, memory *limits.Memory) (*upstream.Session, upstream.Answer, error) {
		return server.Open(ctx, caller, upstream.Initialize(version, client, clientVersion, abilities...).OnBehalfOf(person), memory)
	}
	if access.MayCall {
		if sess, answer, err = open(ctx, x.Message.Version, &x.Slot.Answer); !upstream.IsSignIn(err) {
			return sess, answer, false, err
		}
	}
	found, err := x.Server.Own().Get(ctx, discovery.Fresh)
	if err != nil {
		return nil, upstream.Answer{}, false, err
	}
	greeting, err := servers.Greeting(found)
	if err != nil {
		return nil, upstream.Answer{}, false, err
	}
	version := x.negotiatedVersion(greeting, access, true)
	return server.Upstream.OpenLater(func(ctx context.Context, exists *limits.Memory) (*upstream.Session, error) {
		up, opened, err := open(ctx, version, exists)
		if err != nil {
			return nil, err
		}
		return up, completeInitialize(ctx, up, opened.Message, func(spoken string) bool { return spoken == version })
	}, nil), upstream.Answer{Message: greeting}, true, nil
}

// completeInitialize sends notifications/initialized if isAccepted returns true for the server's revision. Otherwise it
// closes the session and returns [protocol.ErrVersion].
func completeInitialize(ctx context.Context, up *upstream.Session, answer *jsonrpc.Answer, isAccepted func(version string) bool) error {
	err := protocol.ErrVersion
	if !answer.Error.Present() && isAccepted(jsonrpc.Unquote(answer.ProtocolVersion.Of(answer.Raw))) {
		err = up.SendNotification(ctx, upstream.Initialized())
	}
	if err != nil {
		return errors.Join(err, up.Close(ctx))
	}
	return nil
}

// negotiatedVersion returns the revision of a session. This is usually the revision in the server's answer. If the
// gateway has not sent initialize to the server for this client, it is the revision in the client's request. If the
// caller may call the server, the revision is at most the server's revision.
func (x Message) negotiatedVersion(answer *jsonrpc.Answer, access visibility.Access, opensLater bool) string {
	own := jsonrpc.Unquote(answer.ProtocolVersion.Of(answer.Raw))
	switch {
	case !opensLater, !mcp.IsSupported(x.Message.Version):
		return own
	case access.MayCall:
		return min(x.Message.Version, own) // revisions are dates
	default:
		return x.Message.Version
	}
}

func editGreeting(answer *jsonrpc.Answer, version string, access visibility.Access) []jsonrpc.Edit {
	edits := answer.Clean(nil)
	if at := answer.ProtocolVersion; at.Present() {
		edits = append(edits, jsonrpc.Edit{Span: at, With: []byte(strconv.Quote(version))})
	}
	if at := answer.Capabilities; at.Present() {
		// The capabilities object is replaced as a whole, so edits inside it are dropped.
		edits = slices.DeleteFunc(edits, func(e jsonrpc.Edit) bool { return e.Span.Start >= at.Start && e.Span.End <= at.End })
		edits = append(edits, jsonrpc.Edit{Span: at, With: protocol.ServerCapabilities(answer, access)})
	}
	return edits
}

func (x Message) newSession(up *upstream.Session, version string, access visibility.Access) (*session.Session, error) {
	if !mcp.IsSupported(version) {
		return nil, protocol.ErrVersion
	}
	client := session.Client{Elicits: dispatch.SupportsForms(x.Message, version)}
	if access.MayCall {
		client.Offer = question.Offer{Abilities: x.AbilitiesFor(access), Revision: version, RequestedRevision: x.Message.Version}
	}
	client.Name, client.Version = x.Message.Client()
	id, digest := session.NewID()
	sess := &session.Session{
		ID: id, Digest: digest, Key: protocol.SessionKey(x.Caller, x.ServerName), Accounts: x.Slot.Owner.Accounts, Agent: x.Principal.GetAgent(),
		Version: version, Client: client, Upstream: up, Opened: time.Now(),
	}
	return sess, x.Sessions.Add(sess)
}

// closeUnused closes a session with a server that no client will use.
func (x Message) closeUnused(up *upstream.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), dispatch.NotifyTimeout)
	defer cancel()
	if err := up.Close(ctx); err != nil {
		x.Log.DebugContext(ctx, "server did not end the session", "server", x.ServerName, "error", upstream.ForLog(err))
	}
}
