package agents_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// agentCallsPolicy allows creating agents and has rules for the calls that agents make.
const agentCallsPolicy = `version: 1
name: acting
default: deny
tools:
  safe: {action: allow}
  limited: {rate_limit: {max: 1, window: 60}}
  pay: {action: require_approval, reason: money moves}
rules:
  - {name: agents, match: {tool: "wasm_agent_*"}, action: allow}
`

// agentMesh is a mesh with agents and with an upstream server that the agents call.
type agentMesh struct {
	*stack.Stack
	upstream *rawmcp.Server
	client   *stack.Client
	// dialRole returns a gRPC connection to a mesh service, with the operator's token.
	dialRole func(authv1.Role) *grpc.ClientConn
}

// agentMeshStarters returns two functions that start a mesh. One starts the whole mesh in one process, and the other
// starts each mesh service in a separate process.
func agentMeshStarters(t *testing.T) map[string]func(t *testing.T) *agentMesh {
	t.Helper()
	opts := func(up *rawmcp.Server) stack.Options {
		return stack.Options{
			Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: agentCallsPolicy, Extra: "approvals: {hold: 0s}",
		}
	}
	return map[string]func(t *testing.T) *agentMesh{
		"one process": func(t *testing.T) *agentMesh {
			up := rawmcp.Start(t, rawmcp.Tools)
			s := stack.Start(t, stack.WriteConfig(t, opts(up))).Stack
			return &agentMesh{Stack: s, upstream: up, dialRole: func(authv1.Role) *grpc.ClientConn { return s.Operator(t) }}
		},
		"distributed": func(t *testing.T) *agentMesh {
			up := rawmcp.Start(t, rawmcp.Tools)
			a := stack.StartDistributed(t, opts(up))
			return &agentMesh{Stack: a.Stack, upstream: up, dialRole: func(role authv1.Role) *grpc.ClientConn { return a.DialWithToken(t, role, stack.OperatorToken) }}
		},
	}
}

// callAgentTool calls the tool wasm_agent_TOOL and returns the text of its result, which is JSON.
func (a *agentMesh) callAgentTool(t *testing.T, tool, arguments string) string {
	t.Helper()
	if a.client == nil {
		a.client = stack.Connect(t, a.MCP("agents"), stack.AgentToken)
	}
	return a.client.Call("wasm_agent_"+tool, arguments).Text(t)
}

// The policy service evaluates each tool call by an agent as it would evaluate the same call by the agent's creator.
// The agent is the principal, and its creator is in the delegation chain. A call to a tool that is not in the agent's
// manifest is refused without asking the policy service.
func TestAgents_ToolCallsAreDecidedByPolicy(t *testing.T) {
	t.Parallel()
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			made := a.callAgentTool(t, "create", `{"manifest":{"tools":[{"server":"raw","tool":"safe"},{"server":"raw","tool":"limited"},{"server":"raw","tool":"denied"},{"server":"raw","tool":"pay"}]}}`)
			id := textBetween(t, made, `"id":"`, `"`)
			prompt := func(lines string) string {
				return a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":%q}`, id, lines))
			}
			answered := prompt("tool raw safe {\"q\":\"tea\"}\ntool raw limited\ntool raw limited\ntool raw denied\ntool raw other\ntool elsewhere safe")
			for _, want := range []string{"ran", "line 3: rate_limited", "line 4: denied_by_default", "line 5: not_in_manifest", "line 6: not_in_manifest"} {
				if !strings.Contains(answered, want) {
					t.Errorf("the agent answers %s, without %q", answered, want)
				}
			}
			if calls := a.upstream.Calls("safe"); len(calls) != 1 || !strings.Contains(string(calls[0].Body), `"arguments":{"q":"tea"}`) {
				t.Errorf("the upstream server received %v", calls)
			}
			a.checkRecordsNameAgent(t, id)
		})
	}
}

