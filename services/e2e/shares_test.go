package e2e_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// sharesPolicy lets everything run, so that nothing but shares refuses.
const sharesPolicy = `version: 1
name: shares
default: allow
`

// sharing is a mesh with agents and a server over stdio that may have eight processes, so that two are the
// share of one caller.
func sharing(t *testing.T) *stack.Process {
	t.Helper()
	return stack.Start(t, stack.Write(t, stack.Options{
		Servers: fmt.Sprintf("  program: {stdio: {command: [%q], env: {%s: \"1\"}, per: principal, processes: 8}}\n  agents: {grpc: {target: wasmagent}}", os.Args[0], echoServer),
		Policy:  sharesPolicy, Extra: "approvals: {hold: 0s}",
	}))
}

// makeAgent has a caller make an agent that may call the program, and returns the agent's id.
func makeAgent(t *testing.T, caller *stack.Client) string {
	t.Helper()
	made := caller.Call("wasm_agent_create", `{"manifest":{"tools":[{"server":"program","tool":"echo"}]}}`).Text(t)
	return textBetween(t, made, `"id":"`, `"`)
}

// One caller makes ten agents, each of which calls a server that has a process for each principal.
// They get the caller's share of the processes and no more, the refusal says whose share that is, and
// another caller has its process.
func TestShares_AgentsOfOneCallerDoNotTakeAllProcesses(t *testing.T) {
	t.Parallel()
	s := sharing(t)
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
		t.Errorf("another caller is answered %s", said.Text(t))
	}
}
