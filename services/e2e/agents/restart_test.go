package agents_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"github.com/go-json-experiment/json/jsontext"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// The test kills all mesh services while an agent waits for an approval. After the approval the agent continues, its
// call runs once, and its journal is valid.
func TestAgents_ParkedAgentContinuesAfterAllRolesAreKilled(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	mesh := stack.StartDistributed(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: agentCallsPolicy, Extra: "approvals: {hold: 0s}",
	})
	a := &agentMesh{Stack: mesh.Stack, upstream: up}
	id := textBetween(t, a.callAgentTool(t, "create", `{"manifest":{"files":{"bytes":1000,"count":1},"tools":[{"server":"raw","tool":"pay"},{"server":"raw","tool":"safe"}]}}`), `"id":"`, `"`)
	a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"todo pending x"}`, id))
	a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"write a.txt before\ntool raw safe\ntool raw pay {\"sum\":12.5}\nappend a.txt after\ntodo completed x\nsay done"}`, id))
	roles := []authv1.Role{authv1.Role_ROLE_GATEWAY, authv1.Role_ROLE_IDENTITY, authv1.Role_ROLE_POLICY, authv1.Role_ROLE_RATELIMIT, authv1.Role_ROLE_APPROVAL, authv1.Role_ROLE_WASMAGENT}
	for _, role := range roles {
		mesh.Kill(t, role)
	}
	for _, role := range roles {
		mesh.Start(t, role)
	}
	mesh.AwaitReady(t)
	a.client = nil
	agent := fmt.Sprintf(`{"agentId":%q}`, id)
	eventually.Holds(t, "the agent waits for approval after the restart", func() bool { return strings.Contains(a.callAgentTool(t, "state", agent), `"waitingFor":"approval"`) })
	a.dialRole = func(role authv1.Role) *grpc.ClientConn { return mesh.DialWithToken(t, role, stack.OperatorToken) }
	a.approveAll(t)
	eventually.Holds(t, "the agent finishes its turn", func() bool { return strings.Contains(a.callAgentTool(t, "state", agent), `"turnCount":2`) })
	if state := a.callAgentTool(t, "state", agent); !strings.Contains(state, "done") {
		t.Errorf("the agent's state is %s", state)
	}
	if pay, safe := len(up.Calls("pay")), len(up.Calls("safe")); pay != 1 || safe != 1 {
		t.Errorf("pay ran %d times, safe %d times", pay, safe)
	}
	if todos := a.callAgentTool(t, "todos", agent); !strings.Contains(todos, "completed") {
		t.Errorf("the agent's todos are %s", todos)
	}
	if proof := a.callAgentTool(t, "verify", agent); !strings.Contains(proof, `"verification":"matches"`) {
		t.Errorf("the verification reports %s", proof)
	}
}

// modelPolicy allows agents to call models five times a minute, and to call the tool named safe.
const modelPolicy = `version: 1
name: acting
default: deny
tools:
  safe: {action: allow}
  wasm_model_ask: {rate_limit: {max: 5, window: 60}}
rules:
  - {name: agents, match: {tool: "wasm_agent_*"}, action: allow}
`

