package policy_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const replayedPolicy = `version: 1
name: team
server: raw
default: deny
tools:
  read:  {action: allow}
  write: {action: allow}
  pay:   {action: require_approval}
  slow:  {rate_limit: {max: 1, window: 1h}}
rules:
  - {name: devs, match: {tool: deploy, groups: [developers]}, action: allow}
  - {name: no-drop, match: {tool: drop}, action: deny}
`

// TestReplay_ShowsWhichRecordedCallsADraftChanges makes calls in a mesh and replays them with draft policies. The exit
// code is 1 if a draft makes a call less restricted, and 0 if it makes no call less restricted. The exit code is 3 if
// this is unknown, and 2 if the documents of the draft do not load. No call reaches the server again.
func TestReplay_ShowsWhichRecordedCallsADraftChanges(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "write", "pay", "slow", "deploy", "drop"))
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: replayedPolicy, Extra: "approvals: {hold: 0s}"})
	p := stack.Start(t, s)
	run := func(token string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"policy", "replay", "--since", "1h", "--addr", p.GRPC}, args...), Env: []string{"SLUICE_TOKEN=" + token}})
	}
	agent, other := stack.Connect(t, p.MCP("raw"), stack.AgentToken), stack.Connect(t, p.MCP("raw"), stack.OtherToken)
	for _, tool := range []string{"read", "read", "write", "pay", "slow", "slow", "deploy", "drop", "drop"} {
		agent.Call(tool, `{"path":"/a"}`)
	}
	other.Call("deploy", `{}`)
	dir := stack.WriteFolder(t, map[string]string{
		"opens.yaml": strings.NewReplacer("name: no-drop, match: {tool: drop}, action: deny", "name: drops, match: {tool: drop}, action: allow", "pay:   {action: require_approval}", "pay:   {action: allow}",
			"read:  {action: allow}", "read:  {action: deny}").Replace(replayedPolicy),
		"closes.yaml":  strings.Replace(replayedPolicy, "read:  {action: allow}", "read:  {action: require_approval}", 1),
		"unknown.yaml": strings.NewReplacer("write: {action: allow}", `write: {action: allow, when: args.path == "/a"}`).Replace(replayedPolicy),
		"mayopen.yaml": strings.Replace(replayedPolicy, "action: deny}", "action: deny, when: args.path != \"/a\"}\n  - {name: drops, match: {tool: drop}, action: allow}", 1),
		"broken.yaml":  strings.Replace(replayedPolicy, "allow", "alow", 1),
	})
	draft := func(name string) string { return filepath.Join(dir, name) }
	var active stack.CommandResult
	eventually.Holds(t, "all calls are recorded", func() bool {
		active = run(stack.ViewerToken)
		return strings.Contains(active.Stdout, ": 10 calls ")
	})
	stack.CheckCommand(t, active, 0, active.Stdout, ": 10 calls (0 open, 0 close, 9 same, 0 unknown).\n", "for a reason other than rules: 1 rate_limited.\n")

	opened := run(stack.OperatorToken, draft("opens.yaml"))
	stack.CheckCommand(t, opened, 1, opened.Stdout, ": 10 calls (3 open, 2 close, 4 same, 0 unknown).\n")
	_, table, _ := strings.Cut(opened.Stdout, "\n\n")
	want := `CALLS  RESULT                     WHAT      WHO                                  RULE
2      deny -> allow              raw/drop  agent, agent dev, groups developers  team/no-drop -> team/drops
1      require_approval -> allow  raw/pay   agent, agent dev, groups developers  team/tools.pay
2      allow -> deny              raw/read  agent, agent dev, groups developers  team/tools.read
`
	if got, _, _ := strings.Cut(table, "\nNot replayed"); cmp.Diff(want, got) != "" {
		t.Errorf("printed (-want +got):\n%s", cmp.Diff(want, got))
	}
	closed := run(stack.OperatorToken, draft("closes.yaml"))
	stack.CheckCommand(t, closed, 0, closed.Stdout, "(0 open, 2 close,", "allow -> require_approval")
	unknown := run(stack.OperatorToken, draft("unknown.yaml"))
	stack.CheckCommand(t, unknown, 0, unknown.Stdout, ", 1 unknown)", "1      raw/write  arguments   team/tools.write  no\n")
	mayOpen := run(stack.OperatorToken, draft("mayopen.yaml"))
	stack.CheckCommand(t, mayOpen, 3, mayOpen.Stderr, "the replay is incomplete: the result of 2 calls")
	broken := run(stack.OperatorToken, draft("broken.yaml"))
	stack.CheckCommand(t, broken, 2, broken.Stderr, "the documents do not load", "broken.yaml:6:", "alow")
	stack.CheckCommand(t, run(stack.AgentToken, draft("opens.yaml")), 2, "")

	asJSON := run(stack.OperatorToken, draft("opens.yaml"), "-o", "json", "--server", "raw")
	got := stack.DecodeOutput[struct {
		Calls, Opened, Closed int
		Complete              bool
		Flips                 []struct{ Kind, Calls string }
	}](t, stack.CommandResult{Stdout: asJSON.Stdout})
	if asJSON.Code != 1 || got.Calls != 10 || got.Opened != 3 || got.Closed != 2 || !got.Complete || len(got.Flips) != 3 || got.Flips[0].Kind != "FLIP_KIND_OPENS" {
		t.Errorf("exit code %d, %+v: %s", asJSON.Code, got, asJSON.Stdout)
	}
	if sent := len(up.Calls("read")); sent != 2 {
		t.Errorf("the server received %d calls of read, want 2", sent)
	}
}

