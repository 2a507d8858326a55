package dispatch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/forms"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// NotifyTimeout is the timeout for sending a notification to a server.
const NotifyTimeout = 5 * time.Second

// makeCall sends a request through the pipeline. The method of the request needs a rule, as tools/call does.
func (x *Exchange) makeCall(ctx context.Context) Response {
	relay := x.NewRelay()
	callCtx, tracked := x.Session.BeginCall(ctx, jsonrpc.IDKey(x.ID()), x.Deadline)
	defer tracked.End()
	defer relay.Settle()
	relay.requestCtx = callCtx
	call, tools, policyKnown := x.newCall(ctx, tracked, relay)
	if refused := x.Era.Prepare(callCtx, call, tracked, tools, policyKnown); refused != nil {
		return x.Refuse(ctx, refused)
	}
	result := x.Deps.Pipeline.Do(callCtx, call)
	response := x.newResponse(x.Uncancelled(ctx), result)
	response.Held = result.Held + x.Deadline.Paused()
	response.ID, response.Decision = result.ID, result.Decision
	response.Approved = result.Approved
	response.Unrecorded, response.Detached = result.Unrecorded, result.StreamEnded
	return response
}

// newCall returns the pipeline's input for the request, and a value that looks up the called tool. policyKnown is false
// if the policy service could not determine which tools the caller may see.
func (x *Exchange) newCall(ctx context.Context, tracked *session.Call, relay *Relay) (call *attempt.Call, tools Tools, policyKnown bool) {
	tools, err := x.tools(ctx)
	call = &attempt.Call{
		Principal:            x.ActingPrincipal(),
		Stale:                x.Stale || err != nil,
		Credential:           x.Credential,
		Server:               x.ServerName,
		Message:              x.Message,
		Received:             x.Received,
		Timeout:              x.Timeout,
		MaxTimeout:           x.Server.MaxTimeout,
		Deadline:             x.Deadline,
		RecordArguments:      x.Server.RecordArguments,
		Transport:            x.Server.Upstream.Transport(),
		Version:              x.Session.Version,
		Client:               x.ClientName,
		DeclaredCapabilities: x.DeclaredToServer,
		Upstream:             tracked,
		Memory:               &x.Slot.Answer,
		Reply:                relay,
		Identity:             x.Server.Identity,
		Tools:                tools,
		HidesTools:           tools.HidesTools,
		Hold:                 x.Hold,
	}
	if x.Session.Client.Elicits && relay.Accepts() && x.Deps.Forms.State(x.formsClient()) != forms.Silent {
		call.Confirm = x.confirm(relay)
	}
	return call, tools, err == nil
}

func (x *Exchange) newResponse(ctx context.Context, result pipeline.Result) Response {
	refused := result.Refusal
	if refused == nil {
		return x.Era.Answer(ctx, result)
	}
	if refused.Code == commonv1.Code_CODE_TOOL_CHANGED || refused.Code == commonv1.Code_CODE_TOOL_UNKNOWN {
		// List the server's tools again, because the server may have been repaired, or the catalog may have lost its records.
		x.Discovery.RefreshInBackground(servers.RenewAfter)
	}
	if out, pends := x.Era.Pending(ctx, result); pends {
		return out
	}
	return x.RefusedResponse(ctx, refused)
}

// Access returns the caller's permissions on the server. They are sufficient to check messages that need no rule.
// Access returns an error if the policy service is unavailable.
func (x *Exchange) Access(ctx context.Context) (visibility.Access, error) {
	if x.Stale {
		return visibility.Access{}, ErrStale
	}
	return x.Deps.Visibility.Access(ctx, x.Principal, x.ServerName)
}

// ErrStale means that the gateway does not know whether the caller's token is still valid.
var ErrStale = errors.New("it is not known whether the token is still valid")

// NotAdmitted returns the refusal for a request from a caller with too many requests in flight, or with too many
// answers that the caller has not read yet.
func NotAdmitted(err error) *refusal.Refusal {
	if errors.Is(err, limits.ErrServer) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: err.Error() + "."}
	}
	return &refusal.Refusal{
		Code:    commonv1.Code_CODE_ABUSE_LIMITED,
		Message: "this caller has too many unread answers; read them first, or make fewer such calls at once.",
	}
}

// PolicyUnavailable returns the refusal for a request that arrives while the policy service is unavailable.
func PolicyUnavailable() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
}

// AskServer sends a request from the gateway itself to the server and returns the server's answer. The request replaces
// the client's request. AskServer fails if ctx is done or the server's timeout expires.
func (x *Exchange) AskServer(ctx context.Context, own upstream.GatewayMessage, out *Relay) (*jsonrpc.Answer, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, x.Timeout)
	defer cancel()
	answer, err := x.Session.Upstream.SendRequest(ctx, own, &x.Slot.Answer, out.Event)
	if err != nil {
		return nil, x.ServerFailed(ctx, answer, err)
	}
	if refused := x.CheckInputRequests(ctx, answer.Message); refused != nil {
		return nil, refused
	}
	return answer.Message, nil
}

