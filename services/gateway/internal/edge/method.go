package edge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/inflight"
	"github.com/sluice-mesh/sluice/services/gateway/internal/intake"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/visibility"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// notifyTimeout is how long sending a notification to a server may take.
const notifyTimeout = 5 * time.Second

// call sends a request through the pipeline: tools/call, and every other method that needs a rule.
func (x *core) call(ctx context.Context) dispatch.Response {
	out := x.newRelay()
	calling, under := x.sess.Begin(ctx, gate.IDKey(x.id()), x.patience)
	defer under.End()
	defer out.asks.settle()
	out.gone = calling
	call, of, judged := x.callOf(ctx, under, out)
	call, refused := x.era.prepare(calling, call, under, of, judged)
	if refused != nil {
		return x.refuse(ctx, refused)
	}
	result := x.Deps.Pipeline.Do(calling, call)
	answer := x.answerOf(x.whole(ctx), result)
	answer.Held = result.Held + x.patience.Paused()
	answer.ID, answer.Decision = result.ID, result.Decision
	answer.Unrecorded, answer.Detached = result.Unrecorded, result.Left
	return answer
}

// callOf returns the request as the pipeline takes it, and what the server lists to the caller. judged reports whether
// policy could say what the caller sees.
func (x *core) callOf(ctx context.Context, under *session.Call, out *relay) (call attempt.Call, of tools, judged bool) {
	of, err := x.tools(ctx)
	call = attempt.Call{
		Principal:  x.acting(),
		Stale:      x.Stale || err != nil,
		Revoked:    x.Revoked,
		Server:     x.server,
		Message:    x.msg,
		Received:   x.received,
		Timeout:    x.timeout,
		MaxTimeout: x.target.MaxTimeout,
		Patience:   x.patience,
		Transport:  x.target.Upstream.Transport(),
		Version:    x.sess.Version,
		Client:     x.clientName,
		Told:       x.told,
		Upstream:   under,
		Room:       &x.has.Answer,
		Reply:      out,
		Identity:   x.target.Identity,
		Tools:      of,
		Hides:      of.hides,
		Hold:       x.hold,
	}
	if x.sess.Client.Elicits && out.Accepts() {
		call.Confirm = x.confirm(out)
	}
	return call, of, err == nil
}

// answerOf returns the response to a request that has gone through the pipeline.
func (x *core) answerOf(ctx context.Context, result pipeline.Result) dispatch.Response {
	refused := result.Refusal
	if refused == nil {
		return x.era.answer(ctx, result)
	}
	if refused.Code == commonv1.Code_CODE_TOOL_CHANGED || refused.Code == commonv1.Code_CODE_TOOL_UNKNOWN {
		x.ownList.Renew(servers.RenewAfter) // the server may have been repaired, or the catalog may have lost its records
	}
	if out, pends := x.era.pending(ctx, result); pends {
		return out
	}
	return x.refused(ctx, refused)
}

// lookupAccess returns what policy may allow the caller on the server. Messages that need no rule depend on it. It returns
// an error if policy cannot be asked.
func (x *core) lookupAccess(ctx context.Context) (visibility.Access, error) {
	if x.Stale {
		return visibility.Access{}, errStale
	}
	return x.Deps.Visibility.Access(ctx, x.Principal, x.server)
}

// errStale means that the caller's token may have been revoked without the gateway's knowledge.
var errStale = errors.New("whether the token still counts is not known")

// notAdmitted returns the refusal for a caller that has too many requests under way, or leaves answers unread.
func notAdmitted(err error) *refusal.Refusal {
	if errors.Is(err, inflight.ErrThere) {
		return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED, Message: err.Error() + "."}
	}
	return &refusal.Refusal{
		Code:    commonv1.Code_CODE_ABUSE_LIMITED,
		Message: "answers to this caller wait until others are read; read those first, or make fewer such calls at once.",
	}
}

// policyAway returns the refusal for the case that policy cannot be asked.
func policyAway() *refusal.Refusal {
	return &refusal.Refusal{Code: commonv1.Code_CODE_POLICY_UNAVAILABLE}
}

// ask sends a request of the gateway in place of the client's, and returns the server's answer. It ends with ctx.
func (x *core) ask(ctx context.Context, own upstream.Own, out *relay) (*gate.Answer, *refusal.Refusal) {
	ctx, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()
	answer, err := x.sess.Upstream.Ask(ctx, own, &x.has.Answer, out.Event)
	if err != nil {
		return nil, x.silent(ctx, answer, err)
	}
	if refused := x.inputs(ctx, answer.Message); refused != nil {
		return nil, refused
	}
	return answer.Message, nil
}

// silent logs that a server gave no usable answer, and returns the refusal.
func (x *core) silent(ctx context.Context, answer upstream.Answer, err error) *refusal.Refusal {
	x.Deps.Log.WarnContext(ctx, "server did not answer", "server", x.server, "mcp_method", x.msg.Method, "why", upstream.Why(answer, err))
	x.Deps.Log.DebugContext(ctx, "server did not answer", "server", x.server, "error", upstream.ForLog(err))
	refused := unanswered(answer, err)
	if refused.Code == commonv1.Code_CODE_UPSTREAM_TIMEOUT && refused.Message == "" {
		refused.Message = fmt.Sprintf("the server did not answer within %s (servers.%s.timeout).", x.timeout, x.server)
	}
	return refused
}

