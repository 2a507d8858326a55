// Package v2025 serves the MCP revisions that use sessions: 2024-11-05, 2025-03-26, 2025-06-18 and 2025-11-25.
package v2025

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol/allservers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Message is a message of an MCP revision that uses sessions, from 2024-11-05 to 2025-11-25. It implements
// [protocol.Handler]. [New] creates it. Only one goroutine may use a Message.
type Message struct{ *protocol.Request }

// endpoint implements the behavior that depends on whether the client uses the URL for one server or the URL for all
// servers.
type endpoint interface {
	open(ctx context.Context) dispatch.Response
	// Route executes a message in a session.
	Route(ctx context.Context) dispatch.Response
	// mayListen returns a refusal if the client may not open a stream. exists is false if there is no stream for this
	// caller.
	mayListen(ctx context.Context) (refused *refusal.Refusal, exists bool)
	// listen forwards the events of a session's stream after the event with the id lastEventID. If lastEventID is empty,
	// it forwards all events. exists is false if there is no stream.
	listen(ctx context.Context, lastEventID string) (resp dispatch.Response, exists bool)
}

func (x Message) endpoint() endpoint {
	if x.IsForAllServers() {
		return allServers{x}
	}
	return x
}

type allServers struct{ Message }

func (x allServers) open(ctx context.Context) dispatch.Response {
	return allservers.New(x.Request).Open(ctx)
}

func (x allServers) Route(ctx context.Context) dispatch.Response {
	return allservers.New(x.Request).Route(ctx)
}

// mayListen allows every stream, because the policy service evaluates each message from a server.
func (allServers) mayListen(context.Context) (*refusal.Refusal, bool) { return nil, true }

func (x allServers) listen(ctx context.Context, _ string) (dispatch.Response, bool) {
	return allservers.New(x.Request).Listen(ctx), true
}

// New returns the handler of a message.
func New(x *protocol.Request) Message { return Message{x} }

// Post handles a message that opens a session, or a message that belongs to a session.
func (x Message) Post(ctx context.Context) dispatch.Response {
	x.ClientCapabilities, x.AsksOnStreams = x.Message.Capabilities.Of(x.Message.Raw), true
	if x.Message.Kind == jsonrpc.Request && x.Message.Method == mcp.MethodInitialize {
		if refused := x.CountExempt(ctx, mcp.MethodInitialize); refused != nil {
			return *refused
		}
		return x.endpoint().open(ctx)
	}
	if refused := x.findSession(); refused != nil {
		return x.Refuse(ctx, refused)
	}
	return x.endpoint().Route(ctx)
}

// findSession finds the session that the request names. A session id is not a credential, because it is valid only
// together with its principal and server.
func (x Message) findSession() *refusal.Refusal {
	id, ok := protocol.SingleHeader(x.Header, mcp.HeaderSession)
	if !ok {
		return refusal.ProtocolError(commonv1.Code_CODE_SESSION_REQUIRED, "")
	}
	sess, done, err := x.Sessions.Use(id, protocol.SessionKey(x.Caller, x.ServerName))
	if err != nil {
		return protocol.UnknownSession()
	}
	x.Release = done
	x.Enter(sess)
	spans.Session(trace.SpanFromContext(x.ClientCtx), x.Place())
	return nil
}

// SetTerms implements [protocol.Protocol].
func (x Message) SetTerms(sess *session.Session) {
	x.Version, x.SessionDigest, x.ClientName, x.Offer, x.AsksOnStreams = sess.Version, sess.Digest, sess.Client.Name, sess.Client.Offer, true
	x.Offer.Aggregated = x.Addressing.IsShared()
	if x.Message.Meta.Capabilities.Present() { // the request's own capabilities are replaced, because a server could act on them
		x.DeclaredToServer = []byte(mcp.CapabilitiesJSON(sess.Client.Offer.Abilities))
	}
	// Clients of older revisions can't parse the event that begins a resumable stream.
	x.Resumable = nil
	if x.Message.Kind != jsonrpc.Invalid && x.Sink.HasClient() && sess.Version == mcp.Supported()[0] {
		x.Resumable = x.Addressing.Resumable(sess)
		x.Sink.Replay(&x.Exchange)
	}
}

