//go:build compose

package compose_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// agentStories creates an agent in the agents' container. It checks that one trace contains the spans from all
// processes that handle a prompt to the agent.
func agentStories(t *testing.T, d *deployment) {
	client := npmtest.StartClient(t, strings.TrimSuffix(d.mcp(), "demo")+"agents", d.agent)
	client.ListTools()
	call := func(t *testing.T, name string, args map[string]any) npmtest.ToolResult {
		t.Helper()
		return client.CallTool(npmtest.ToolCall{Name: "wasm_agent_" + name, Arguments: args}).ToolResult(t)
	}
	var made struct {
		Agent struct {
			ID string `json:"id"`
		} `json:"agent"`
	}
	t.Run("is created", func(t *testing.T) {
		got := call(t, "create", map[string]any{"maxTurns": 3, "manifest": map[string]any{
			"files": map[string]any{"bytes": 1000, "count": 1},
			"tools": []any{map[string]any{"server": "demo", "tool": "list_notes"}, map[string]any{"server": "demo", "tool": "delete_note"}},
		}})
		if err := json.Unmarshal([]byte(got.Text()), &made); err != nil || got.IsError || made.Agent.ID == "" {
			t.Fatalf("%s: %v", got.Text(), err)
		}
	})
	id := map[string]any{"agentId": made.Agent.ID}
	t.Run("works, in one trace", func(t *testing.T) {
		if got := call(t, "prompt", map[string]any{"agentId": made.Agent.ID, "input": "write a.txt tea\nread a.txt\ntool demo list_notes\ntool demo delete_note {\"id\":\"note-1\"}"}); got.IsError ||
			!strings.Contains(got.Text(), "tea") || !strings.Contains(got.Text(), "Welcome") || !strings.Contains(got.Text(), "line 4: denied_by_rule") {
			t.Fatalf("the agent answers %s", got.Text())
		}
		var records []struct {
			TraceID string `json:"traceId"`
			Tool    string `json:"tool"`
		}
		text := d.cli(t, "decisions", "tail", "--server", "agents", "--tool", "wasm_agent_prompt", "-n", "1", "--output", "json")
		if err := json.Unmarshal([]byte(text), &records); err != nil || len(records) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		const prompt, called = "sluice.wasmagent.v1.AgentService/PromptAgent", "sluice.gateway.v1.GatewayService/CallTool"
		wanted := []string{
			"sluice-gateway " + prompt + " <- sluice-gateway tools/call wasm_agent_prompt",
			"sluice-wasmagent " + prompt + " <- sluice-gateway " + prompt,
			"sluice-gateway " + called + " <- sluice-wasmagent " + called,
			"sluice-gateway tools/call list_notes <- sluice-gateway " + called,
			"sluice-policy " + policyService + "/DecideCall <- sluice-gateway " + policyService + "/DecideCall",
		}
		eventually.Within(t, commandTime, "Jaeger has the spans of trace "+records[0].TraceID, func() bool {
			spans := describeSpans(d.trace(t, records[0].TraceID))
			t.Logf("the spans: %s", strings.Join(spans, "\n"))
			return !slices.ContainsFunc(wanted, func(want string) bool { return !slices.Contains(spans, want) })
		})
	})
	t.Run("is not terminated by a caller without permission", func(t *testing.T) {
		if got := call(t, "terminate", id); !got.IsError || !strings.Contains(got.Text(), "Denied by policy") {
			t.Errorf("the response to terminate is %s", got.Text())
		}
		if got := call(t, "is_stopped", id); got.IsError || !strings.Contains(got.Text(), `"isStopped":false`) {
			t.Errorf("after the refusal the agent is %s", got.Text())
		}
	})
}
