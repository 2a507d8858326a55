package policy_test

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const recordingPolicy = `version: 1
name: files
default: deny
tools:
  write: {action: allow, record: {arguments: redacted}}
  read: {action: allow}
`

// The arguments of calls are recorded because of a rule or because of a server's configuration. Operators can read the
// arguments, but not the secrets in them, even after a restart. No response to another caller and no file contains the
// arguments in plain text.
func TestRecordedArguments_OnlyOperatorsReadThem(t *testing.T) {
	t.Parallel()
	raw := rawmcp.Start(t, rawmcp.ToolList("read", "write"))
	collector := stack.NewCollector(t)
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  rule: {http: {url: %[1]q}}\n  server: {http: {url: %[1]q}, record: {arguments: redacted}}", raw.URL),
		Policy:  recordingPolicy, Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
		Extra: fmt.Sprintf("telemetry: {otlp: %q, sample: 1}", collector.URL),
	})
	p := stack.Start(t, s)
	show := func(token, id string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"decisions", "show", id, "--addr", p.GRPC}, args...), Dir: p.Dir, Env: []string{"SLUICE_TOKEN=" + token}})
	}
	arguments := fmt.Sprintf(`{"path":"/srv/Überblick-7391.txt","text":"the key is %s"}`, secretKey)
	ids := make(map[string]string)
	calls := map[string]struct{ server, tool, code string }{
		"by the rule": {"rule", "write", ""}, "by the server": {"server", "read", ""},
		"not asked for": {"rule", "read", ""}, "refused": {"server", "drop", "denied_by_default"},
	}
	for name, call := range calls {
		resp := stack.Connect(t, p.MCP(call.server), stack.AgentToken).Call(call.tool, arguments)
		if got := resp.Decision(t); got.Code != call.code {
			t.Fatalf("%s: %s", name, resp.Body)
		}
	}
	for _, r := range stack.ListRecords(t.Context(), t, gatewayv1.NewGatewayServiceClient(p.Operator(t))) {
		for name, call := range calls {
			if r.GetServer() == call.server && r.GetTool() == call.tool {
				ids[name] = r.GetDecisionId()
			}
		}
	}
	check := func() {
		t.Helper()
		for _, name := range []string{"by the rule", "by the server"} {
			ran := show(stack.OperatorToken, ids[name], "--arguments")
			stack.CheckCommand(t, ran, 0, ran.Stdout, `"path": "/srv/Überblick-7391.txt"`, `"text": "the key is [redacted: secrets]"`)
			stack.CheckCommand(t, ran, 0, ran.Stderr, "Values were replaced")
			for _, token := range []string{stack.ViewerToken, stack.AgentToken, stack.OtherToken} {
				if ran := show(token, ids[name], "--arguments"); ran.Code == 0 || strings.Contains(ran.Stdout+ran.Stderr, "7391") {
					t.Errorf("another token reads the arguments: %+v", ran)
				}
			}
			ran = show(stack.ViewerToken, ids[name])
			stack.CheckCommand(t, ran, 0, ran.Stdout, "bytes are recorded, with values replaced; --arguments prints them")
		}
		for _, name := range []string{"not asked for", "refused"} {
			ran := show(stack.OperatorToken, ids[name], "--arguments")
			stack.CheckCommand(t, ran, 1, ran.Stderr, "no arguments were recorded")
		}
	}
	check()
	if spans := string(collector.Raw()); strings.Contains(spans, "7391") || strings.Contains(spans, secretKey) {
		t.Error("the exported spans contain arguments")
	}
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	checkNoArguments(t, filepath.Join(s.Dir, "data"))
	p = stack.Start(t, s)
	check()
	checkReplayedArguments(t, p)
}

// checkReplayedArguments replays recorded calls with a draft whose conditions read arguments. For operators, the result
// of a call is known if its arguments were recorded and no value in the arguments was redacted.
func checkReplayedArguments(t *testing.T, p *stack.Process) {
	t.Helper()
	agent := stack.Connect(t, p.MCP("rule"), stack.AgentToken)
	for _, path := range []string{"/srv/a", "/srv/a", "/etc/b"} {
		agent.Call("write", fmt.Sprintf(`{"path":%q}`, path))
	}
	draft := filepath.Join(stack.WriteFolder(t, map[string]string{"draft.yaml": strings.Replace(recordingPolicy, "write: {action: allow,", `write: {action: allow, when: 'path.within(args.path, "/srv")',`, 1)}), "draft.yaml")
	replay := func(token string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: []string{"policy", "replay", draft, "--server", "rule", "--addr", p.GRPC}, Dir: p.Dir, Env: []string{"SLUICE_TOKEN=" + token}})
	}
	var known stack.CommandResult
	eventually.Holds(t, "all calls are recorded", func() bool {
		known = replay(stack.OperatorToken)
		return strings.Contains(known.Stdout, ": 5 calls ")
	})
	stack.CheckCommand(t, known, 0, known.Stdout, ": 5 calls (0 open, 1 close, 3 same, 1 unknown).", "allow -> deny  rule/write")
	unknown := replay(stack.ViewerToken)
	stack.CheckCommand(t, unknown, 0, unknown.Stdout, ": 5 calls (0 open, 0 close, 1 same, 4 unknown).")
}

// checkNoArguments checks that no file in a directory contains the arguments in plain text.
func checkNoArguments(t *testing.T, dir string) {
	t.Helper()
	segments := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		if strings.HasSuffix(path, ".args") {
			segments++
		}
		if text := stack.ReadFile(t, path); strings.Contains(text, "7391") || strings.Contains(text, secretKey) {
			t.Errorf("%s contains arguments", path)
		}
		return nil
	})
	if err != nil || segments != 1 {
		t.Errorf("%d segments of recorded arguments, want 1: %v", segments, err)
	}
}
