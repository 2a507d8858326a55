package edge_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	ownerToken    = "test-delegation-owner-A1b2C3d4E5f6"
	actorToken    = "test-delegation-actor-A1b2C3d4E5f6"
	approverToken = "test-delegation-other-A1b2C3d4E5f6"
)

// startDelegationMesh starts a mesh that accepts actors. Its policy allows the agents bot and planner to call the tool
// safe. The tool pay needs an approval by ana, the actor bot, or dora.
func startDelegationMesh(t *testing.T, p *provider) (mesh *stack.Process, server *rawmcp.Server) {
	t.Helper()
	server = rawmcp.Start(t, rawmcp.Tools)
	mesh = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", server.URL), Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
		Policy: `version: 1
name: delegation
server: "*"
default: deny
rules:
  - {name: agents, match: {tool: safe, agent: [bot, planner]}, action: allow}
  - {name: payments, match: {tool: pay}, action: require_approval}
`,
		Tokens: fmt.Sprintf(`    - {name: ana, subject: corp/ana, token: %q, role: approver}
    - {name: bot, subject: corp/bot, token: %q, role: approver}
    - {name: dora, token: %q, role: approver}
  issuers:
    - {name: corp, issuer: %q, delegation: act}
`, ownerToken, actorToken, approverToken, p.URL),
		Extra: "public_url: https://mcp.example.com\napprovals: {hold: 0s}\n",
	}))
	awaitKeys(t, mesh)
	return mesh, server
}

// actorClaim returns the claim `act`. The names are those of the current actor, followed by the prior actors.
func actorClaim(names ...string) map[string]any {
	out := map[string]any{"sub": names[0]}
	if len(names) > 1 {
		out["act"] = actorClaim(names[1:]...)
	}
	return out
}

// An agent calls for a person. The records name the agent, the person and the prior actors. Policy must allow the call
// for the agent and for each prior actor.
func TestDelegation_PolicyAppliesToTheAgentAndToPriorActors(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startDelegationMesh(t, p)
	for name, test := range map[string]struct {
		act  map[string]any
		runs bool
	}{
		"an allowed agent":         {actorClaim("bot"), true},
		"an allowed prior actor":   {actorClaim("bot", "planner"), true},
		"another agent":            {actorClaim("stranger"), false},
		"a prior actor is refused": {actorClaim("bot", "stranger"), false},
		"no agent":                 {nil, false},
	} {
		server.DropRequests()
		changes := map[string]any{}
		if test.act != nil {
			changes["act"] = test.act
		}
		got := stack.Connect(t, mesh.MCP("raw"), p.token("first", changes)).Call("safe", "{}")
		if ran := len(server.Calls("safe")) == 1; got.Status != http.StatusOK || got.IsError(t) == test.runs || ran != test.runs {
			t.Errorf("%s: %d %s", name, got.Status, got.Body)
		}
	}
	shown := operate(t, mesh, "decisions", "tail", "-o", "json")
	for _, want := range []string{`"act:corp/bot/corp/ana"`, `"bot"`, `"corp/ana"`, `"act:corp/planner/corp/ana"`} {
		if !strings.Contains(shown.Stdout, want) {
			t.Errorf("the records do not contain %s: %s", want, shown.Stdout)
		}
	}
	explained := operate(t, mesh, "identity", "explain", p.token("first", map[string]any{"act": actorClaim("bot", "planner")}))
	stack.CheckCommand(t, explained, 0, explained.Stdout, "the agent bot acts for corp/ana", "act:corp/planner/corp/ana")
}

// The person for whom an agent acts can't approve the agent's calls, and neither can the actor, even if the actor is a
// person who may approve other calls.
func TestDelegation_PersonAndActorCanNotApproveTheCall(t *testing.T) {
	t.Parallel()
	p := startProvider(t)
	mesh, server := startDelegationMesh(t, p)
	client := stack.Connect(t, mesh.MCP("raw"), p.token("first", map[string]any{"act": actorClaim("bot")}))
	if got := client.Call("pay", "{}"); got.Decision(t).Code != "approval_pending" {
		t.Fatalf("%d %s", got.Status, got.Body)
	}
	pending := stack.DecodeOutput[[]struct{ ID string }](t, operate(t, mesh, "approvals", "list", "-o", "json"))
	if len(pending) != 1 {
		t.Fatalf("%d approvals are pending, want 1", len(pending))
	}
	approve := func(token string) stack.CommandResult {
		return stack.Run(t, stack.Command{
			Args: []string{"approvals", "approve", pending[0].ID, "--yes"}, Dir: mesh.Dir, Env: []string{"SLUICE_CONFIG=" + mesh.Config, "SLUICE_TOKEN=" + token},
		})
	}
	ran := approve(ownerToken)
	stack.CheckCommand(t, ran, 1, ran.Stderr, "you own the agent that made the call")
	ran = approve(actorToken)
	stack.CheckCommand(t, ran, 1, ran.Stderr, "can't decide on the call")
	if got := client.Call("pay", "{}"); got.Decision(t).Code != "approval_pending" || len(server.Calls("pay")) != 0 {
		t.Errorf("%d %s", got.Status, got.Body)
	}
	ran = approve(approverToken)
	stack.CheckCommand(t, ran, 0, ran.Stdout)
	if got := client.Call("pay", "{}"); got.IsError(t) || len(server.Calls("pay")) != 1 {
		t.Errorf("%d %s", got.Status, got.Body)
	}
}
