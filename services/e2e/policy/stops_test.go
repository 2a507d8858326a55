package policy_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const stopsPolicy = `version: 1
name: stops
default: deny
tools:
  safe: {action: allow}
  pay: {action: require_approval, reason: money moves}
rules:
  - {name: agents, match: {tool: "wasm_agent_*"}, action: allow}
`

// stopMesh is a mesh in a separate process, with the server "raw" and with agents.
type stopMesh struct {
	*stack.Process
	t        *testing.T
	upstream *rawmcp.Server
}

func startStopMesh(t *testing.T) *stopMesh {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  agents: {grpc: {target: wasmagent}}", up.URL), Policy: stopsPolicy, Extra: "approvals: {hold: 0s}",
		Tokens: "    - {name: ann, token: \"agent-token-of-ann-Q1w2E3r4T5y6U7i8O9\", agent: ann, role: agent}",
		Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
	})
	return &stopMesh{Process: stack.Start(t, s), t: t, upstream: up}
}

// run runs a command as the operator, in the directory that contains the configuration.
func (m *stopMesh) run(args ...string) stack.CommandResult {
	m.t.Helper()
	return stack.Run(m.t, stack.Command{Args: args, Dir: filepath.Dir(m.Config), Env: []string{"SLUICE_CONFIG=" + m.Config, "SLUICE_TOKEN=" + stack.OperatorToken}})
}

func (m *stopMesh) mustRun(args ...string) string {
	m.t.Helper()
	ran := m.run(args...)
	if ran.Code != 0 {
		m.t.Fatalf("sluice %s: exit code %d\n%s%s", strings.Join(args, " "), ran.Code, ran.Stdout, ran.Stderr)
	}
	return ran.Stdout
}

// stopCallers calls the tool "safe" from several clients until the function stop is called, and counts the results.
type stopCallers struct {
	ran, refused atomic.Int64
	// wrong is a response that is neither a result nor a refusal with the expected reason.
	wrong atomic.Pointer[string]
	stop  context.CancelFunc
	done  sync.WaitGroup
}

func (m *stopMesh) startCallers(clients int) *stopCallers {
	m.t.Helper()
	ctx, stop := context.WithCancel(m.t.Context())
	all := &stopCallers{stop: stop}
	for i := range clients {
		client := stack.Connect(m.t, m.MCP("raw"), []string{stack.AgentToken, stack.OtherToken}[i%2])
		all.done.Go(func() {
			for ctx.Err() == nil {
				resp, err := client.TryPost([]byte(stack.CallRequest(`{"name":"safe"}`)))
				switch {
				case err != nil:
				case bytes.Contains(resp.Body, []byte(`"text":"ran"`)):
					all.ran.Add(1)
				case bytes.Contains(resp.Body, []byte(`"code":"stopped"`)) && bytes.Contains(resp.Body, []byte("Stopped by an operator: it sends mail to strangers.")) &&
					!bytes.Contains(resp.Body, []byte("retryAfter")):
					all.refused.Add(1)
				default:
					text := string(resp.Body)
					all.wrong.Store(&text)
				}
			}
		})
	}
	m.t.Cleanup(all.end)
	return all
}

func (c *stopCallers) end() {
	c.stop()
	c.done.Wait()
}