// ServerFailed logs that a server has sent no usable answer, and returns the refusal for the client.
func (x *Exchange) ServerFailed(ctx context.Context, answer upstream.Answer, err error) *refusal.Refusal {
	x.Deps.Log.WarnContext(ctx, "server did not answer", "server", x.ServerName, "mcp_method", x.Message.Method, "why", upstream.PublicReason(answer, err))
	x.Deps.Log.DebugContext(ctx, "server did not answer", "server", x.ServerName, "error", upstream.ForLog(err))
	refused := refusalOf(answer, err)
	if refused.Code == commonv1.Code_CODE_UPSTREAM_TIMEOUT && refused.Message == "" {
		refused.Message = fmt.Sprintf("the server did not answer within %s (servers.%s.timeout).", x.Timeout, x.ServerName)
	}
	return refused
}

// refusalOf returns the refusal for a request that was sent without the pipeline and has no usable answer.
func refusalOf(answer upstream.Answer, err error) *refusal.Refusal {
	refused := &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	if cause := upstream.CauseOf(err); cause != nil {
		refused.Message, refused.RetryAfter, refused.Permanent = refusal.Sentence(cause.Text), cause.RetryAfter, cause.Lasts
	} else if answer.Status >= http.StatusMultipleChoices {
		refused.Message = fmt.Sprintf("the server answered with HTTP status %d.", answer.Status)
	}
	if upstream.IsSignIn(err) {
		refused.Code = commonv1.Code_CODE_LOGIN_REQUIRED
	}
	if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
		refused.Message, refused.RetryAfter = limit.Error()+".", limit.RetryAfter
	}
	switch {
	case errors.Is(err, quota.ErrFull):
		refused.Message = quota.Reason(err) + "; end some of them, or wait until they are idle and end by themselves."
	case errors.Is(err, upstream.ErrTimeout):
		refused.Code = commonv1.Code_CODE_UPSTREAM_TIMEOUT
	case errors.Is(err, bodyreader.ErrSlow):
		refused.Message = bodyreader.ErrSlow.Error() + "."
	case errors.Is(err, upstream.ErrCircuitOpen):
		refused.Message, refused.RetryAfter = upstream.ErrCircuitOpen.Error()+".", upstream.OpenDuration
	case errors.Is(err, upstream.ErrBusy):
		refused.Message = upstream.ErrBusy.Error() + "."
	case errors.Is(err, limits.ErrMemory):
		refused.Message = limits.ErrMemory.Error() + "; read other answers first."
	case errors.Is(err, upstream.ErrOneSession):
		refused.Message = upstream.ErrOneSession.Error() + "."
	case errors.Is(err, upstream.ErrSessionLost) && !errors.Is(err, upstream.ErrSignedOut):
		refused.Message = upstream.ErrSessionLost.Error() + "; initialize again."
	case upstream.AnswerFault(err) != "" && upstream.CauseOf(err) == nil:
		refused.Message = "the server's answer can't be used: " + upstream.AnswerFault(err) + "."
	}
	return refused
}

// HandleNotification sends the client's notification to the server if it is allowed. Notifications that MCP defines are
// allowed if [Exchange.MayNotify] returns true. All other notifications need a rule that allows them. Refusals are
// recorded.
func (x *Exchange) HandleNotification(ctx context.Context) {
	sent := false
	// A cancelled call must stop waiting for approvers. Otherwise, it could run later.
	if x.Message.Method == mcp.MethodCancelled {
		sent = x.Session.Calls.Cancel(jsonrpc.IDKey(x.Message.RequestID.Of(x.Message.Raw)))
	}
	if mcp.IsVendorNotification(x.Message.Method) && x.Server != nil && x.Deps.Visibility.MayUse(ctx, x.Principal, x.ServerName, x.Message.Method) {
		x.sendVendorNotification(ctx)
		return
	}
	if !x.MayNotify() {
		x.RefuseNotification(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	access, err := x.Access(ctx)
	switch {
	case err != nil:
		x.RefuseNotification(ctx, commonv1.Code_CODE_POLICY_UNAVAILABLE)
	case !access.MayCall:
	case sent:
		x.sendNotification(ctx, upstream.Cancelled(x.Message.RequestID.Of(x.Message.Raw)))
	case x.Message.Method == mcp.MethodInitialized && !x.Session.Ready.Swap(true):
		x.sendNotification(ctx, upstream.Initialized())
	case x.Message.Method == mcp.MethodProgress:
		x.forwardProgress(ctx)
	case x.Message.Method == mcp.MethodRootsChanged && access.Has(mcp.MethodRoots) && access.Has(mcp.MethodRootsChanged):
		x.sendNotification(ctx, upstream.RootsChanged())
	}
}

// MayNotify reports whether the notification may be sent to the server without a rule. The notification that roots have
// changed may be sent only if the server may request the client's roots.
func (x *Exchange) MayNotify() bool {
	return mcp.MethodNeedsNoRule(x.Message.Method) || x.Message.Method == mcp.MethodRootsChanged && x.Session.Client.Offer.Has(mcp.MethodRoots)
}

// sendNotification sends a notification from the gateway itself to the server. It replaces the client's notification.
func (x *Exchange) sendNotification(ctx context.Context, own upstream.GatewayMessage) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), NotifyTimeout)
	defer cancel()
	x.logUnsent(ctx, x.Message.Method, x.Session.Upstream.SendNotification(ctx, own))
}

// RefuseNotification records the refusal of a notification. It returns nothing, because notifications have no response.
func (x *Exchange) RefuseNotification(ctx context.Context, code commonv1.Code) {
	x.Deps.Pipeline.RecordRefusal(ctx, attempt.RefusedRequest{
		Principal: x.ActingPrincipal(), Server: x.ServerName, Method: x.Message.Method, Code: code, Bytes: len(x.Message.Raw),
	})
}
