package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// observedPolicy returns a document with three rules. Two of them have mode: observe until the given time, which means
// that they are not enforced but only recorded. The third rule is enforced.
func observedPolicy(until time.Time) string {
	return strings.ReplaceAll(`version: 1
name: p
default: allow
tools:
  drop: {action: deny, reason: never drop, mode: observe, until: UNTIL}
  secret: {action: hide, mode: observe, until: UNTIL}
  wipe: {action: deny, reason: never wipe}
`, "UNTIL", until.UTC().Format(time.RFC3339))
}

// A rule and a server have mode: observe, so refusals are recorded but not enforced. Calls are allowed, hidden tools
// are listed, and the operators' commands report the rule and the server. Then the rule is changed so that mode:
// observe ends after two seconds. After that, the rule is enforced.
func TestObserve_CallsPassUntilTheTimeHasCome(t *testing.T) {
	t.Parallel()
	up, week := rawmcp.Start(t, rawmcp.ToolList("drop", "secret", "wipe")), time.Now().Add(7*24*time.Hour)
	date := week.UTC().Format(time.DateOnly)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}\n  calm: {http: {url: %q}, mode: observe, until: %s}", up.URL, up.URL, date),
		Policy:  observedPolicy(week),
	})
	m := &rawmesh.Mesh{Upstream: up, Stack: stack.Start(t, s).Stack}
	c := m.Connect(t)
	if listed := string(c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`).Body); !strings.Contains(listed, `"secret"`) {
		t.Errorf("the listed tools are %s", listed)
	}
	calm := stack.Connect(t, m.MCP("calm"), stack.AgentToken)
	for _, tt := range []struct {
		client *stack.Client
		tool   string
		ran    bool
	}{{c, "drop", true}, {c, "secret", true}, {c, "wipe", false}, {calm, "wipe", true}} {
		before := len(up.Calls(tt.tool))
		body := string(tt.client.Call(tt.tool, `{}`).Body)
		if ran := len(up.Calls(tt.tool)) > before; ran != tt.ran {
			t.Errorf("%s: the server received the call: %t, the response is %s", tt.tool, ran, body)
		}
	}
	operator := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--addr", m.GRPC), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	}
	status := operator("status")
	stack.CheckCommand(t, status, 0, status.Stdout, "observed", "server calm, until "+date, "rule p/tools.drop, until ", "rule p/tools.secret, until ")
	explain := operator("policy", "explain", "--all", "--server", "raw", "--tool", "drop")
	stack.CheckCommand(t, explain, 0, explain.Stdout, "allow", "If nothing were observed, the call would be denied: Rule p/tools.drop matches",
		"if nothing were observed: deny  denied_by_rule", "observed reason: never drop", "deny (observed)")
	lint := stack.Run(t, stack.Command{Args: []string{"policy", "lint", "--config", s.Config, s.Policy}})
	stack.CheckCommand(t, lint, 0, lint.Stdout, "tools.drop.mode: the rule is only observed until ", "servers.calm.mode: the server is only observed until "+date)

	stack.WriteFile(t, s.Policy, observedPolicy(time.Now().Add(2*time.Second)))
	eventually.Holds(t, "the observed rule is enforced", func() bool {
		return strings.Contains(string(c.Call("drop", `{}`).Body), "never drop")
	})
	status = operator("status")
	stack.CheckCommand(t, status, 0, status.Stdout, "server calm, until "+date)
	if strings.Contains(status.Stdout, "rule p/tools") {
		t.Errorf("the status names rules that are enforced:\n%s", status.Stdout)
	}

	// The mesh reads its configuration only at its start, so it still uses the old one.
	stack.ReplaceInFile(t, s.Config, ", mode: observe, until: "+date, "")
	_, found := stack.RunDoctor(t, "SLUICE_CONFIG="+s.Config, "SLUICE_TOKEN="+stack.OperatorToken, "SLUICE_ADDR="+m.GRPC)
	if still := found["warning observed"]; !strings.Contains(still.Found, "still observes server calm") || !strings.Contains(still.Do, "restart the mesh") {
		t.Errorf("doctor finds %+v", found)
	}
}

// When `sluice up` starts, it prints that every server and the document are in observe mode, and until when. It also logs
// this.
func TestObserve_BannerNamesWhatIsObserved(t *testing.T) {
	t.Parallel()
	date := time.Now().Add(7 * 24 * time.Hour).UTC().Format(time.DateOnly)
	s := stack.WriteConfig(t, stack.Options{
		Servers: "  raw: {http: {url: \"http://127.0.0.1:1/mcp\"}}", Extra: "mode: observe\nuntil: " + date,
		Policy: "version: 1\nname: p\ndefault: deny\nmode: observe\nuntil: " + date + "\n",
	})
	p := stack.Launch(t, s)
	eventually.Holds(t, "sluice up says that it is up", func() bool { return strings.Contains(p.Stdout(), "Stop with Ctrl-C.") })
	for _, line := range []string{"  observed  every server, until " + date + "\n", "  observed  document p, until " + date + "\n"} {
		if !strings.Contains(p.Stdout(), line) {
			t.Errorf("the output does not contain %q:\n%s", line, p.Stdout())
		}
	}
	if want := "mode: the mesh is only observed until " + date; !strings.Contains(p.Stderr(), want) {
		t.Errorf("the log does not contain %q:\n%s", want, p.Stderr())
	}
}
