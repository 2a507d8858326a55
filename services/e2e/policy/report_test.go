package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const reportPolicy = `version: 1
name: p
default: deny
tools:
  read: {action: allow}
  drop: {action: allow}
  pay: {action: allow}
  draft: {action: allow, mode: observe, until: UNTIL}
rules:
  - {name: no-drop, match: {tool: drop}, action: deny, mode: observe, until: UNTIL}
  - {name: ask-pay, match: {tool: pay}, action: require_approval, mode: observe, until: UNTIL}
  - {name: slow, match: {tool: read}, rate_limit: {max: 2, window: 1h}, mode: observe, until: UNTIL}
`

// TestReport_ShowsWhatObservedRulesWouldHaveDecided uses rules and limits with mode: observe. It checks that they
// refuse no calls, and that `sluice report` and `sluice decisions tail` show what would have happened to the calls.
func TestReport_ShowsWhatObservedRulesWouldHaveDecided(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "drop", "pay", "draft"))
	m := &rawmesh.Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL),
		Policy:  strings.ReplaceAll(reportPolicy, "UNTIL", time.Now().Add(7*24*time.Hour).UTC().Format(time.RFC3339)),
	})}
	run := func(token string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--addr", m.GRPC), Env: []string{"SLUICE_TOKEN=" + token}})
	}
	before := run(stack.OperatorToken, "report")
	stack.CheckCommand(t, before, 0, before.Stdout, ": 0 calls, none would have had another result.\n", "mode: observe")
	c := m.Connect(t)
	for tool, n := range map[string]int{"read": 5, "drop": 2, "pay": 1, "draft": 1} {
		for range n {
			c.Call(tool, `{}`)
		}
		if want := map[bool]int{true: n}[tool != "draft"]; len(up.Calls(tool)) != want {
			t.Errorf("%s: the server received %d calls, want %d", tool, len(up.Calls(tool)), want)
		}
	}
	report := run(stack.OperatorToken, "report", "--since", "1h", "--server", "raw")
	stack.CheckCommand(t, report, 0, report.Stdout, ": 9 calls, 7 would have had another result: 2 refused, 1 held for approval, 3 limited, 1 allowed.\n")
	_, table, _ := strings.Cut(report.Stdout, "\n\n")
	want := `CALLS  WHAT       WHO          WAS      WOULD BE                              RULE
3      raw/read   agent (dev)  allowed  limited: rate_limited                 p/slow
2      raw/drop   agent (dev)  allowed  refused: denied_by_rule               p/no-drop
1      raw/draft  agent (dev)  refused  allowed                               p/tools.draft
1      raw/pay    agent (dev)  allowed  held for approval: approval_required  p/ask-pay
`
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	tail := run(stack.OperatorToken, "decisions", "tail")
	stack.CheckCommand(t, tail, 0, tail.Stdout, "allow (would_deny denied_by_rule p/no-drop)", "denied_by_default (would_allow p/tools.draft)", "allow (would_limit rate_limited p/slow)")
	other := run(stack.OperatorToken, "report", "--subject", "ben")
	stack.CheckCommand(t, other, 0, other.Stdout, ": 0 calls, none")
	agent := run(stack.AgentToken, "report")
	stack.CheckCommand(t, agent, 1, agent.Stderr, "operator's")
}