// Route implements [protocol.Protocol].
func (x Message) Route(ctx context.Context) dispatch.Response {
	if x.NeedsNoRule() {
		if refused := x.CountExempt(ctx, cmp.Or(x.Message.Method, dispatch.MethodResponse)); refused != nil {
			return *refused
		}
	}
	if x.Message.Kind == jsonrpc.Request && x.Message.Method != mcp.MethodPing {
		if err := x.Slot.Admit(ctx); err != nil {
			return x.Refuse(ctx, dispatch.NotAdmitted(err))
		}
	}
	switch {
	case x.Message.Kind == jsonrpc.Response:
		return x.HandleResponse(ctx)
	case x.Message.Kind == jsonrpc.Notification:
		x.HandleNotification(ctx)
		return dispatch.Accepted() // a refusal is only recorded, because a notification has no response
	case x.Message.InputResponses.Present():
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "in a session, answer a server's request with a JSON-RPC response instead of inputResponses."})
	case x.Message.Method == mcp.MethodPing:
		return x.AnswerPing(ctx)
	default:
		return x.Handle(ctx)
	}
}

// IsOwnTask implements [dispatch.Era]. It returns false, because the gateway creates no tasks for clients that use
// sessions.
func (Message) IsOwnTask() bool { return false }

// Prepare implements [dispatch.Era].
func (x Message) Prepare(_ context.Context, call *attempt.Call, _ *session.Call, _ dispatch.Tools, _ bool) *refusal.Refusal {
	if x.Message.Method == mcp.MethodToolsCall && x.Server.IsStateless() {
		call.ParamHeaders = paramheaders.DerivedHeaders(x.Message.Arguments.Of(x.Message.Raw), x.Server.Own().ParamHeaders(x.Message.Name))
	}
	return nil
}

// TranslatesRevisions implements [dispatch.Era].
func (x Message) TranslatesRevisions() bool { return x.Server.IsStateless() }

// Pending implements [dispatch.Era]. It returns false, so a call that waits for an approval is refused. The refusal
// contains the approval's id.
func (Message) Pending(context.Context, pipeline.Result) (dispatch.Response, bool) {
	return dispatch.Response{}, false
}

// Answer implements [dispatch.Era].
func (x Message) Answer(ctx context.Context, result pipeline.Result) dispatch.Response {
	if refused := x.CheckInputRequests(ctx, result.Answer); refused != nil {
		return x.RefusedResponse(ctx, refused)
	}
	if upstream.HasCode(result.Answer, mcp.CodeHeaderMismatch) && x.Server.IsStateless() {
		// The server's tools may have changed, so that other arguments must be repeated in headers.
		x.Server.Own().RefreshInBackground(servers.RenewAfter)
	}
	edits, _, refused := x.FilterResult(ctx, result.Answer)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	return x.Edited(ctx, result.Answer, edits)
}

// OwnList implements [dispatch.Era].
func (Message) OwnList(found *discovery.Result) (*jsonrpc.Answer, error) { return found.List, nil }

// OwnAnswer implements [protocol.Protocol]. The gateway itself responds only to pings.
func (x Message) OwnAnswer() func(context.Context) dispatch.Response {
	if x.Message.Method == mcp.MethodPing {
		return x.AnswerPing
	}
	return nil
}

// DiscoveryOf implements [protocol.Protocol].
func (Message) DiscoveryOf(server *servers.Server) *discovery.Server { return server.Own() }

// ForMember implements [protocol.Protocol].
func (Message) ForMember(member *protocol.Request) protocol.Protocol { return Message{member} }

// Restore implements [protocol.Protocol]. It does nothing, because the gateway does not translate values for clients
// that use sessions.
func (Message) Restore(context.Context) *refusal.Refusal { return nil }

// MemberKey implements [protocol.Protocol]. It returns the server's name as the key, because an aggregate session has
// one member session for each server.
func (x Message) MemberKey(context.Context, visibility.Access) (string, *refusal.Refusal) {
	return x.ServerName, nil
}

// OpenMember implements [protocol.Protocol].
func (x Message) OpenMember(sess *session.Session, access visibility.Access) {
	parent, server, caller, person := x.Aggregate, x.Server, principal.Of(x.Principal), principal.ConnectionsOf(x.Principal)
	abilities := x.FilterAbilities(parent.Members.Abilities, access)
	if access.MayCall {
		sess.Client.Offer = question.Offer{Abilities: abilities, Revision: parent.Version, Aggregated: true}
	}
	sess.Upstream = server.Upstream.OpenLater(func(ctx context.Context, exists *limits.Memory) (*upstream.Session, error) {
		up, opened, err := server.Open(ctx, caller, upstream.Initialize(parent.Version, parent.Client.Name, parent.Client.Version, abilities...).OnBehalfOf(person), exists)
		if err != nil {
			return nil, err
		}
		return up, completeInitialize(ctx, up, opened.Message, mcp.IsSupported)
	}, parent.Members.Opened.Notify)
}
