package edge

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// taskSaid is what a client is told of a task (MCP Tasks extension, Tasks).
type taskSaid struct {
	Type    string         `json:"resultType"`
	ID      string         `json:"taskId"`
	Status  string         `json:"status"`
	Message string         `json:"statusMessage,omitzero"`
	Created time.Time      `json:"createdAt"`
	Updated time.Time      `json:"lastUpdatedAt"`
	TTL     int64          `json:"ttlMs"`
	Poll    int64          `json:"pollIntervalMs"`
	Result  jsontext.Value `json:"result,omitzero"`
	Error   jsontext.Value `json:"error,omitzero"`
	Meta    any            `json:"_meta,omitzero"`
}

// says is what its client is told of a task.
func (t *task) says() taskSaid {
	t.mu.Lock()
	defer t.mu.Unlock()
	said := taskSaid{
		Type: mcp.ResultComplete, ID: t.id, Status: t.status, Created: t.created.UTC(), Updated: t.updated.UTC(),
		TTL: t.ttl.Milliseconds(), Poll: taskPoll.Milliseconds(), Result: t.result, Error: t.fault,
	}
	switch {
	case t.status == taskWorking && t.cancel == nil:
		said.Message = "A person must approve this call, and was asked. It is made once they have, when this task is asked about."
	case t.status == taskWorking:
		said.Message = "The call is being made."
	}
	return said
}

// ownTask is a request about a task of the gateway's own. It needs no rule: it tells a caller of what
// it has asked for itself.
func (x *exchange) ownTask(ctx context.Context) {
	out := x.newWriter()
	t := x.ownTasks.find(x.msg.TaskID, string(x.owner()))
	switch {
	case x.stale:
		x.refuse(ctx, out, policyAway())
		return
	case !x.tasks:
		refused := x.rejection(http.StatusBadRequest, commonv1.Code_CODE_PARAMS_INVALID)
		refused.rpc, refused.message = mcp.CodeCapabilityMissing, "the request does not say that its client has "+mcp.ExtensionTasks+"."
		refused.requires = mcp.ExtensionTasks
		x.rejectMessage(*refused)
		return
	case t == nil:
		x.rejectMessage(*x.noTask())
		return
	}
	switch x.msg.Method {
	case mcp.MethodTasksGet:
		x.stands(ctx, t)
		x.answerTask(ctx, out, t.says())
		return
	case mcp.MethodTasksCancel:
		x.cancelTask(ctx, t)
	case mcp.MethodTasksUpdate: // it asks nothing, so there is nothing that an answer could be to
	default:
		refused := x.rejection(http.StatusNotFound, commonv1.Code_CODE_METHOD_DENIED)
		refused.rpc, refused.message = mcp.CodeMethodUnknown, "a task has no such method."
		x.rejectMessage(*refused)
		return
	}
	out.ours(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"%s"}}`, x.id(), mcp.ResultComplete), nil)
}

// cancelTask takes a call back: while it waits its approval is ended, and while it is made it is
// cancelled at its server.
func (x *exchange) cancelTask(ctx context.Context, t *task) {
	t.mu.Lock()
	approval, waited := t.approval, t.cancel == nil
	t.mu.Unlock()
	if !t.finish(taskCancelled, nil, nil) || !waited {
		return
	}
	if err := x.deps.Pipeline.Withdraw(ctx, x.acting(), approval, "the task was cancelled"); err != nil { // it runs nothing by itself
		x.deps.Log.WarnContext(ctx, "approval of a cancelled task was not ended", "approval_id", approval, "error", err)
	}
}

// answerTask answers with what is said of a task.
func (x *exchange) answerTask(ctx context.Context, out *writer, said taskSaid) {
	body, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  taskSaid       `json:"result"`
	}{"2.0", x.id(), said})
	out.ours(ctx, body, err)
}
