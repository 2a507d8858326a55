package v2026

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/tasks"
)

// mayBeTask reports whether the request is a call that becomes a task if it waits for an approval. While a task runs,
// requests from a server can't be forwarded to the client. Therefore, a call does not become a task if its server may
// send requests in a session.
func (x *message) mayBeTask() bool {
	return x.takesTasks && x.Message.Method == mcp.MethodToolsCall && len(x.Message.Raw) <= tasks.MaxMessage &&
		!x.Message.InputResponses.Present() && !x.Message.RequestState.Present() && x.roundTrip == (roundTrip{}) && (!x.translates || len(x.capabilities) == 0) &&
		x.tasks.HasCapacity(&x.Slot.Owner, string(x.owner()))
}

// answerWithTask returns a response with a task for a call that waits for an approval. It returns false if the call
// can't become a task.
func (x *message) answerWithTask(ctx context.Context, why *refusal.Refusal) (dispatch.Response, bool) {
	if why.Code != commonv1.Code_CODE_APPROVAL_PENDING || why.Approval == nil {
		return dispatch.Response{}, false
	}
	call := tasks.Call{
		Owner: string(x.owner()), Server: x.ServerName, Header: make(http.Header), Message: x.Message.Raw,
		Holder: limits.Owner{Accounts: x.Slot.Owner.Accounts, Server: x.ServerName},
	}
	for name, lines := range x.Header { // credentials are not stored, because the call uses the credential of the client that polls the task
		if name == "Content-Type" || name == "Accept" || name == "Traceparent" || strings.HasPrefix(name, "Mcp-") {
			call.Header[name] = slices.Clone(lines)
		}
	}
	t := x.tasks.Add(call, why.Approval.ID, why.Approval.Expires)
	if t == nil {
		return dispatch.Response{}, false
	}
	state := describe(t.Report())
	state.Type, state.Meta = mcp.ResultTask, why.Meta()
	return x.answerTask(ctx, state, tasks.Outcome{}), true
}

// advanceTask starts a task's call in the background if the task's approval is no longer pending.
func (x *message) advanceTask(ctx context.Context, t *tasks.Task) {
	approval, waits := t.AwaitedApproval()
	if !waits {
		return
	}
	a, refused := x.Pipeline.Approval(ctx, x.ActingPrincipal(), approval)
	if refused != nil && refused.Retryable() || a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING || !x.Background.Begin() {
		return // the gateway is stopping, so it does not start the call
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if !t.Begin(cancel) { // another request has already started the call
		cancel()
		x.Background.Done()
		return
	}
	s, caller := x.Protocol, x.Caller
	go func() {
		defer s.front.Background.Done()
		defer cancel()
		defer func() {
			if panicked := recover(); panicked != nil { // in this goroutine, net/http does not recover panics
				s.front.LogPanic(ctx, panicked)
				t.End(tasks.Failed, tasks.Outcome{Error: outcomeNotStored})
			}
		}()
		s.makeTaskCall(ctx, caller, t, approval)
	}()
}

// outcomeNotStored is the outcome of a task whose answer was not stored although the call may have been executed.
var outcomeNotStored = jsontext.Value(`{"code":-32603,"message":"The answer of this call could not be stored. The gateway's record says whether the call was made."}`)

func (s *Protocol) makeTaskCall(ctx context.Context, caller httpserver.Caller, t *tasks.Task, approval string) {
	caller.Stale = caller.Stale || caller.Revoked(ctx)
	x := s.front.NewRequest(ctx, caller, t.Server, t.Header, new(dispatch.Callback))
	x.Hold, x.ApprovalID = new(time.Duration), approval
	response := x.Do(t.Message)
	if why := response.Refusal; why != nil && why.Retryable() { // nothing was sent, and the approval can still be used
		var expires time.Time
		if why.Code == commonv1.Code_CODE_APPROVAL_PENDING && why.Approval != nil { // a new approval was requested
			approval, expires = why.Approval.ID, why.Approval.Expires
		}
		if !t.Wait(approval, expires) {
			s.withdraw(ctx, caller, t, approval)
		}
		return
	}
	out := tasks.Outcome{Unrecorded: response.Unrecorded}
	answer, err := jsonrpc.ReadAnswer(response.Joined, jsonrpc.AnswerLimits())
	switch {
	case err != nil || answer.Kind != jsonrpc.Response || !t.Reserve(len(response.Joined)):
		out.Error = outcomeNotStored
		t.End(tasks.Failed, out)
	case answer.Error.Present():
		out.Error = answer.Error.Of(answer.Raw)
		t.End(tasks.Failed, out)
	default:
		out.Result = answer.Result.Of(answer.Raw)
		t.End(tasks.Completed, out)
	}
}

// withdraw cancels the approval of a cancelled task, unless another task waits for the same approval.
func (s *Protocol) withdraw(ctx context.Context, caller httpserver.Caller, t *tasks.Task, approval string) {
	if s.tasks.IsAwaited(approval, t) {
		return
	}
	// If the approval can't be cancelled, it stays valid, but no call uses it.
	if err := s.front.Pipeline.Withdraw(ctx, caller.Principal, approval, "its task was cancelled"); err != nil {
		s.front.Log.WarnContext(ctx, "approval of a cancelled task was not ended", "approval_id", approval, "error", err)
	}
}