// replayedCalls is the name of the environment variable that sets the number of recorded calls.
const replayedCalls = "SLUICE_REPLAYED"

// TestReplay_ManyCalls replays a journal with many calls by many callers. The replay may take at most a minute for
// 100,000 calls.
func TestReplay_ManyCalls(t *testing.T) {
	t.Parallel()
	n, err := strconv.Atoi(os.Getenv(replayedCalls))
	if err != nil {
		t.Skipf("%s is not a number: it holds the number of recorded calls", replayedCalls)
	}
	up := rawmcp.Start(t, rawmcp.ToolList("read", "write"))
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: replayedPolicy, Extra: "journal: {share: 1}"})
	writeCalls(t, s, n)
	p := stack.Start(t, s)
	draft := filepath.Join(stack.WriteFolder(t, map[string]string{"draft.yaml": strings.NewReplacer("read:  {action: allow}", `read:  {action: allow, when: args.path == "/a"}`, "write: {action: allow}", "write: {action: deny}").Replace(replayedPolicy)}), "draft.yaml")
	began := time.Now()
	ran := stack.Run(t, stack.Command{Args: []string{"policy", "replay", draft, "--addr", p.GRPC}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	took := time.Since(began)
	stack.CheckCommand(t, ran, 0, ran.Stdout, fmt.Sprintf(": %d calls (0 open, %d close, 0 same, %d unknown).", n, n/2, n-n/2))
	t.Logf("%d calls in %v", n, took)
	if limit := time.Minute * time.Duration(max(n, 100_000)) / 100_000; took > limit {
		t.Errorf("the replay took %v, want at most %v", took, limit)
	}
}

// writeCalls writes a journal with n calls of two tools, by a thousand callers.
func writeCalls(t *testing.T, s *stack.Stack, n int) {
	t.Helper()
	data := filepath.Join(s.Dir, "data")
	for _, dir := range []string{s.Journal(), filepath.Join(data, "keys", "gateway")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cfg := journal.DefaultConfig(s.Journal(), filepath.Join(data, "keys", "gateway"))
	cfg.Build, cfg.Log, cfg.Share = "test", slog.New(slog.DiscardHandler), 1
	j, err := journal.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		rec := &journal.Record{
			DecisionID: fmt.Sprintf("0195d3a4-7c1e-7d3a-9b1f-%012d", i), TraceID: strings.Repeat("4b", 16), Principal: journal.Principal{Tenant: "default", Subject: fmt.Sprintf("agent-%d", i/2%1000), Agent: "dev", TokenID: "agent"},
			Session: "9f86d081884c7d65", Server: "raw", Method: "tools/call", Tool: []string{"write", "read"}[i%2], PolicyRevision: strings.Repeat("cd", 32),
			Rule: journal.Rule{Document: "team", Rule: "tools.read"}, Effect: "allow", ArgumentsHMAC: strings.Repeat("ef", 32), RequestBytes: 312,
		}
		if err := j.Intent(t.Context(), rec); err != nil {
			t.Fatal(err)
		}
		outcome := *rec
		outcome.ResultClass, outcome.ResultBytes, outcome.LatencyMS = journal.ResultOK, 4096, 12.3
		if err := j.Outcome(t.Context(), &outcome); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}
