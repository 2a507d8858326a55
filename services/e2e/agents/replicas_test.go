package agents_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// Two meshes share their agents in PostgreSQL, and the test kills one of the meshes under load. It checks that no call
// is sent twice, that no acknowledged call is missing, and that all agents continue at the other mesh, including the
// agent that waits for an approval.
func TestAgents_ContinueAtTheOtherMeshWhenOneIsKilled(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	server, states := sqlstoretest.Start(t), t.TempDir()
	approvals, kept := server.Database(t), server.Database(t)
	start := func() (*stack.Process, *agentMesh) {
		p := stack.Start(t, stack.WriteConfig(t, stack.Options{
			Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: agentCallsPolicy,
			Extra: fmt.Sprintf("approvals: {hold: 0s}\nstores: {approval: %q, agents: %q, agent_states: %q}", approvals, kept, "file://"+states+"?metadata=skip&no_tmp_dir=true"),
		}))
		return p, &agentMesh{Stack: p.Stack, upstream: up, dialRole: func(authv1.Role) *grpc.ClientConn { return p.Operator(t) }}
	}
	killed, one := start()
	_, two := start()

	create := func() string {
		return textBetween(t, one.callAgentTool(t, "create", `{"maxTurns":10000,"manifest":{"tools":[{"server":"raw","tool":"pay"},{"server":"raw","tool":"safe"}]}}`), `"id":"`, `"`)
	}
	prompt := func(id, input string) string { return fmt.Sprintf(`{"agentId":%q,"input":%q}`, id, input) }
	agent := func(id string) string { return fmt.Sprintf(`{"agentId":%q}`, id) }
	parked := create()
	one.callAgentTool(t, "prompt", prompt(parked, "tool raw safe {\"q\":\"parked\"}\ntool raw pay {\"sum\":12.5}\nsay after"))
	if state := two.callAgentTool(t, "state", agent(parked)); !strings.Contains(state, `"waitingFor":"approval"`) {
		t.Fatalf("the agent's state is %s", state)
	}

	const agents = 4
	var ids [agents]string
	var acknowledged sync.Map
	var by [2]atomic.Int64 // the number of acknowledged calls in each mesh
	load, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range ids {
		ids[i] = create()
		clients := []*stack.Client{stack.Connect(t, one.MCP("agents"), stack.AgentToken), stack.Connect(t, two.MCP("agents"), stack.AgentToken)}
		callers.Go(func() {
			for n := 0; load.Err() == nil; n++ {
				key := fmt.Sprintf("%d-%d", i, n)
				resp, err := clients[n%2].TryPost([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"wasm_agent_prompt","arguments":` + prompt(ids[i], fmt.Sprintf("tool raw safe {\"q\":%q}", key)) + `}}`))
				if err == nil && strings.Contains(string(resp.Body), `"response":"ran"`) {
					acknowledged.Store(key, true)
					by[n%2].Add(1)
				}
			}
		})
	}
	eventually.Within(t, 3*time.Minute, "both meshes answer", func() bool { return by[0].Load() >= 20 && by[1].Load() >= 20 })
	killed.Kill()
	before := by[1].Load()
	eventually.Within(t, 3*time.Minute, "the other mesh continues to answer", func() bool { return by[1].Load() >= before+20 })
	stop()
	callers.Wait()

	said := ""
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("the last response:", said)
			t.Log("the events of the parked agent:", two.callAgentTool(t, "events", agent(parked)))
		}
	})
	eventually.Within(t, 3*time.Minute, "the agents answer at the other mesh", func() bool {
		for _, id := range ids {
			if said = two.callAgentTool(t, "prompt", prompt(id, "say here")); !strings.Contains(said, "here") {
				return false
			}
		}
		said = two.callAgentTool(t, "state", agent(parked))
		return strings.Contains(said, `"waitingFor":"approval"`)
	})
	two.approveAll(t)
	eventually.Holds(t, "the parked agent continues", func() bool {
		said = two.callAgentTool(t, "state", agent(parked))
		return strings.Contains(said, `ran\nafter`)
	})

	sent := make(map[string]int)
	for _, call := range up.Calls() {
		var body struct {
			Params struct{ Arguments map[string]any }
		}
		if err := json.Unmarshal(call.Body, &body); err != nil {
			t.Fatal(err)
		}
		sent[fmt.Sprint(call.Name, body.Params.Arguments)]++
	}
	for call, n := range sent {
		if n != 1 {
			t.Errorf("%s was sent %d times", call, n)
		}
	}
	known := 0
	acknowledged.Range(func(key, _ any) bool {
		if known++; sent[fmt.Sprintf("safemap[q:%s]", key)] != 1 {
			t.Errorf("%s was acknowledged, but not sent once", key)
		}
		return true
	})
	t.Logf("%d calls were acknowledged, %d of them by the mesh that was killed; %d were sent", known, by[0].Load(), len(sent))
	if pay := len(up.Calls("pay")); pay != 1 {
		t.Errorf("pay ran %d times", pay)
	}
	for _, id := range append(ids[:], parked) {
		if proof := two.callAgentTool(t, "verify", agent(id)); !strings.Contains(proof, `"verification":"matches"`) {
			t.Errorf("the verification reports %s", proof)
		}
	}
}
