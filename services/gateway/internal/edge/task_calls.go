package edge

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gate"
	"github.com/sluice-mesh/sluice/services/gateway/internal/httpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

// mayBeTask reports whether the request at hand is a call that is answered with a task where it waits for
// people. What its server asks a task could not pass on, so in a session that can ask there is none.
func (x *v2026) mayBeTask() bool {
	return x.takesTasks && x.msg.Method == mcp.MethodToolsCall && len(x.msg.Raw) <= maxTask &&
		!x.msg.InputResponses.Present() && !x.msg.RequestState.Present() && x.leg == (leg{}) && (!x.bridged || len(x.can) == 0) &&
		x.tasks.hasPlace(&x.has.Of, string(x.owner()))
}

// becomesTask answers a call that waits for people with a task, and reports whether it could.
func (x *v2026) becomesTask(ctx context.Context, why *refusal.Refusal) (response, bool) {
	if why.Code != commonv1.Code_CODE_APPROVAL_PENDING || why.Approval == nil {
		return response{}, false
	}
	t := &task{
		owner: string(x.owner()), server: x.server, head: make(http.Header), message: x.msg.Raw, approval: why.Approval.ID,
		holder: room.Holder{Accounts: x.has.Of.Accounts, Server: x.server},
	}
	for name, lines := range x.header { // the client that asks about the task makes the call, so this has no credential
		if name == "Content-Type" || name == "Accept" || name == "Traceparent" || strings.HasPrefix(name, "Mcp-") {
			t.head[name] = slices.Clone(lines)
		}
	}
	if !x.tasks.keep(t, why.Approval.Expires) {
		return response{}, false
	}
	said, _ := t.says()
	said.Type, said.Meta = mcp.ResultTask, why.Meta()
	return x.answerTask(ctx, said, taskEnd{}), true
}

// advance brings a task up to date: where people have decided, its call is made.
func (x *v2026) advance(ctx context.Context, t *task) {
	approval, waits := t.waits()
	if !waits {
		return
	}
	a, refused := x.deps.Pipeline.Approval(ctx, x.acting(), approval)
	if refused != nil && refused.Retryable() || a.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_PENDING || !x.visits.enter() {
		return // a gateway that stops lets it wait, too
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	if !t.begin(cancel) { // somebody else makes it
		cancel()
		x.visits.leave()
		return
	}
	e, by := x.Edge, x.Caller
	go func() {
		defer e.visits.leave()
		defer cancel()
		defer func() {
			if panicked := recover(); panicked != nil { // net/http sees to the goroutines of requests alone
				e.panicked(ctx, panicked)
				t.ended(taskFailed, taskEnd{fault: noTaskAnswer})
			}
		}()
		e.makeTask(ctx, by, t, approval)
	}()
}

// noTaskAnswer is what is told of a call that may have been made and whose answer is not there.
var noTaskAnswer = jsontext.Value(`{"code":-32603,"message":"There is no answer that could be kept. Whether the call was made is on record."}`)

// makeTask makes the call of a task for this caller of its owner's, who has waited for this approval.
func (e *Edge) makeTask(ctx context.Context, by httpserver.Caller, t *task, approval string) {
	by.Stale = by.Stale || by.Revoked()
	x := &exchange{Edge: e, Caller: by, header: t.head, client: ctx, stream: new(callback), server: t.server, hold: new(time.Duration), resumes: approval}
	came := x.inside(t.message)
	end := taskEnd{unrecorded: came.unrecorded}
	if why := came.refusal; why != nil && why.Retryable() { // nothing was sent, and the approval stands
		var expires time.Time
		if why.Code == commonv1.Code_CODE_APPROVAL_PENDING && why.Approval != nil { // or people begin again
			approval, expires = why.Approval.ID, why.Approval.Expires
		}
		if !t.waitOn(approval, expires) {
			e.withdraw(ctx, by, t, approval)
		}
		return
	}
	answer, err := gate.ReadAnswer(came.whole, gate.AnswerLimits())
	switch {
	case err != nil || answer.Kind != gate.Response || !t.has.Add(len(came.whole)):
		end.fault = noTaskAnswer
		t.ended(taskFailed, end)
	case answer.Error.Present():
		end.fault = answer.Error.Of(answer.Raw)
		t.ended(taskFailed, end)
	default:
		end.result = answer.Result.Of(answer.Raw)
		t.ended(taskCompleted, end)
	}
}

// withdraw ends the approval of a task that nobody wants any more, unless another waits for it.
func (e *Edge) withdraw(ctx context.Context, by httpserver.Caller, t *task, approval string) {
	if e.tasks.waitsForIt(t, approval) {
		return
	}
	if err := e.deps.Pipeline.Withdraw(ctx, by.Principal, approval, "its task was cancelled"); err != nil { // it runs nothing by itself
		e.deps.Log.WarnContext(ctx, "approval of a cancelled task was not ended", "approval_id", approval, "error", err)
	}
}