func (a *agentMesh) checkRecordsNameAgent(t *testing.T, id string) {
	t.Helper()
	var seen []string
	for _, r := range stack.ListRecords(stack.TimeoutContext(t), t, gatewayv1.NewGatewayServiceClient(a.dialRole(authv1.Role_ROLE_GATEWAY))) {
		if r.GetServer() != "raw" {
			continue
		}
		behind := ""
		for _, one := range r.GetPrincipal().GetChain() {
			behind += " for " + one.GetSubject()
		}
		seen = append(seen, fmt.Sprintf("%s %s by %s%s", r.GetKind(), r.GetTool(), r.GetPrincipal().GetSubject(), behind))
	}
	for _, want := range []string{
		"RECORD_KIND_INTENT safe by agent:default/" + id + " for agent", "RECORD_KIND_OUTCOME safe by agent:default/" + id + " for agent",
		"RECORD_KIND_REFUSAL limited by agent:default/" + id + " for agent", "RECORD_KIND_REFUSAL denied by agent:default/" + id + " for agent",
	} {
		if !strings.Contains(strings.Join(seen, "\n"), want) {
			t.Errorf("the journal holds %q, without %q", seen, want)
		}
	}
}

// An agent whose call needs approval is parked, which means that it waits without occupying a slot. After the approval,
// the agent continues without another prompt, and its call runs once.
func TestAgents_CallThatNeedsApprovalParksTheAgent(t *testing.T) {
	t.Parallel()
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			id := textBetween(t, a.callAgentTool(t, "create", `{"manifest":{"files":{"bytes":1000,"count":1},"tools":[{"server":"raw","tool":"pay"}]}}`), `"id":"`, `"`)
			agent := fmt.Sprintf(`{"agentId":%q}`, id)
			parked := a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"write a.txt before\ntool raw pay {\"sum\":12.5}\nsay after"}`, id))
			if !strings.Contains(parked, `"finished":false`) || !strings.Contains(parked, `"waitingFor":"approval"`) {
				t.Errorf("the prompt ends with %s", parked)
			}
			if busy := a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"say hello"}`, id)); !strings.Contains(busy, "AGENT_BUSY") {
				t.Errorf("another prompt is answered %s", busy)
			}
			if n := len(a.upstream.Calls("pay")); n != 0 {
				t.Errorf("%d calls reached the server before the approval", n)
			}
			a.approveAll(t)
			eventually.Holds(t, "the agent has answered", func() bool { return strings.Contains(a.callAgentTool(t, "state", agent), `ran\nafter`) })
			if n := len(a.upstream.Calls("pay")); n != 1 {
				t.Errorf("%d calls reached the server", n)
			}
			if files := a.callAgentTool(t, "files", agent); !strings.Contains(files, `"a.txt"`) {
				t.Errorf("the agent's files are %s", files)
			}
		})
	}
}

// Case I6. A caller's rate limit applies to all of its agents together, regardless of how many agents it creates.
func TestAgents_ShareTheRateLimitOfTheirCreator(t *testing.T) {
	t.Parallel()
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			ran := 0
			for range 10 {
				id := textBetween(t, a.callAgentTool(t, "create", `{"manifest":{"tools":[{"server":"raw","tool":"limited"}]}}`), `"id":"`, `"`)
				if said := a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"tool raw limited"}`, id)); strings.Contains(said, `"response":"ran"`) {
					ran++
				} else if !strings.Contains(said, "rate_limited") {
					t.Errorf("an agent answers %s", said)
				}
			}
			if n := len(a.upstream.Calls("limited")); ran != 1 || n != 1 {
				t.Errorf("%d calls ran, %d reached the server, want the one call that the limit of their creator allows", ran, n)
			}
		})
	}
}

// approveAll approves all pending approvals. The test fails if there are none.
func (a *agentMesh) approveAll(t *testing.T) {
	t.Helper()
	client := approvalv1.NewApprovalServiceClient(a.dialRole(authv1.Role_ROLE_APPROVAL))
	resp, err := client.ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{})
	if err != nil || len(resp.GetApprovals()) == 0 {
		t.Fatalf("the pending approvals are %v, %v", resp, err)
	}
	for _, found := range resp.GetApprovals() {
		view, err := client.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: found.GetId(), View: true})
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{
			ApprovalId: found.GetId(), Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: view.GetView().GetDigest(),
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// textBetween returns the text after the first occurrence of the string behind, up to the next occurrence of the string
// before.
func textBetween(t *testing.T, text, behind, before string) string {
	t.Helper()
	_, rest, ok := strings.Cut(text, behind)
	out, _, more := strings.Cut(rest, before)
	if !ok || !more {
		t.Fatalf("%s has no text between %s and %s", text, behind, before)
	}
	return out
}
