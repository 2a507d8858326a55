package e2e_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/internal/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
)

const claudeFlowPolicy = `version: 1
name: claude-flow
server: claude-flow
default: deny
tools:
  wasm_agent_create: {action: allow}
  wasm_agent_todos: {action: allow}
  wasm_agent_is_stopped: {action: allow}
  wasm_agent_terminate: {action: deny, reason: agents are stopped by people}
`

// stdioEntry is an entry of the configuration for a program.
func stdioEntry(t *testing.T, name string, command []string) string {
	t.Helper()
	raw, err := json.Marshal(command) // JSON is YAML
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("  %s: {stdio: {command: %s}}", name, raw)
}

// The real Claude Flow server with real agents behind a policy that says which of
// its 353 tools an agent may use.
func TestClaudeFlow(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.Write(t, stack.Options{
		Servers: stdioEntry(t, "claude-flow", npmtest.ClaudeFlow(t)), Policy: claudeFlowPolicy,
	}))
	client := npmtest.StartClient(t, p.MCP("claude-flow"), stack.AgentToken)

	want := []string{"wasm_agent_create", "wasm_agent_is_stopped", "wasm_agent_terminate", "wasm_agent_todos"}
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(client.ListTools().ToolNames(t)))); diff != "" {
		t.Errorf("listed tools (-want +got):\n%s", diff)
	}
	use := func(tool, agent string) npmtest.ToolResult {
		t.Helper()
		return client.CallTool(npmtest.ToolCall{Name: tool, Arguments: map[string]any{"agentId": agent}}).ToolResult(t)
	}
	created := client.CallTool(npmtest.ToolCall{Name: "wasm_agent_create", Arguments: map[string]any{}}).ToolResult(t)
	agent := regexp.MustCompile(`wasm-agent-1[\w-]*`).FindString(created.Text())
	if created.IsError || agent == "" {
		t.Fatalf("no agent was made: %s", created.Text())
	}
	// The server hides its errors inside results that say success, so an agent that
	// is there must be told from one that is not by what the text says.
	there, gone := use("wasm_agent_is_stopped", agent), use("wasm_agent_is_stopped", "wasm-agent-9")
	if !strings.Contains(there.Text(), "isStopped") || !strings.Contains(gone.Text(), "Agent not found") {
		t.Fatalf("an agent that is there answers %s, one that is not %s", there.Text(), gone.Text())
	}
	if todos := use("wasm_agent_todos", agent); todos.IsError || !strings.Contains(todos.Text(), "todos") {
		t.Errorf("the agent's todos: %s", todos.Text())
	}

	refused := use("wasm_agent_terminate", agent)
	d := decisionOf(t, refused)
	if !refused.IsError || refused.Text() != "Denied by policy: agents are stopped by people" ||
		d.Code != "denied_by_rule" || d.Rule != "claude-flow/tools.wasm_agent_terminate" || d.ID == "" {
		t.Errorf("the denied call gave %s, decision %+v", refused.Text(), d)
	}
	// `--tools` of the server only hides: what is not listed would still run.
	if d := decisionOf(t, use("wasm_agent_export", agent)); d.Code != "denied_by_default" {
		t.Errorf("a tool that is not listed: %+v", d)
	}
	if after := use("wasm_agent_is_stopped", agent); after.Text() != there.Text() {
		t.Errorf("after the denied call the agent answers %s, before %s", after.Text(), there.Text())
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v\n%s", err, p.Stderr())
	}
}
