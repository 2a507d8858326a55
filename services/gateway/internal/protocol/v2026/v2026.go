// Package v2026 serves MCP revision 2026-07-28, which has no sessions. Each request describes its client and its
// revision. Servers send requests to the client in their answers. A call that waits for an approver becomes a task, or
// continues in further round trips.
package v2026

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/go-json-experiment/json"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/discovery"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/paramheaders"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/tasks"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
)

type message struct {
	*protocol.Request
	*Protocol

	// access contains the caller's permissions on the server. capabilities contains the client capabilities that the
	// gateway declares to the server.
	access       visibility.Access
	capabilities []mcp.Ability
	// translates is true if the gateway translates the message, because the server supports only revisions that use
	// sessions.
	translates bool
	// paramHeaders are the headers in which the call must repeat some of its arguments.
	paramHeaders []upstream.Header
	// takesTasks is true if the client accepts a task as an answer. declaresTasks is true if the gateway declares to the
	// server that the client accepts tasks. becomesTask is true if this call becomes a task when it has to wait for an
	// approval.
	takesTasks, declaresTasks, becomesTask bool
	roundTrip                              roundTrip
	releaseState                           func()
}

// Post handles a message of revision 2026-07-28. It refuses a message whose headers differ from its body, because the
// policy service evaluates only the body.
func (x *message) Post(ctx context.Context) dispatch.Response {
	x.SetProtocol(x)
	x.Version, x.ResultType = mcp.Modern, mcp.ResultComplete
	x.ClientCapabilities, x.AsksInAnswers = x.Message.Meta.Capabilities.Of(x.Message.Raw), mcp.IsMultiRound(x.Message.Method) || x.Message.Method == mcp.MethodTasksGet
	x.ClientName, _ = x.Message.Client()
	return x.endpoint().handle(ctx)
}

// statelessEndpoint implements the behavior that depends on whether the client uses the URL for one server or the URL
// for all servers.
type statelessEndpoint interface {
	handle(ctx context.Context) dispatch.Response
	// connect sets the session or the member sessions with which the caller's requests are sent.
	connect(sess *session.Session)
	// hasManyClients reports whether all clients of a caller share one state. This is possible if each message to the
	// server describes its client.
	hasManyClients() bool
}

func (x *message) endpoint() statelessEndpoint {
	if x.IsForAllServers() {
		return statelessAll{x}
	}
	return statelessOne{x}
}

type statelessOne struct{ *message }

func (x statelessOne) handle(ctx context.Context) dispatch.Response { return x.handleServer(ctx) }

func (x statelessOne) connect(sess *session.Session) {
	sess.Upstream = x.Server.Upstream.OpenLater(x.upstreamOpener(), nil)
}

// hasManyClients returns false if the server uses sessions. A session has only one client, because the client's
// capabilities are declared only when the session is opened.
func (x statelessOne) hasManyClients() bool { return !x.translates }

type statelessAll struct{ *message }

func (x statelessAll) handle(ctx context.Context) dispatch.Response { return x.handleAllServers(ctx) }

func (x statelessAll) connect(sess *session.Session) {
	sess.Members = &session.Members{Abilities: x.capabilities}
}

func (statelessAll) hasManyClients() bool { return false }

func (x *message) handleServer(ctx context.Context) dispatch.Response {
	speaks, refused := x.isServerModern(ctx)
	if refused != nil {
		return *refused
	}
	x.setTarget(speaks)
	if refused := x.checkRequired(); refused != nil {
		return x.Refuse(ctx, refused)
	}
	if refused := x.Restore(ctx); refused != nil {
		return x.Refuse(ctx, refused)
	}
	if x.NeedsNoRule() {
		if large := x.CheckSize(); large != nil {
			return x.Refuse(ctx, large)
		}
		if refused := x.CountExempt(ctx, x.Message.Method); refused != nil {
			return *refused
		}
	}
	if x.Message.Kind == jsonrpc.Notification { // a client cancels a request by closing its stream
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return dispatch.Accepted()
	}
	if err := x.Slot.Admit(ctx); err != nil {
		return x.Refuse(ctx, dispatch.NotAdmitted(err))
	}
	access, err := x.Access(ctx)
	if err != nil {
		return x.Refuse(ctx, dispatch.PolicyUnavailable())
	}
	capabilities := x.DeclaredCapabilities()
	x.takesTasks = dispatch.AcceptsTasks(capabilities)
	x.declaresTasks = x.takesTasks && !x.translates && access.Has(mcp.MethodTasksGet)
	x.setCapabilities(access, x.FilterAbilities(dispatch.DeclaredAbilities(capabilities), access))
	if refused := x.enterState(ctx); refused != nil {
		return x.Refuse(ctx, refused)
	}
	x.Release = x.releaseState
	return x.handleAdmitted(ctx)
}

