package edge

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// taskSaid is what a client is told of a task, but its end (MCP Tasks extension, Tasks).
type taskSaid struct {
	Type    string    `json:"resultType"`
	ID      string    `json:"taskId"`
	Status  string    `json:"status"`
	Message string    `json:"statusMessage,omitzero"`
	Created time.Time `json:"createdAt"`
	Updated time.Time `json:"lastUpdatedAt"`
	TTL     int64     `json:"ttlMs"`
	Poll    int64     `json:"pollIntervalMs"`
	Meta    any       `json:"_meta,omitzero"`
}

// says is what its client is told of a task, and how it has ended.
func (t *task) says() (taskSaid, taskEnd) {
	t.mu.Lock()
	defer t.mu.Unlock()
	said := taskSaid{
		Type: mcp.ResultComplete, ID: t.id, Status: t.status, Created: t.created.UTC(), Updated: t.updated.UTC(),
		TTL: t.until.Sub(t.created).Milliseconds(), Poll: taskPoll.Milliseconds(),
	}
	switch {
	case t.status == taskWorking && t.making == nil:
		said.Message = "A person must approve this call, which waits in the list of approvals. It is made once a person has, when this task is asked about."
	case t.status == taskWorking:
		said.Message = "The call is being made."
	}
	t.told = t.status != taskWorking
	return said, t.end
}

// ownTask is a request about a task of the gateway's own. It needs no rule: it tells a caller of what
// it has asked for itself.
func (x *v2026) ownTask(ctx context.Context) response {
	t := x.tasks.find(x.msg.TaskID, string(x.owner()))
	switch {
	case x.Stale:
		return x.refuse(ctx, policyAway())
	case !x.takesTasks:
		refused := refusal.ProtocolError(commonv1.Code_CODE_CAPABILITY_MISSING, "the request does not say that its client has "+mcp.ExtensionTasks+".")
		refused.Extension = mcp.ExtensionTasks
		return x.refuse(ctx, refused)
	case t == nil:
		return x.refuse(ctx, noTask())
	}
	switch x.msg.Method {
	case mcp.MethodTasksGet:
		x.advance(ctx, t)
		said, end := t.says()
		return x.answerTask(ctx, said, end)
	case mcp.MethodTasksCancel:
		if approval, _ := t.waits(); t.cancel() {
			x.withdraw(ctx, x.Caller, t, approval)
		}
	} // a task asks nothing, so there is nothing that an update could answer
	return x.own(ctx, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"%s"}}`, x.id(), mcp.ResultComplete), nil)
}

// answerTask answers with what is said of a task. Its end goes out as it is kept: many may ask for it.
func (x *exchange) answerTask(ctx context.Context, said taskSaid, end taskEnd) response {
	body, err := json.Marshal(struct {
		Version string         `json:"jsonrpc"`
		ID      jsontext.Value `json:"id"`
		Result  taskSaid       `json:"result"`
	}{"2.0", x.id(), said})
	if err != nil || end.result == nil && end.fault == nil {
		return x.own(ctx, body, err)
	}
	key, value := `,"result":`, end.result
	if end.fault != nil {
		key, value = `,"error":`, end.fault
	}
	return response{body: [][]byte{bytes.TrimSuffix(body, []byte("}}")), []byte(key), value, []byte("}}")}, unrecorded: end.unrecorded}
}
