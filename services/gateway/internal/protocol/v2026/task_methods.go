package v2026

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/tasks"
)

// taskState is a task without its outcome, as clients receive it (MCP Tasks extension, Tasks).
type taskState struct {
	Type    string       `json:"resultType"`
	ID      string       `json:"taskId"`
	Status  tasks.Status `json:"status"`
	Message string       `json:"statusMessage,omitzero"`
	Created time.Time    `json:"createdAt"`
	Updated time.Time    `json:"lastUpdatedAt"`
	TTL     int64        `json:"ttlMs"`
	Poll    int64        `json:"pollIntervalMs"`
	Meta    any          `json:"_meta,omitzero"`
}

func describe(s tasks.State) taskState {
	out := taskState{
		Type: mcp.ResultComplete, ID: s.ID, Status: s.Status, Created: s.Created, Updated: s.Updated,
		TTL: s.TTL.Milliseconds(), Poll: s.PollInterval.Milliseconds(),
	}
	switch {
	case s.Status == tasks.Working && s.Running:
		out.Message = "The call is being made."
	case s.Status == tasks.Working:
		out.Message = "A person must approve this call, which waits in the list of approvals. After the approval it is made when the client polls this task."
	}
	return out
}

// ownTask responds to a request about a task that the gateway has created. The request needs no rule, because the
// response contains only data about the caller's own request.
func (x *message) ownTask(ctx context.Context) dispatch.Response {
	t := x.tasks.Find(x.Message.TaskID, string(x.owner()))
	switch {
	case x.Stale:
		return x.Refuse(ctx, dispatch.PolicyUnavailable())
	case !x.takesTasks:
		refused := refusal.ProtocolError(commonv1.Code_CODE_CAPABILITY_MISSING, "the request does not say that its client has "+mcp.ExtensionTasks+".")
		refused.Extension = mcp.ExtensionTasks
		return x.Refuse(ctx, refused)
	case t == nil:
		return x.Refuse(ctx, unknownTask())
	}
	switch x.Message.Method {
	case mcp.MethodTasksGet:
		x.advanceTask(ctx, t)
		state := t.Report()
		return x.answerTask(ctx, describe(state), state.Outcome)
	case mcp.MethodTasksCancel:
		if approval, _ := t.AwaitedApproval(); t.Cancel() {
			x.withdraw(ctx, x.Caller, t, approval)
		}
	} // an update has no effect, because a task sends no requests to its client
	return x.OwnResponse(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"%s"}}`, x.ID(), mcp.ResultComplete), nil)
}

// answerTask returns a response with the state of a task and its outcome, if there is one. It does not copy the
// outcome, because a client may request the state often.
func (x *message) answerTask(ctx context.Context, state taskState, out tasks.Outcome) dispatch.Response {
	body, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  taskState      `json:"result"`
	}{"2.0", x.ID(), state})
	if err != nil || out.Result == nil && out.Error == nil {
		return x.OwnResponse(ctx, body, err)
	}
	key, value := `,"result":`, out.Result
	if out.Error != nil {
		key, value = `,"error":`, out.Error
	}
	return dispatch.Response{Body: [][]byte{bytes.TrimSuffix(body, []byte("}}")), []byte(key), value, []byte("}}")}, Unrecorded: out.Unrecorded}
}
