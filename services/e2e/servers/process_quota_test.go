package servers_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// allowAllPolicy allows all requests, so that every refusal comes from a process quota.
const allowAllPolicy = `version: 1
name: shares
default: allow
`

// startSharingMesh starts a mesh with agents and with a stdio server that may have at most eight processes. A single
// caller may use at most two of them.
func startSharingMesh(t *testing.T) *stack.Process {
	t.Helper()
	return stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  program: {stdio: {command: [%q], env: {%s: \"1\"}, per: principal, processes: 8}}\n  agents: {grpc: {target: wasmagent}}", os.Args[0], echoServer),
		Policy:  allowAllPolicy, Extra: "approvals: {hold: 0s}",
	}))
}

// makeAgent creates an agent that may call the server "program", and returns the agent's id.
func makeAgent(t *testing.T, caller *stack.Client) string {
	t.Helper()
	text := caller.Call("wasm_agent_create", `{"manifest":{"tools":[{"server":"program","tool":"echo"}]}}`).Text(t)
	var made struct{ Agent struct{ ID string } }
	if err := json.Unmarshal([]byte(text), &made); err != nil || made.Agent.ID == "" {
		t.Fatalf("the created agent is %s: %v", text, err)
	}
	return made.Agent.ID
}

// A stdio server has one process for each principal. Ten agents of one caller together get only the caller's quota of
// processes. The refusal says whose quota is used up, and another caller still gets a process.
func TestProcessQuota_AgentsOfOneCallerShareIt(t *testing.T) {
	t.Parallel()
	s := startSharingMesh(t)
	caller := stack.Connect(t, s.MCP("agents"), stack.AgentToken)
	ran, refused := 0, ""
	for range 10 {
		id := makeAgent(t, caller)
		said := caller.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":"tool program echo"}`, id)).Text(t)
		if strings.Contains(said, "upstream_unavailable") || strings.Contains(said, "abuse_limited") {
			refused = said
		} else {
			ran++
		}
	}
	if ran != 2 {
		t.Errorf("%d agents of one caller have a process, want 2 of 8", ran)
	}
	if want := "agent and agents made by agent hold 2 of 2 processes"; !strings.Contains(refused, want) {
		t.Errorf("the last refusal is %s, without %q", refused, want)
	}
	other := stack.Connect(t, s.MCP("program"), stack.OtherToken)
	if said := other.Call("echo", "{}"); said.IsError(t) {
		t.Errorf("another caller receives %s", said.Text(t))
	}
}