// unanswered returns the refusal of a request other than a call that got no usable answer.
func unanswered(answer upstream.Answer, err error) *refusal.Refusal {
	refused := &refusal.Refusal{Code: commonv1.Code_CODE_UPSTREAM_UNAVAILABLE}
	if cause := upstream.CauseOf(err); cause != nil {
		refused.Message, refused.RetryAfter, refused.Lasts = refusal.Sentence(cause.Text), cause.RetryAfter, cause.Lasts
	} else if answer.Status >= http.StatusMultipleChoices {
		refused.Message = fmt.Sprintf("the server answered with HTTP status %d.", answer.Status)
	}
	if limit, ok := errors.AsType[*upstream.LimitError](err); ok {
		refused.Message, refused.RetryAfter = limit.Error()+".", limit.RetryAfter
	}
	switch {
	case errors.Is(err, quota.ErrFull):
		refused.Message = quota.Why(err) + "; end some of them, or wait until they are idle and end by themselves."
	case errors.Is(err, upstream.ErrTimeout):
		refused.Code = commonv1.Code_CODE_UPSTREAM_TIMEOUT
	case errors.Is(err, intake.ErrSlow):
		refused.Message = intake.ErrSlow.Error() + "."
	case errors.Is(err, upstream.ErrRests):
		refused.Message, refused.RetryAfter = upstream.ErrRests.Error()+".", upstream.Rest
	case errors.Is(err, upstream.ErrBusy):
		refused.Message = upstream.ErrBusy.Error() + "."
	case errors.Is(err, room.ErrFull):
		refused.Message = room.ErrFull.Error() + "; read others first."
	case errors.Is(err, upstream.ErrOneSession):
		refused.Message = upstream.ErrOneSession.Error() + "."
	case errors.Is(err, upstream.ErrSessionLost):
		refused.Message = upstream.ErrSessionLost.Error() + "; initialize again."
	case upstream.WhatIsWrong(err) != "" && upstream.CauseOf(err) == nil:
		refused.Message = "the server's answer can't be used: " + upstream.WhatIsWrong(err) + "."
	}
	return refused
}

// noted sends a notification to the server if the server may get it. A notification that neither needs no rule nor is
// allowed by one is refused on record.
func (x *core) noted(ctx context.Context) {
	sent := false
	if x.msg.Method == mcp.MethodCancelled { // a call that waits for an approver must not run afterwards
		sent = x.sess.Calls.GiveUp(gate.IDKey(x.msg.RequestID.Of(x.msg.Raw)))
	}
	if mcp.IsOwnNotification(x.msg.Method) && x.target != nil && x.Deps.Visibility.MayUse(ctx, x.Principal, x.server, x.msg.Method) {
		x.carriesTo(ctx)
		return
	}
	if !x.notifies() {
		x.refuseSilently(ctx, commonv1.Code_CODE_METHOD_DENIED)
		return
	}
	access, err := x.lookupAccess(ctx)
	switch {
	case err != nil:
		x.refuseSilently(ctx, commonv1.Code_CODE_POLICY_UNAVAILABLE)
	case !access.MayCall:
	case sent:
		x.tell(ctx, upstream.Cancelled(x.msg.RequestID.Of(x.msg.Raw)))
	case x.msg.Method == mcp.MethodInitialized && !x.sess.Ready.Swap(true):
		x.tell(ctx, upstream.Initialized())
	case x.msg.Method == mcp.MethodProgress:
		x.progressed(ctx)
	case x.msg.Method == mcp.MethodRootsChanged && access.Has(mcp.MethodRoots) && access.Has(mcp.MethodRootsChanged):
		x.tell(ctx, upstream.RootsChanged())
	}
}

// notifies reports whether the notification may go to a server without a rule. A server is notified of changed roots
// only if it may ask the client for roots.
func (x *core) notifies() bool {
	return mcp.AlwaysPasses(x.msg.Method) || x.msg.Method == mcp.MethodRootsChanged && x.sess.Client.Offer.Has(mcp.MethodRoots)
}

// tell sends a notification of the gateway in place of the client's.
func (x *core) tell(ctx context.Context, own upstream.Own) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyTimeout)
	defer cancel()
	x.logUntold(ctx, x.msg.Method, x.sess.Upstream.Tell(ctx, own))
}

// refuseSilently records the refusal of a notification, which has no answer.
func (x *core) refuseSilently(ctx context.Context, code commonv1.Code) {
	x.Deps.Pipeline.RecordRefusal(ctx, attempt.Unjudged{
		Principal: x.acting(), Server: x.server, Method: x.msg.Method, Code: code, Bytes: len(x.msg.Raw),
	})
}
