package servers_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// claudeFlow is a mesh with the real Claude Flow server, in which one agent has been created.
type claudeFlow struct {
	*rawmesh.Mesh

	process *stack.Process
	client  *npmtest.Client
	agent   string
}

// startClaudeFlow starts a mesh with the Claude Flow server and with one of the policies from the Claude Flow example.
func startClaudeFlow(t *testing.T, policy string) *claudeFlow {
	t.Helper()
	return runClaudeFlow(t, stack.WriteConfig(t, stack.Options{
		Servers: stack.ClaudeFlowEntry(t), Policy: stack.ClaudeFlowExample(t, policy+"/claude-flow.yaml"), Extra: "approvals: {hold: 60s}",
	}))
}

// runClaudeFlow starts a mesh from its configuration and creates an agent in Claude Flow.
func runClaudeFlow(t *testing.T, s *stack.Stack) *claudeFlow {
	t.Helper()
	p := stack.Start(t, s)
	c := &claudeFlow{Mesh: &rawmesh.Mesh{Stack: p.Stack}, process: p, client: npmtest.StartClient(t, p.MCP("claude-flow"), stack.AgentToken)}
	created := c.client.CallTool(npmtest.ToolCall{Name: "wasm_agent_create", Arguments: map[string]any{}}).ToolResult(t)
	c.agent = regexp.MustCompile(`wasm-agent-1[\w-]*`).FindString(created.Text())
	if created.IsError || c.agent == "" {
		t.Fatalf("no agent was created: %s", created.Text())
	}
	return c
}

// callWithAgent calls a tool. Its arguments contain an agent's id.
func (c *claudeFlow) callWithAgent(t *testing.T, tool, agent string) npmtest.ToolResult {
	t.Helper()
	return c.client.CallTool(npmtest.ToolCall{Name: tool, Arguments: map[string]any{"agentId": agent}}).ToolResult(t)
}

// stateFolder returns the directory in which Claude Flow keeps its ledger and its lock.
func (c *claudeFlow) stateFolder(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.Dir, "data/gateway/servers/claude-flow/*/.claude-flow/policy"))
	if err != nil || len(found) != 1 {
		t.Fatalf("the server's folders are %v, %v", found, err)
	}
	return found[0]
}

// countReceived returns the number of calls to a tool that are in the server's own ledger.
func (c *claudeFlow) countReceived(t *testing.T, tool string) int {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(c.stateFolder(t), "state.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ledger struct {
		Receipts []struct {
			Payload struct {
				Request struct{ Action struct{ Tool string } }
			}
		}
	}
	if err := json.Unmarshal(raw, &ledger); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, r := range ledger.Receipts {
		if r.Payload.Request.Action.Tool == tool {
			n++
		}
	}
	return n
}

// journalResults returns the result class that the journal contains for each call to a tool.
func (c *claudeFlow) journalResults(t *testing.T, tool string) []gatewayv1.ResultClass {
	t.Helper()
	var out []gatewayv1.ResultClass
	tools := make(map[string]string) // by decision
	records := c.Records(t)
	for _, r := range records {
		if r.GetTool() != "" {
			tools[r.GetDecisionId()] = r.GetTool()
		}
	}
	for _, r := range records {
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_OUTCOME && tools[r.GetDecisionId()] == tool {
			out = append(out, r.GetResult())
		}
	}
	return out
}

// The mesh has the real Claude Flow server with 353 tools, and real agents. An agent can use only the tools that the
// policy from the Claude Flow example allows.
func TestClaudeFlow_PolicyLimitsItsTools(t *testing.T) {
	t.Parallel()
	c := startClaudeFlow(t, "limited")
	want := []string{"wasm_agent_create", "wasm_agent_export", "wasm_agent_is_stopped", "wasm_agent_list", "wasm_agent_terminate", "wasm_agent_todos"}
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(c.client.ListTools().ToolNames(t)))); diff != "" {
		t.Errorf("listed tools (-want +got):\n%s", diff)
	}
	there := c.callWithAgent(t, "wasm_agent_is_stopped", c.agent)
	if there.IsError || !strings.Contains(there.Text(), "isStopped") {
		t.Fatalf("an agent that exists answers %s", there.Text())
	}
	if todos := c.callWithAgent(t, "wasm_agent_todos", c.agent); todos.IsError || !strings.Contains(todos.Text(), "todos") {
		t.Errorf("the agent's todos: %s", todos.Text())
	}

	refused := c.callWithAgent(t, "wasm_agent_terminate", c.agent)
	d := stack.DecisionOf(t, refused)
	if !refused.IsError || refused.Text() != "Denied by policy: ask the owner to stop the agent instead" ||
		d.Code != "denied_by_rule" || d.Rule != "claude-flow/tools.wasm_agent_terminate" || d.ID == "" {
		t.Errorf("the denied call gave %s, decision %+v", refused.Text(), d)
	}
	// Claude Flow's own option `--tools` only hides tools. Without the policy, a tool that is not listed could still be
	// called.
	if d := stack.DecisionOf(t, c.callWithAgent(t, "wasm_agent_prompt", c.agent)); d.Code != "denied_by_default" {
		t.Errorf("a tool that is not listed: %+v", d)
	}
	for _, tool := range []string{"wasm_agent_terminate", "wasm_agent_prompt"} {
		if n := c.countReceived(t, tool); n != 0 {
			t.Errorf("%s was denied and reached the server %d times", tool, n)
		}
	}
	if after := c.callWithAgent(t, "wasm_agent_is_stopped", c.agent); after.Text() != there.Text() {
		t.Errorf("after the denied call the agent answers %s, before %s", after.Text(), there.Text())
	}
	// Claude Flow uses an older protocol revision than the command line.
	ran := stack.Run(t, stack.Command{
		Args: []string{"call", "claude-flow", "wasm_agent_list", "--config", c.Config},
		Env:  []string{"SLUICE_TOKEN=" + stack.AgentToken, "SLUICE_URL=" + c.URL},
	})
	stack.CheckCommand(t, ran, 0, ran.Stdout, c.agent)
	if err := c.process.Stop(t); err != nil {
		t.Errorf("stopped with %v\n%s", err, c.process.Stderr())
	}
}

