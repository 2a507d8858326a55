package agents_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The official SDK calls the agent tools of a mesh without configuration, and validates every result against the tool's
// output schema. The test creates an agent, prompts it, reads it and exports it. The starter policy limits exports to
// ten per minute and does not allow this caller to terminate the agent.
func TestAgents_ToolsWorkWithoutConfiguration(t *testing.T) {
	t.Parallel()
	p := stack.StartWithoutConfig(t)
	client := npmtest.StartClient(t, p.MCP("agents"), p.GeneratedToken(t, "agent"))
	names := client.ListTools().ToolNames(t)
	for _, want := range []string{"wasm_agent_export", "wasm_agent_todos", "wasm_agent_is_stopped"} {
		if !slices.Contains(names, want) {
			t.Errorf("the tools are %v, without %s", names, want)
		}
	}
	var made struct {
		Success bool
		Agent   struct{ ID, State string }
	}
	decodeToolResult(t, callAgentToolWithSDK(t, client, "create", map[string]any{"instructions": "be brief", "maxTurns": 3}), &made)
	id := made.Agent.ID
	if !made.Success || made.Agent.State != "idle" {
		t.Errorf("the agent is created as %+v", made)
	}
	reply := client.CallTool(npmtest.ToolCall{
		Name: "wasm_agent_prompt", Arguments: map[string]any{"agentId": id, "input": "emit begun\nwrite a.txt hello\ntodo pending read it\nread a.txt"}, Progress: true,
	})
	var said struct {
		Response  string
		TurnCount int
		IsStopped bool
	}
	decodeToolResult(t, reply.ToolResult(t), &said)
	if said.Response != "hello" || said.TurnCount != 1 || said.IsStopped {
		t.Errorf("the agent answers %+v", said)
	}
	if told := fmt.Sprintf("%+v", reply.Progress); !strings.Contains(told, "begun") {
		t.Errorf("its progress notifications are %s", told)
	}
	var todos struct {
		Todos []struct{ Content, Status string }
	}
	decodeToolResult(t, callAgentToolWithSDK(t, client, "todos", map[string]any{"agentId": id}), &todos)
	if len(todos.Todos) != 1 || todos.Todos[0].Status != "pending" {
		t.Errorf("the agent's todos are %+v", todos)
	}
	for name, args := range map[string]map[string]any{
		"is_stopped": {"agentId": id}, "turn_count": {"agentId": id}, "files": {"agentId": id}, "tools": {"agentId": id}, "state": {"agentId": id}, "list": {},
		"tool": {"agentId": id, "toolName": "read_file", "toolInput": map[string]any{"path": "a.txt"}},
	} {
		if got := callAgentToolWithSDK(t, client, name, args); got.IsError {
			t.Errorf("wasm_agent_%s answers %s", name, got.Text())
		}
	}
	for i := range 11 {
		got := callAgentToolWithSDK(t, client, "export", map[string]any{"agentId": id})
		if d := stack.DecisionOf(t, got); (i < 10) == got.IsError || i == 10 && (d.Code != "rate_limited" || !strings.Contains(got.Text(), "at most 10 calls in 1m0s")) {
			t.Errorf("export %d answers %s, %+v", i+1, got.Text(), d)
		}
	}
	if d := stack.DecisionOf(t, callAgentToolWithSDK(t, client, "terminate", map[string]any{"agentId": id})); d.Code != "denied_by_rule" {
		t.Errorf("the decision on its termination is %+v", d)
	}
	var status struct {
		IsStopped bool
		State     string
	}
	decodeToolResult(t, callAgentToolWithSDK(t, client, "is_stopped", map[string]any{"agentId": id}), &status)
	if status.IsStopped || status.State != "idle" {
		t.Errorf("after the refused termination its status is %+v", status)
	}
	// Case T5. Unknown fields are rejected. The agent service rejects a tool input that contains another tool name. The
	// gateway rejects an argument whose name is spelled differently.
	for text, args := range map[string]map[string]any{
		"the field is not known":  {"agentId": id, "toolName": "read_file", "toolInput": map[string]any{"tool": "write_file", "path": "x", "content": "y"}},
		"/agent_id: is not known": {"agent_id": id, "toolName": "list_files"},
	} {
		if got := callAgentToolWithSDK(t, client, "tool", args); !got.IsError || !strings.Contains(got.Text(), text) {
			t.Errorf("%v answers %s, want %q", args, got.Text(), text)
		}
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
}

func callAgentToolWithSDK(t *testing.T, client *npmtest.Client, name string, args map[string]any) npmtest.ToolResult {
	t.Helper()
	return client.CallTool(npmtest.ToolCall{Name: "wasm_agent_" + name, Arguments: args}).ToolResult(t)
}

// decodeToolResult decodes a tool's result, which is JSON. The test fails if the result is an error.
func decodeToolResult(t *testing.T, r npmtest.ToolResult, into any) {
	t.Helper()
	if err := json.Unmarshal([]byte(r.Text()), into); err != nil || r.IsError {
		t.Fatalf("%s: %v", r.Text(), err)
	}
}