// setTarget prepares the message for its server. isModern is true if the server supports revision 2026-07-28. If not,
// the gateway has to translate the message and send it in a session.
func (x *message) setTarget(isModern bool) {
	x.translates, x.Discovery = !isModern, x.Server.Own()
	if isModern {
		x.Discovery = x.Server.Revision(mcp.Modern)
	}
}

// setCapabilities sets the caller's permissions on the server and the client capabilities that the gateway declares to
// the server. It also sets the fields that are derived from these values.
func (x *message) setCapabilities(access visibility.Access, capabilities []mcp.Ability) {
	x.access, x.capabilities = access, capabilities
	x.Offer = question.Offer{Abilities: capabilities, Revision: mcp.Modern, Aggregated: x.Addressing.IsShared()}
	x.AsClient = &upstream.Client{Claims: capabilities}
	x.AsClient.Name, x.AsClient.Version = x.Message.Client()
	x.DeclaredToServer = []byte(mcp.CapabilitiesJSON(capabilities))
	if x.declaresTasks {
		x.DeclaredToServer = []byte(mcp.CapabilitiesJSON(capabilities, mcp.ExtensionTasks))
	}
}

// isServerModern reports whether the server supports revision 2026-07-28. If this is not known, it asks the server, and
// counts the client's request as a probe.
func (x *message) isServerModern(ctx context.Context) (bool, *dispatch.Response) {
	speaks, known := x.Server.Stateless()
	if !speaks && len(x.Header[mcp.HeaderSession]) > 0 { // a client with a session has agreed on another revision
		return false, new(x.Refuse(ctx, x.UnsupportedVersion(mcp.Modern)))
	}
	if known {
		return speaks, nil
	}
	if refused := x.CountExempt(ctx, protocol.MethodProbe); refused != nil {
		return false, refused
	}
	speaks, err := x.Server.AskStateless(ctx)
	if err != nil {
		return false, new(x.Refuse(ctx, x.DiscoveryFailed(ctx, err)))
	}
	return speaks, nil
}

// checkRequired refuses a message without a member that every request of revision 2026-07-28 must have. It also refuses
// a message whose headers differ from its body.
func (x *message) checkRequired() *refusal.Refusal {
	m := x.Message
	version, _ := protocol.SingleHeader(x.Header, mcp.HeaderVersion)
	method, _ := protocol.SingleHeader(x.Header, mcp.HeaderMethod)
	name, named := mcp.NameHeader(m.Method, m.Name, m.URI, m.TaskID)
	headerName, readable := mcp.DecodeHeader(x.Header.Get(mcp.HeaderName))
	switch {
	case m.Kind == jsonrpc.Response:
		return refusal.ProtocolError(commonv1.Code_CODE_JSONRPC_INVALID, "send answers in inputResponses of the next request.")
	case m.Kind == jsonrpc.Notification:
		return nil
	case m.Meta.ProtocolVersion == "":
		return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "params._meta lacks "+mcp.MetaVersion+".")
	case !m.Meta.Capabilities.Present():
		return refusal.ProtocolError(commonv1.Code_CODE_PARAMS_INVALID, "params._meta lacks "+mcp.MetaCapabilities+".")
	case version != m.Meta.ProtocolVersion:
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, mcp.HeaderVersion+" differs from params._meta.")
	case method != m.Method:
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, mcp.HeaderMethod+" differs from the body.")
	case named && (!readable || headerName != name):
		return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, mcp.HeaderName+" differs from the body.")
	case mcp.IsRemoved(m.Method):
		return refusal.ProtocolError(commonv1.Code_CODE_METHOD_DENIED, mcp.Modern+" has no such method.")
	}
	return nil
}