// Claude Flow reports some failures as successes. The client and the journal nevertheless receive a failure. A call
// that succeeded is still reported as a success.
func TestClaudeFlow_HiddenErrorsAreReported(t *testing.T) {
	t.Parallel()
	c := startClaudeFlow(t, "limited")
	gone := c.callWithAgent(t, "wasm_agent_is_stopped", "wasm-agent-9")
	if !gone.IsError || gone.Text() != `{"error":"Agent not found: wasm-agent-9"}` {
		t.Errorf("an agent that does not exist answers %+v", gone)
	}
	if there := c.callWithAgent(t, "wasm_agent_is_stopped", c.agent); there.IsError {
		t.Errorf("an agent that exists answers %+v", there)
	}
	got := c.journalResults(t, "wasm_agent_is_stopped")
	slices.Sort(got)
	want := []gatewayv1.ResultClass{gatewayv1.ResultClass_RESULT_CLASS_OK, gatewayv1.ResultClass_RESULT_CLASS_TOOL_ERROR}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the journal's outcomes (-want +got):\n%s", diff)
	}
}

// At most ten exports in a minute reach Claude Flow, according to its ledger.
func TestClaudeFlow_EleventhExportIsRefused(t *testing.T) {
	t.Parallel()
	c := startClaudeFlow(t, "limited")
	for i := range 10 {
		if export := c.callWithAgent(t, "wasm_agent_export", c.agent); export.IsError {
			t.Fatalf("export %d: %s", i+1, export.Text())
		}
	}
	refused := c.callWithAgent(t, "wasm_agent_export", c.agent)
	if d := stack.DecisionOf(t, refused); !refused.IsError || d.Code != "rate_limited" || !d.Retryable {
		t.Errorf("the 11th export: %s, decision %+v", refused.Text(), d)
	}
	if n := c.countReceived(t, "wasm_agent_export"); n != 10 {
		t.Errorf("%d exports reached the server, want 10", n)
	}
}

// An export is approved from another terminal and runs exactly once.
func TestClaudeFlow_ApprovedExportRunsOnce(t *testing.T) {
	t.Parallel()
	c := startClaudeFlow(t, "approved")
	answered := make(chan npmtest.Reply, 1)
	go func() {
		answered <- c.client.CallTool(npmtest.ToolCall{Name: "wasm_agent_export", Arguments: map[string]any{"agentId": c.agent}})
	}()
	id := c.AwaitOnePending(t)
	if n := c.countReceived(t, "wasm_agent_export"); n != 0 {
		t.Fatalf("%d exports reached the server before the approval", n)
	}
	if ran := c.RunApprovalsJSON(t, "approve", id, "--yes"); ran.Code != 0 {
		t.Fatalf("approve: %+v", ran)
	}
	if export := (<-answered).ToolResult(t); export.IsError || !strings.Contains(export.Text(), c.agent) {
		t.Errorf("the approved export: %s", export.Text())
	}
	c.AwaitOnlyState(t, "done")
	if n := c.countReceived(t, "wasm_agent_export"); n != 1 {
		t.Errorf("%d exports reached the server, want 1", n)
	}
}

// An earlier Claude Flow process has left its lock behind. The lock would delay the start of Claude Flow, but the mesh
// starts Claude Flow without this delay.
func TestClaudeFlow_StartsDespiteAStaleLock(t *testing.T) {
	t.Parallel()
	c := startClaudeFlow(t, "limited")
	if err := c.process.Stop(t); err != nil {
		t.Fatalf("stopped with %v\n%s", err, c.process.Stderr())
	}
	if err := os.WriteFile(filepath.Join(c.stateFolder(t), "state.lock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again := runClaudeFlow(t, c.Stack)
	if n := again.countReceived(t, "wasm_agent_create"); n != 2 {
		t.Errorf("%d agents were created in this folder, want 2", n)
	}
}

// The setting recycle is 2, so the mesh replaces the server's process after two calls. The client's session continues.
// The new process uses the same directory, but does not have the state that the old process had in memory.
func TestClaudeFlow_ProcessIsReplacedAfterRecycleCalls(t *testing.T) {
	t.Parallel()
	const remove = "remove: ["
	entry := stack.ClaudeFlowEntry(t)
	if !strings.Contains(entry, remove) {
		t.Fatalf("the example's entry is %s", entry)
	}
	c := runClaudeFlow(t, stack.WriteConfig(t, stack.Options{
		Servers: strings.Replace(entry, remove, "recycle: 2\n      "+remove, 1), Policy: stack.ClaudeFlowExample(t, "limited/claude-flow.yaml"),
	}))
	if there := c.callWithAgent(t, "wasm_agent_is_stopped", c.agent); there.IsError {
		t.Errorf("the second call of a process: %s", there.Text())
	}
	if gone := c.callWithAgent(t, "wasm_agent_is_stopped", c.agent); !gone.IsError || !strings.Contains(gone.Text(), "Agent not found") {
		t.Errorf("the next process answers %s", gone.Text())
	}
	if n := c.countReceived(t, "wasm_agent_is_stopped"); n != 2 {
		t.Errorf("the ledger in the folder has %d calls, want 2", n)
	}
}
