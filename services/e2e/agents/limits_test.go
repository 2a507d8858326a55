package agents_test

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Case I6. Agents and the agents that they create share the limits of the caller that created the first agent. The test
// covers limits per principal, per tool and per session, and limits of rules that match only agents. It also checks
// that another caller has its own limits.
func TestAgents_CreatedByAgentsShareTheLimitsOfTheRootCaller(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit string
		want  int
	}{
		"per principal":        {"  - {name: limited, match: {tool: limited}, action: allow, rate_limit: {max: 3, window: 1h, per: [principal]}}\n", 3},
		"per tool of an entry": {"tools:\n  limited: {rate_limit: {max: 3, window: 1h, per: [principal, server, tool]}}\n", 3},
		"of a rule for agents": {"  - {name: limited, match: {tool: limited, principal: \"agent:*\"}, action: allow, rate_limit: {max: 3, window: 1h, per: [principal]}}\n  - {name: makers, match: {tool: limited}, action: allow}\n", 3},
		"per session":          {"  - {name: limited, match: {tool: limited}, action: allow, rate_limit: {max: 1, window: 1h, per: [session]}}\n", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := rawmcp.Start(t, rawmcp.Tools)
			policy := "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: agents, match: {tool: \"wasm_agent_*\"}, action: allow}\n" + tt.limit
			if rules, entry, split := strings.Cut(policy, "tools:\n"); split {
				policy = strings.Replace(rules, "rules:\n", "tools:\n"+entry+"rules:\n", 1)
			}
			s := stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: policy}))
			const rights = `{"server":"raw","tool":"limited"}`
			prompt := func(c *stack.Client, id, input string) string {
				return c.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":%q}`, id, input)).Text(t)
			}
			// run creates agents on behalf of a caller and makes each of them create another agent. All agents call the
			// tool. run returns the number of calls that succeeded.
			run := func(token string) (ran int) {
				c := stack.Connect(t, s.MCP("agents"), token)
				for range 3 {
					made := c.Call("wasm_agent_create", `{"manifest":{"children":{"count":1,"depth":1},"tools":[{"server":"agents","tool":"wasm_agent_create"},`+rights+`]}}`).Text(t)
					parent := textBetween(t, made, `"id":"`, `"`)
					child := textBetween(t, strings.ReplaceAll(prompt(c, parent, `tool agents wasm_agent_create {"manifest":{"tools":[`+rights+`]}}`), `\"`, `"`), `"id":"`, `"`)
					for _, id := range []string{parent, child} {
						switch said := prompt(c, id, "tool raw limited"); {
						case strings.Contains(said, `"response":"ran"`):
							ran++
						case !strings.Contains(said, "rate_limited"):
							t.Errorf("an agent answers %s", said)
						}
					}
				}
				return ran
			}
			if ran := run(stack.AgentToken); ran != tt.want {
				t.Errorf("%d calls of six agents ran, want the %d that the limit of their creator allows", ran, tt.want)
			}
			if ran := run(stack.OtherToken); ran != tt.want {
				t.Errorf("%d calls of another caller's agents ran, want its own %d", ran, tt.want)
			}
			if n := len(up.Calls("limited")); n != 2*tt.want {
				t.Errorf("%d calls reached the server", n)
			}
		})
	}
}

// Case I6. A rate limit per owner applies to the sum of all calls that are made with the owner's own tokens or by the
// owner's agents that have no delegation chain.
func TestAgents_WithoutChainShareTheLimitOfTheirOwner(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	const bot = "test-bot-of-the-operator-A1b2C3d4E5f6"
	s := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), GRPC: stack.FreeAddr(t),
		Tokens: fmt.Sprintf("    - {name: bot, token: %q, role: agent, owner: operator}\n", bot),
		Policy: "version: 1\nname: p\ndefault: deny\nrules:\n  - {name: limited, match: {tool: limited}, action: allow, rate_limit: {max: 2, window: 1h, per: [owner]}}\n",
	}))
	client := wasmagentv1.NewAgentServiceClient(s.Operator(t))
	ran := 0
	for range 4 {
		made, err := client.CreateAgent(t.Context(), &wasmagentv1.CreateAgentRequest{Guest: new("script"), Manifest: &wasmagentv1.Manifest{Tools: []*wasmagentv1.ToolRight{{Server: "raw", Tool: "limited"}}}})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := client.PromptAgent(t.Context(), &wasmagentv1.PromptAgentRequest{AgentId: made.GetAgent().GetId(), Input: "tool raw limited"})
		if err != nil {
			t.Fatal(err)
		}
		for {
			resp, err := stream.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "RATE_LIMITED") && !strings.Contains(err.Error(), "rate_limited") {
					t.Errorf("an agent answers %v", err)
				}
				break
			}
			if resp.GetResponse() == "ran" {
				ran++
			}
		}
	}
	if n := len(up.Calls("limited")); ran != 2 || n != 2 {
		t.Errorf("%d calls of the person's agents ran, %d reached the server, want 2", ran, n)
	}
	if code := stack.Connect(t, s.MCP("raw"), bot).Call("limited", "{}").Decision(t).Code; code != "rate_limited" {
		t.Errorf("a token that works for the person is answered %q", code)
	}
	if resp := stack.Connect(t, s.MCP("raw"), stack.OtherToken).Call("limited", "{}"); resp.IsError(t) {
		t.Errorf("another caller is answered %s", resp.Body)
	}
}
