package approvals_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// taskView is a task as its client receives it.
type taskView struct {
	ResultType string
	ID         string `json:"taskId"`
	Status     string
	Message    string             `json:"statusMessage"`
	Result     npmtest.ToolResult `json:"result"`
}

// sendTaskRequest sends a request from a client of revision 2026-07-28 that supports tasks. It returns the HTTP status,
// the task in the result, and the response body.
func sendTaskRequest(t *testing.T, url, token, method, name, params string) (status int, task taskView, body string) {
	t.Helper()
	message := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",`+
		`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}},"io.modelcontextprotocol/clientInfo":{"name":"tasks","version":"1"}}}}`, method, params)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(message))
	if err != nil {
		t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + token}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
		"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}, "Mcp-Name": {name},
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var said struct{ Result taskView }
	at := bytes.IndexByte(got, '{') // the response may be a server-sent event
	if err := json.Unmarshal(bytes.TrimSpace(got[max(at, 0):]), &said, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	return resp.StatusCode, said.Result, string(got)
}

// If a client supports tasks, a call by the client that needs approval becomes a task. After the approval, the call
// runs once, when the client requests the task. A task that its client has cancelled can no longer be approved.
func TestTasks_CallThatNeedsApprovalBecomesATask(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "")
	w := &approvalCaller{Mesh: f}
	url := f.MCP("raw")
	begin := func() taskView {
		t.Helper()
		_, task, body := sendTaskRequest(t, url, stack.AgentToken, "tools/call", "pay", `"name":"pay","arguments":{"sum":12.5}`)
		if task.ResultType != "task" || task.Status != "working" || !strings.HasPrefix(task.ID, "sluice-task.") {
			t.Fatalf("the response to the call is %s", body)
		}
		return task
	}
	get := func(id string) taskView {
		t.Helper()
		status, task, body := sendTaskRequest(t, url, stack.AgentToken, "tasks/get", id, `"taskId":"`+id+`"`)
		if status != http.StatusOK || task.ResultType != "complete" || task.ID != id {
			t.Fatalf("the response to tasks/get is %d %s", status, body)
		}
		return task
	}
	ends := func(id string) (task taskView) {
		t.Helper()
		eventually.Within(t, 3*time.Minute, "the task ends", func() bool {
			task = get(id)
			return task.Status != "working"
		})
		return task
	}
	paid := begin()
	approval := w.AwaitOnePending(t)
	if task := get(paid.ID); task.Status != "working" || !strings.Contains(task.Message, "A person must approve") {
		t.Errorf("before the approval the task is %+v", task)
	}
	w.decideApproval(t, "approve", approval)
	w.checkPayments(t, 0) // the client has not requested the task yet
	for range 3 {
		if task := ends(paid.ID); task.Status != "completed" || task.Result.IsError || task.Result.Text() != "ran" {
			t.Errorf("after the approval the task is %+v", task)
		}
	}
	w.checkPayments(t, 1)
	w.AwaitOnlyState(t, "done")
	if status, _, body := sendTaskRequest(t, url, stack.OtherToken, "tasks/get", paid.ID, `"taskId":"`+paid.ID+`"`); status != http.StatusBadRequest || !strings.Contains(body, "-32602") {
		t.Errorf("another caller receives %d %s", status, body)
	}

	cancelled := begin()
	approval = w.AwaitOnePending(t)
	if status, _, body := sendTaskRequest(t, url, stack.AgentToken, "tasks/cancel", cancelled.ID, `"taskId":"`+cancelled.ID+`"`); status != http.StatusOK {
		t.Errorf("the response to tasks/cancel is %d %s", status, body)
	}
	if ran := f.RunApprovalsJSON(t, "approve", approval, "--yes"); ran.Code == 0 {
		t.Error("a cancelled task was approved")
	}
	if task := ends(cancelled.ID); task.Status != "cancelled" {
		t.Errorf("after the cancellation the task is %+v", task)
	}

	denied := begin()
	w.decideApproval(t, "deny", w.AwaitOnePending(t), "-m", "too much")
	if task := ends(denied.ID); task.Status != "completed" || !task.Result.IsError || !strings.Contains(task.Result.Text(), "too much") {
		t.Errorf("after the denial the task is %+v", task)
	}
	w.checkPayments(t, 1)
}
