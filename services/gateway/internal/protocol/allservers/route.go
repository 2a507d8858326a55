// Package allservers handles messages at /mcp, the URL for all servers. At this URL, all servers appear as one server.
// The names of tools, prompts and resources begin with the server's name. The gateway replaces such a combined name
// with the server's own name. It then handles the message as a message to that server, in a member session of the
// client's session. It combines the servers' lists into one list.
package allservers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/aggregate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/spans"
)

// All is a message to the URL for all servers.
type All struct{ *protocol.Request }

// New returns the request x as a message to the URL for all servers.
func New(x *protocol.Request) All { return All{Request: x} }

// Member is a message to one of the servers. It was derived from a message to the URL for all servers.
type Member struct{ *protocol.Request }

// Route handles a message to the URL for all servers.
func (x All) Route(ctx context.Context) dispatch.Response {
	switch x.Message.Kind {
	case jsonrpc.Response:
		return x.respond(ctx)
	case jsonrpc.Notification:
		return x.notify(ctx)
	case jsonrpc.Request, jsonrpc.Invalid: // the parser never returns an invalid message
	}
	return x.Answer(ctx)
}

// Answer responds to a request itself, or sends the request to the server whose name it contains.
func (x All) Answer(ctx context.Context) dispatch.Response {
	do := x.ownAnswer()
	if do == nil {
		return x.sendToServer(ctx)
	}
	if large := x.CheckSize(); large != nil {
		return x.Refuse(ctx, large)
	}
	if refused := x.CountExempt(ctx, x.Message.Method); refused != nil {
		return *refused
	}
	return do(ctx)
}

func (x All) ownAnswer() func(context.Context) dispatch.Response {
	switch m := x.Message; {
	case m.Method == mcp.MethodToolsList:
		return x.listTools
	case aggregate.FieldOf(m.Method) != "":
		return x.gatherList
	case m.Method == mcp.MethodToolsCall && m.Name == mcp.ToolApprovalWait:
		return x.WaitForApproval
	default:
		return x.Protocol.OwnAnswer()
	}
}

func (x All) sendToServer(ctx context.Context) dispatch.Response {
	server, edits, why := x.resolveTarget(ctx)
	if why != nil {
		return x.Refuse(ctx, why)
	}
	member, refused := x.rewriteFor(server, edits...)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	if large := member.CheckSize(); member.NeedsNoRule() && large != nil {
		return x.Refuse(ctx, large)
	}
	if refused := member.Protocol.Restore(ctx); refused != nil {
		return member.Refuse(ctx, refused)
	}
	spans.Message(trace.SpanFromContext(ctx), member.Message, member.Place())
	release, why := member.Begin(ctx)
	if why != nil {
		return member.Refuse(ctx, why)
	}
	x.Cleanup.Add(release)
	return member.Protocol.Route(ctx)
}

// resolveTarget returns the server whose name the request contains, and the edits that replace the combined names with
// the server's own names.
func (x All) resolveTarget(ctx context.Context) (server string, edits []jsonrpc.Edit, why *refusal.Refusal) {
	server, edits, err := aggregate.ResolveTarget(x.Message.Method, x.Message.Raw)
	if err == nil && x.IsAbsent(ctx, x.Caller, server) {
		err = fmt.Errorf("there is no server %q here", spans.Clip(server))
	}
	if err != nil {
		return "", nil, noServerNamed(x.Message.Method, err)
	}
	if found := x.Protocol.DiscoveryOf(x.Servers[server]).Last(); found != nil && x.Message.Method == mcp.MethodToolsCall {
		_, rest, _ := aggregate.SplitName(x.Message.Name)
		name, one := found.Aliases.Resolve(server, rest)
		if !one {
			return "", nil, &refusal.Refusal{Code: commonv1.Code_CODE_TOOL_UNKNOWN}
		}
		edits = []jsonrpc.Edit{aggregate.ReplaceText(x.Message.NameValue, name)}
	}
	return server, edits, nil
}

func noServerNamed(method string, err error) *refusal.Refusal {
	why := strings.TrimSuffix(err.Error(), ".")
	switch method {
	case mcp.MethodToolsCall:
		return &refusal.Refusal{Code: commonv1.Code_CODE_TOOL_UNKNOWN, Message: why + "; tools are called <server>__<tool> here, as tools/list says."}
	case "prompts/get", "completion/complete":
		return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: why + "; prompts are called <server>__<prompt> here, as prompts/list says."}
	case "resources/read", mcp.MethodSubscribe, mcp.MethodUnsubscribe:
		return &refusal.Refusal{Code: commonv1.Code_CODE_PARAMS_INVALID, Message: why + "; URIs begin with mcp.<server>+ here, as resources/list says."}
	default:
		return &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "this method names no server; send it to /mcp/<server>."}
	}
}