// The policy service evaluates both an agent's calls to its model and the tool calls that the model requests. The calls
// to the model count against the tokens in the agent's manifest and against the rate limit in the policy.
func TestAgents_ModelCallsAreDecidedAndLimited(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var keys []string
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		mu.Lock()
		keys = append(keys, r.Header.Get("Authorization"))
		mu.Unlock()
		w.Header().Set("Content-Type", "text/event-stream")
		delta, reason := `{"role":"assistant","tool_calls":[{"index":0,"id":"c","type":"function","function":{"name":"raw__safe","arguments":"{\"q\":\"tea\"}"}}]}`, "tool_calls"
		if strings.Contains(string(text), `"tool_call_id"`) {
			delta, reason = `{"role":"assistant","content":"It ran."}`, "stop"
		}
		for _, line := range []string{
			fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":%s,"finish_reason":null}]}`, delta),
			fmt.Sprintf(`{"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":%q}],"usage":{"prompt_tokens":100,"completion_tokens":10,"total_tokens":110}}`, reason),
			"[DONE]",
		} {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", line)
		}
	}))
	t.Cleanup(provider.Close)
	up := rawmcp.Start(t, rawmcp.Tools)
	mesh := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: modelPolicy,
		Extra: fmt.Sprintf("agents:\n  model: script:lines\n  providers:\n    local: {kind: openai, url: %q, key: the-key, prices: {m: {input: \"1\", output: \"2\"}}}", provider.URL),
	}))
	a := &agentMesh{Stack: mesh.Stack, upstream: up}
	create := func(arguments string) (prompt func(string) string, agent string) {
		id := textBetween(t, a.callAgentTool(t, "create", arguments), `"id":"`, `"`)
		return func(input string) string {
			return a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":%q}`, id, input))
		}, fmt.Sprintf(`{"agentId":%q}`, id)
	}
	prompt, agent := create(`{"model":"local:m","instructions":"Be brief.","manifest":{"tools":[{"server":"raw","tool":"safe"}],"models":[{"model":"local:*","tokens":200}]}}`)
	if said := prompt("Call it."); !strings.Contains(said, "It ran.") {
		t.Errorf("the agent answers %s", said)
	}
	if calls := up.Calls("safe"); len(calls) != 1 || !strings.Contains(string(calls[0].Body), `"arguments":{"q":"tea"}`) {
		t.Errorf("the server got %v", calls)
	}
	if mu.Lock(); len(keys) != 2 || keys[0] != "Bearer the-key" {
		t.Errorf("the provider received the keys %q", keys)
	}
	mu.Unlock()
	state := a.callAgentTool(t, "state", agent)
	for _, want := range []string{`"inputTokens":"200"`, `"outputTokens":"20"`, `"cost":"0.00024"`} {
		if !strings.Contains(state, want) {
			t.Errorf("the agent's state is %s, without %s", state, want)
		}
	}
	if said := prompt("Again."); !strings.Contains(said, "used up") {
		t.Errorf("an agent without tokens left answers %s", said)
	}
	if proof := a.callAgentTool(t, "verify", agent); !strings.Contains(proof, `"verification":"matches"`) {
		t.Errorf("the verification reports %s", proof)
	}
	// The next agent uses the model that is built into the installation.
	prompt, agent = create(`{"guest":"agent"}`)
	if said := prompt("call write_file {\"path\":\"a.txt\",\"content\":\"hello\"}\ncall read_file {\"path\":\"a.txt\"}\ncall other__tool"); !strings.Contains(said, `written\nhello\nerror: there is no tool`) && !strings.Contains(said, "rate_limited") {
		t.Errorf("the agent answers %s", said)
	}
	if said := prompt("say more"); !strings.Contains(said, "rate_limited") {
		t.Errorf("beyond the rate limit of the model the agent answers %s", said)
	}
	if files := a.callAgentTool(t, "files", agent); !strings.Contains(files, "a.txt") {
		t.Errorf("the agent's files are %s", files)
	}
	prompt, _ = create(`{"guest":"agent","model":"elsewhere:m"}`)
	if said := prompt("Hello."); !strings.Contains(said, "NO_MODEL_CONFIGURED") {
		t.Errorf("an agent without a model answers %s", said)
	}
	prompt, _ = create(`{"guest":"agent","model":"local:m","manifest":{}}`)
	if said := prompt("Hello."); !strings.Contains(said, "not_in_manifest") {
		t.Errorf("an agent without a right to the model answers %s", said)
	}
}

// The inspector lists and calls the tools of agents, including those that verify and copy agents. The results match the
// tools' output schemas, because otherwise the inspector reports an error.
func TestAgents_InspectorListsAndCallsTheirTools(t *testing.T) {
	t.Parallel()
	p := stack.StartWithoutConfig(t)
	inspector := npmtest.NewInspector(t, p.MCP("agents"), p.GeneratedToken(t, "agent"))
	call := func(tool string, arguments map[string]any) npmtest.ToolResult {
		t.Helper()
		text, err := json.Marshal(arguments)
		if err != nil {
			t.Fatal(err)
		}
		got := inspector.CallTool(npmtest.ToolCall{Name: "wasm_agent_" + tool, Arguments: jsontext.Value(text)}).ToolResult(t)
		if got.IsError {
			t.Errorf("wasm_agent_%s answers %s", tool, got.Text())
		}
		return got
	}
	id := textBetween(t, call("create", map[string]any{"model": "script:lines"}).Text(), `"id":"`, `"`)
	agent := map[string]any{"agentId": id}
	if said := call("prompt", map[string]any{"agentId": id, "input": "call write_file {\"path\":\"a.txt\",\"content\":\"hello\"}\nsay done"}).Text(); !strings.Contains(said, "written\\ndone") {
		t.Errorf("the agent answers %s", said)
	}
	for tool, want := range map[string]string{
		"events": `"effect":"model"`, "verify": `"verification":"matches"`, "snapshot": `"snapshot":{"id":"snapshot-`, "fork": `"forkedFrom":"` + id, "todos": `"todos":[]`, "is_stopped": `"isStopped":false`,
	} {
		if said := call(tool, agent).Text(); !strings.Contains(said, want) {
			t.Errorf("wasm_agent_%s answers %s, without %s", tool, said, want)
		}
	}
}