// checkParamHeaders refuses a call whose headers differ from its arguments. If the caller's list does not contain the
// tool, checkParamHeaders returns nil, because the call is refused later.
func (x *message) checkParamHeaders(ctx context.Context, tools dispatch.Tools) *refusal.Refusal {
	if tools.HidesTools {
		if listing, err := tools.Listed(ctx); err != nil || !listing.Listed {
			return nil
		}
	}
	bindings, arguments := x.Discovery.ParamHeaders(x.Message.Name), x.Message.Arguments.Of(x.Message.Raw)
	end, err := x.Slot.Answer.TimesliceFor(ctx, len(arguments))
	if err != nil {
		return protocol.UnreadableBody() // the caller has disconnected
	}
	defer end()
	if x.paramHeaders, err = paramheaders.Headers(arguments, bindings, x.Header.Get); err == nil {
		return nil
	}
	x.Discovery.RefreshInBackground(servers.RenewAfter) // the tool's schema may have changed
	return refusal.ProtocolError(commonv1.Code_CODE_HEADER_MISMATCH, err.Error()+".")
}

// Route implements [protocol.Protocol].
func (x *message) Route(ctx context.Context) dispatch.Response {
	if err := x.Slot.Admit(ctx); err != nil {
		return x.Refuse(ctx, dispatch.NotAdmitted(err))
	}
	return x.handleAdmitted(ctx)
}

func (x *message) handleAdmitted(ctx context.Context) dispatch.Response {
	switch {
	case x.Message.InputResponses.Present() && len(x.capabilities) == 0:
		return x.Refuse(ctx, &refusal.Refusal{Code: commonv1.Code_CODE_METHOD_DENIED, Message: "the server may send no requests to this client; send this request without inputResponses."})
	case x.Message.Method == mcp.MethodDiscover:
		return x.discover(ctx)
	case x.Message.Method == mcp.MethodListen:
		return x.subscribe(ctx)
	case x.IsOwnTask():
		return x.ownTask(ctx)
	default:
		return x.Handle(ctx)
	}
}

// discover responds to server/discover with the server's revisions and the capabilities that the caller may use. The
// response is based on the gateway's own discovery if no rule can allow the caller to call the server, or if a person
// has to sign in at the server first.
func (x *message) discover(ctx context.Context) dispatch.Response {
	out := x.NewRelay()
	defer out.Settle()
	answer, refused := x.discovered(ctx, out)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	edits := answer.Clean(nil)
	if at := answer.SupportedVersions; at.Present() {
		var versions []string
		if err := json.Unmarshal(at.Of(answer.Raw), &versions); err != nil {
			x.Log.DebugContext(ctx, "supportedVersions of the server is not readable", "server", x.ServerName)
		}
		common, err := json.Marshal(slices.DeleteFunc(x.SupportedVersions(), func(version string) bool { return !slices.Contains(versions, version) }))
		if err != nil { // the values are constants, so this cannot fail
			common = []byte("[]")
		}
		edits = append(edits, jsonrpc.Edit{Span: at, With: common})
	}
	if at := answer.Capabilities; at.Present() {
		edits = append(editsOutside(edits, at), jsonrpc.Edit{Span: at, With: protocol.ServerCapabilities(answer, x.access, mcp.ExtensionTasks)})
	}
	return x.Edited(ctx, answer, x.WithClientID(answer, dispatch.MarkPrivate(answer, edits, true)))
}

func (x *message) discovered(ctx context.Context, out *dispatch.Relay) (*jsonrpc.Answer, *refusal.Refusal) {
	if x.access.MayCall {
		greeting, refused := x.AskServer(ctx, upstream.Discover(x.AsClient), out)
		if refused == nil || refused.Code != commonv1.Code_CODE_LOGIN_REQUIRED {
			return greeting, refused
		}
	}
	found, err := x.Discovery.Get(ctx, discovery.Fresh)
	if err != nil {
		return nil, x.DiscoveryFailed(ctx, err)
	}
	greeting := found.Greeting
	if x.translates {
		if greeting, err = upstream.Discovered(greeting, []byte("0")); err != nil {
			return nil, x.DiscoveryFailed(ctx, err)
		}
	}
	if refused := x.CheckInputRequests(ctx, greeting); refused != nil {
		return nil, refused
	}
	if greeting, err = x.RedactGreeting(greeting); err != nil {
		return nil, x.DiscoveryFailed(ctx, err)
	}
	return greeting, nil
}