// ForServer returns the same message, addressed to the given server.
func (x All) ForServer(server string) Member {
	member := &protocol.Request{Router: x.Router, Header: x.Header, Cleanup: x.Cleanup, Aggregate: x.Session}
	member.Exchange = dispatch.Exchange{
		Dispatcher: x.Dispatcher, Caller: x.Caller, ClientCtx: x.ClientCtx, Sink: x.Sink, ServerName: server,
		Message: x.Message, Received: x.Received, Session: x.Session, Slot: x.Slot, Terms: x.Terms,
	}
	if member.Server = x.Servers[server]; member.Server != nil { // the server is nil if a stored answer belongs to all servers together
		member.Timeout, member.Discovery = member.Server.Timeout, member.Server.Own()
	}
	member.Addressing = aggregated{member}
	member.SetProtocol(x.Protocol.ForMember(member))
	return Member{member}
}

// rewriteFor applies the edits, and returns the edited message addressed to the given server. It parses the edited
// message as strictly as a message from a client.
func (x All) rewriteFor(server string, edits ...jsonrpc.Edit) (Member, *refusal.Refusal) {
	raw, err := jsonrpc.ApplyEdits(x.Message.Raw, edits...)
	if err != nil {
		return Member{}, protocol.InvalidMessage(err)
	}
	if !x.Slot.Reserve(len(raw)) {
		return Member{}, protocol.TooMuchInFlight(nil)
	}
	end, err := x.Slot.Answer.TimesliceFor(x.ClientCtx, len(raw))
	if err != nil {
		return Member{}, protocol.UnreadableBody() // the caller has disconnected
	}
	defer end()
	member := x.ForServer(server)
	if member.Message, err = jsonrpc.Parse(raw, x.Limits); err != nil {
		return Member{}, protocol.InvalidMessage(err)
	}
	return member, nil
}

// respond sends a client's response to the server that sent the request. If no request is waiting for the response, the
// response is dropped.
func (x All) respond(ctx context.Context) dispatch.Response {
	server, id, ok := aggregate.SplitID(x.ID())
	if _, configured := x.Servers[server]; ok && configured {
		member, refused := x.rewriteFor(server, jsonrpc.Edit{Span: x.Message.ID, With: id})
		if refused != nil {
			return x.Refuse(ctx, refused)
		}
		if done, open := member.useExistingSession(); open {
			defer done()
			return member.Protocol.Route(ctx)
		}
	}
	if large := x.CheckSize(); large != nil {
		return x.Refuse(ctx, large)
	}
	if refused := x.CountExempt(ctx, dispatch.MethodResponse); refused != nil {
		return *refused
	}
	return dispatch.Accepted()
}

func (x All) notify(ctx context.Context) dispatch.Response {
	m := x.Message
	roots := m.Method == mcp.MethodRootsChanged && slices.Contains(dispatch.MethodsOf(x.Session.Members.Abilities), mcp.MethodRoots)
	if !mcp.MethodNeedsNoRule(m.Method) && !roots {
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return dispatch.Accepted()
	}
	if refused := x.CountExempt(ctx, m.Method); refused != nil {
		return *refused
	}
	switch m.Method {
	case mcp.MethodCancelled:
		x.Session.Calls.Cancel(jsonrpc.IDKey(m.RequestID.Of(m.Raw))) // the request may be waiting for approvers
		x.notifyAll(ctx)
	case mcp.MethodRootsChanged:
		x.notifyAll(ctx)
	case mcp.MethodProgress:
		server, token, ok := aggregate.SplitID(m.ProgressToken.Of(m.Raw))
		if _, configured := x.Servers[server]; !ok || !configured {
			break
		}
		member, refused := x.rewriteFor(server, jsonrpc.Edit{Span: m.ProgressToken, With: token})
		if refused != nil {
			break // the part of the token after the server's name is not a valid progress token
		}
		if done, open := member.useExistingSession(); open {
			defer done()
			member.HandleNotification(ctx)
		}
	}
	return dispatch.Accepted()
}

func (x All) notifyAll(ctx context.Context) {
	var all sync.WaitGroup
	defer all.Wait()
	for server := range x.Session.Members.IDs() {
		member := x.ForServer(server)
		x.Go(&all, func() {
			done, open := member.useExistingSession()
			if !open {
				return
			}
			defer done()
			if member.MayNotify() {
				member.HandleNotification(ctx)
			}
		})
	}
}