// Several clients call a server. Meanwhile, an operator stops and resumes their calls from the command line. The server
// receives no call between the acknowledgement of a stop and the beginning of the resume. Each refusal contains the
// reason.
func TestStop_NoCallBeginsAfterTheAcknowledgement(t *testing.T) {
	t.Parallel()
	m := startStopMesh(t)
	var mu sync.Mutex
	var arrivals []time.Time
	m.upstream.SetAnswer("safe", func(w http.ResponseWriter, r *http.Request, id string) {
		at := time.Now()
		mu.Lock()
		arrivals = append(arrivals, at)
		mu.Unlock()
		rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`)(w, r, id)
	})
	callers := m.startCallers(6)
	more := func(what string, count *atomic.Int64) {
		t.Helper()
		from := count.Load()
		eventually.Holds(t, what, func() bool { return count.Load() > from+20 })
	}
	type pause struct{ acknowledged, resumed time.Time }
	var pauses []pause
	for _, selector := range [][]string{{"--agent", "dev"}, {"--all"}, {"--server", "raw"}, {"--tenant", "default"}, {"--agent", "dev", "--server", "raw"}} {
		more("calls run", &callers.ran)
		printed := m.mustRun(append([]string{"stop", "-m", "it sends mail to strangers"}, selector...)...)
		acknowledged := time.Now()
		if !strings.HasPrefix(printed, "stopped: all calls") || !strings.Contains(printed, "resume "+strings.Join(selector, " ")) {
			t.Errorf("stop prints %s", printed)
		}
		more("calls are refused", &callers.refused)
		pauses = append(pauses, pause{acknowledged, time.Now()})
		if printed := m.mustRun(append([]string{"resume"}, selector...)...); !strings.HasPrefix(printed, "resumed: all calls") || strings.Contains(printed, "still stopped") {
			t.Errorf("resume prints %s", printed)
		}
	}
	more("calls run again", &callers.ran)
	callers.end()
	if wrong := callers.wrong.Load(); wrong != nil {
		t.Errorf("a response is %s", *wrong)
	}
	for _, at := range arrivals {
		for i, p := range pauses {
			if at.After(p.acknowledged) && at.Before(p.resumed) {
				t.Errorf("a call reached the server %v after stop %d was acknowledged", at.Sub(p.acknowledged), i)
			}
		}
	}
	t.Logf("%d calls ran, %d were refused", callers.ran.Load(), callers.refused.Load())
}

// The mesh is killed and started again. A stop of calls stays in force, and status, doctor, explain, the journal and
// the history show it.
func TestStop_SurvivesARestartAndIsShown(t *testing.T) {
	t.Parallel()
	m := startStopMesh(t)
	call := func() stack.Response { return stack.Connect(t, m.MCP("raw"), stack.AgentToken).Call("safe", `{}`) }
	if text := call().Text(t); text != "ran" {
		t.Fatalf("before the stop: %s", text)
	}
	if ran := m.run("stop", "--server", "raw"); ran.Code != 2 || !strings.Contains(ran.Stderr, "a reason is required") {
		t.Errorf("a stop without a reason: %+v", ran)
	}
	if ran := m.run("stop", "-m", "x"); ran.Code != 2 || !strings.Contains(ran.Stderr, "select the calls to stop") {
		t.Errorf("a stop without a selector: %+v", ran)
	}
	m.mustRun("stop", "--server", "raw", "-m", "it leaks keys")
	if printed := m.mustRun("stop", "--server", "raw", "-m", "another reason"); !strings.Contains(printed, "were stopped before, by operator at") || !strings.Contains(printed, "it leaks keys") {
		t.Errorf("the repeated stop prints %s", printed)
	}
	m.Kill()
	m.Process = stack.Start(t, m.Stack)
	if d := call().Decision(t); d.Code != "stopped" {
		t.Errorf("after the restart: %+v", d)
	}
	if listed := string(stack.Connect(t, m.MCP("raw"), stack.AgentToken).Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body); !strings.Contains(listed, `"safe"`) {
		t.Errorf("the list of a stopped server is %s", listed)
	}
	status := strings.Split(m.mustRun("status"), "\n")
	if len(status) < 2 || !strings.HasPrefix(status[1], "stopped") || !strings.Contains(status[1], "all calls to server raw, by operator at") || !strings.Contains(status[1], ": it leaks keys") {
		t.Errorf("status prints %s", strings.Join(status, "\n"))
	}
	for command, want := range map[string]string{
		"doctor": "all calls to server raw are stopped by operator at",
		"policy explain --server raw --tool safe": "An operator has stopped all calls to server raw. A stop refuses a call before any rule is evaluated.",
		"stop --list":    "all calls to server raw",
		"decisions tail": "stopped",
	} {
		if printed := m.run(strings.Fields(command)...).Stdout; !strings.Contains(printed, want) {
			t.Errorf("%s prints %s\nwant %s", command, printed, want)
		}
	}
	m.mustRun("resume", "--server", "raw")
	if text := call().Text(t); text != "ran" {
		t.Errorf("after the resume: %s", text)
	}
	if printed := m.mustRun("resume", "--server", "raw"); !strings.HasPrefix(printed, "no stop had these flags") {
		t.Errorf("the repeated resume prints %s", printed)
	}
	type ended struct{ Server, Reason, Operator, ResumedBy string }
	history := stack.DecodeOutput[[]ended](t, m.run("stop", "--history", "-o", "json"))
	if len(history) != 1 || history[0] != (ended{"raw", "it leaks keys", "operator", "operator"}) {
		t.Errorf("the history is %+v", history)
	}
}

// An approver approves a call, and then an operator stops the agent. The call does not run until the agent's calls are
// resumed.
func TestStop_ApprovedCallRunsAfterTheResume(t *testing.T) {
	t.Parallel()
	m := startStopMesh(t)
	approvals := &rawmesh.Mesh{Upstream: m.upstream, Stack: m.Stack}
	c := stack.Connect(t, m.MCP("raw"), stack.AgentToken)
	if d := c.Call("pay", `{"sum":1}`).Decision(t); d.Code != "approval_pending" {
		t.Fatalf("the first call: %+v", d)
	}
	id := approvals.AwaitOnePending(t)
	m.mustRun("approvals", "approve", id, "--yes")
	m.mustRun("stop", "--agent", "dev", "-m", "it loops")
	if d := c.Call("pay", `{"sum":1}`).Decision(t); d.Code != "stopped" || len(m.upstream.Calls("pay")) != 0 {
		t.Errorf("an approved call of a stopped agent: %+v", d)
	}
	approvals.AwaitState(t, id, "approved")
	m.mustRun("resume", "--agent", "dev")
	if resp := c.Call("pay", `{"sum":1}`); resp.IsError(t) || len(m.upstream.Calls("pay")) != 1 {
		t.Errorf("after the resume: %s", resp.Body)
	}
}

// An operator stops an agent that runs in the mesh: first by the agent's id, and later by the subject of the agent's
// creator. The agent's prompt ends with the reason when the agent makes its next call. After the calls are resumed, the
// agent continues.
func TestStop_AgentOfTheMeshEndsItsPrompt(t *testing.T) {
	t.Parallel()
	m := startStopMesh(t)
	c := stack.Connect(t, m.MCP("agents"), "agent-token-of-ann-Q1w2E3r4T5y6U7i8O9")
	made := c.Call("wasm_agent_create", `{"manifest":{"tools":[{"server":"raw","tool":"safe"}]}}`).Text(t)
	_, rest, _ := strings.Cut(made, `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	prompt := func() stack.Response {
		return c.Call("wasm_agent_prompt", fmt.Sprintf(`{"agentId":%q,"input":"tool raw safe {}"}`, id))
	}
	if resp := prompt(); resp.IsError(t) || len(m.upstream.Calls("safe")) != 1 {
		t.Fatalf("before the stop: %s", resp.Body)
	}
	m.mustRun("stop", "--agent", id, "-m", "it loops")
	resp := prompt()
	if text := resp.Text(t); !resp.IsError(t) || !strings.Contains(text, "Stopped by an operator: it loops.") || !strings.Contains(text, "sluice resume --agent "+id) {
		t.Errorf("a prompt of a stopped agent: %s", resp.Body)
	}
	if len(m.upstream.Calls("safe")) != 1 {
		t.Error("the server received a call of a stopped agent")
	}
	m.mustRun("resume", "--agent", id)
	if resp := prompt(); resp.IsError(t) || len(m.upstream.Calls("safe")) != 2 {
		t.Errorf("after the resume: %s", resp.Body)
	}
	m.mustRun("stop", "--agent", "ann", "-m", "it loops")
	if resp := prompt(); !resp.IsError(t) || !strings.Contains(resp.Text(t), "Stopped by an operator: it loops.") || len(m.upstream.Calls("safe")) != 2 {
		t.Errorf("a prompt of an agent whose creator is stopped: %s", resp.Body)
	}
}