// editsOutside returns the edits outside the given span. Edits inside the span are not needed, because the whole span
// is replaced.
func editsOutside(edits []jsonrpc.Edit, at jsonrpc.Span) []jsonrpc.Edit {
	return slices.DeleteFunc(edits, func(e jsonrpc.Edit) bool { return e.Span.Start >= at.Start && e.Span.End <= at.End })
}

// statusOf returns the HTTP status for an answer in revision 2026-07-28 (MCP 2026-07-28, Transports). It is the
// server's status if MCP defines that status for errors. Otherwise, it is 200.
func statusOf(answer *jsonrpc.Answer, status int) int {
	if answer.Error.Present() && (status == http.StatusBadRequest || status == http.StatusNotFound) {
		return status
	}
	return http.StatusOK
}

func (x *message) IsOwnTask() bool {
	switch x.Message.Method {
	case mcp.MethodTasksGet, mcp.MethodTasksUpdate, mcp.MethodTasksCancel:
		return tasks.IsOwnID(x.Message.TaskID)
	default:
		return false
	}
}

// SetTerms changes nothing, because the caller's state does not determine how a message is handled.
func (*message) SetTerms(*session.Session) {}

func (x *message) Prepare(ctx context.Context, call *attempt.Call, tracked *session.Call, tools dispatch.Tools, policyKnown bool) *refusal.Refusal {
	if x.Message.Method == mcp.MethodToolsCall && policyKnown {
		if refused := x.checkParamHeaders(ctx, tools); refused != nil {
			return refused
		}
	}
	call.ParamHeaders, call.ApprovalID = x.paramHeaders, cmp.Or(x.roundTrip.approval, x.ApprovalID)
	tracked.CancelWith(ctx)
	tracked.SetServerRequests(x.DecideServerRequest)
	if x.becomesTask = x.mayBeTask(); x.becomesTask { // the call is not held, because the client receives the task immediately
		call.Hold = new(time.Duration)
	}
	return nil
}

func (x *message) TranslatesRevisions() bool { return x.translates }

func (x *message) Pending(ctx context.Context, result pipeline.Result) (dispatch.Response, bool) {
	if state := x.nextRoundTrip(result); state != "" {
		body, err := result.Refusal.RetryResponse(x.ID(), state)
		return x.OwnResponse(ctx, body, err), true
	}
	if !x.becomesTask {
		return dispatch.Response{}, false
	}
	return x.answerWithTask(ctx, result.Refusal)
}

func (x *message) Answer(ctx context.Context, result pipeline.Result) dispatch.Response {
	// If the gateway has added the server's requests to this answer itself, DecideServerRequest has already evaluated
	// them.
	if !x.translates || !result.Answer.InputRequests.Present() {
		if refused := x.CheckInputRequests(ctx, result.Answer); refused != nil {
			return x.RefusedResponse(ctx, refused)
		}
	}
	edits, filtered, refused := x.FilterResult(ctx, result.Answer)
	if refused != nil {
		return x.Refuse(ctx, refused)
	}
	if upstream.HasCode(result.Answer, mcp.CodeHeaderMismatch) || upstream.HasCode(result.Answer, mcp.CodeVersionUnsupported) {
		x.Discovery.RefreshInBackground(servers.RenewAfter) // other arguments may have to be repeated in headers
	}
	if edits, refused = x.rewriteTask(ctx, result.Answer, dispatch.MarkPrivate(result.Answer, edits, filtered)); refused != nil {
		return x.RefusedResponse(ctx, refused)
	}
	out := x.Edited(ctx, result.Answer, edits)
	out.Status = cmp.Or(out.Status, statusOf(result.Answer, result.Status))
	return out
}

func (x *message) OwnList(found *discovery.Result) (*jsonrpc.Answer, error) {
	if x.translates {
		return upstream.Complete(found.List, x.Message.Method)
	}
	return found.List, nil
}
