package policy_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protojson"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const activePolicy = `version: 1
name: team
server: raw
default: deny
tools:
  read: {action: allow}
  pay: {action: require_approval}
rules:
  - {name: no-drop, match: {tool: drop}, action: deny}
  - {name: drops, match: {tool: drop}, action: allow}
`

// TestDiff_ShowsWhatADraftOpens checks that `policy diff` shows which calls a draft would newly allow. It compares a
// draft with the active documents of a running mesh and with the mesh's recorded calls. It also compares two files
// without a mesh. The exit code is 1 if the change makes a call less restricted, 0 if it does not, and 2 after an
// error.
func TestDiff_ShowsWhatADraftOpens(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "pay", "drop"))
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: activePolicy})
	p := stack.Start(t, s)
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"policy", "diff"}, args...), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	}
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	for _, tool := range []string{"read", "read", "drop"} {
		c.Call(tool, `{}`)
	}
	until := time.Now().Add(24 * time.Hour).UTC().Format(time.RFC3339)
	dir := stack.WriteFolder(t, map[string]string{
		"opens.yaml":  strings.NewReplacer("action: deny}", "action: deny, mode: observe, until: "+until+"}", "read: {action: allow}", "read: {action: deny}").Replace(activePolicy),
		"closes.yaml": strings.Replace(activePolicy, "read: {action: allow}", "read: {action: deny}", 1),
		"broken.yaml": strings.Replace(activePolicy, "allow", "alow", 1),
	})
	draft := func(name string) string { return filepath.Join(dir, name) }
	var opened stack.CommandResult
	eventually.Holds(t, "the recorded calls are compared", func() bool {
		opened = run(draft("opens.yaml"), "--since", "1h", "--addr", p.GRPC)
		return strings.Contains(opened.Stdout, "\n2 ")
	})
	stack.CheckCommand(t, opened, 1, opened.Stdout, ", changes: 2 (1 open something, 1 close something, 0 change limits or other terms).\n")
	_, table, _ := strings.Cut(opened.Stdout, "\n\n")
	want := `CALLS  RESULT                    WHAT      WHO         IF  RULE
1      deny -> allow (observed)  raw/drop  any caller  -   team/no-drop -> team/drops
2      allow -> deny             raw/read  any caller  -   team/tools.read
The journal contains no arguments: if a row has a condition, only some of its calls have the new result.
`
	table, how, _ := strings.Cut(table, "Compared symbolically: ")
	if !strings.Contains(how, "generated calls: ") || !strings.Contains(how, "recorded calls: those of the journal") {
		t.Errorf("the output does not say how the calls were compared: %s", how)
	}
	if diff := cmp.Diff(want, table); diff != "" {
		t.Errorf("printed (-want +got):\n%s", diff)
	}
	live := run(draft("closes.yaml"), "--addr", p.GRPC)
	stack.CheckCommand(t, live, 0, live.Stdout, "changes: 1 (0 open", "allow -> deny", "raw/read")
	for _, args := range [][]string{{}, {"--config", s.Config}, {"--live", "--addr", p.GRPC}} {
		offline := run(append(args, draft("closes.yaml"), draft("opens.yaml"))...)
		stack.CheckCommand(t, offline, 1, offline.Stdout, "deny -> allow (observed)", "raw/drop")
	}
	asJSON := run(s.Policy, draft("opens.yaml"), "-o", "json")
	var resp policyv1.DiffRevisionsResponse
	if err := protojson.Unmarshal([]byte(asJSON.Stdout), &resp); err != nil {
		t.Fatalf("the output is not JSON: %v\n%s", err, asJSON.Stdout)
	}
	if asJSON.Code != 1 || resp.GetTotals().GetOpened() != 1 || resp.GetFlips()[0].GetAfter().GetObserved().GetEffect() != policyv1.Effect_EFFECT_DENY {
		t.Errorf("exit code %d, %s", asJSON.Code, asJSON.Stdout)
	}
	same := run(s.Policy, s.Policy)
	stack.CheckCommand(t, same, 0, same.Stdout, ": no call gets another result.")
	broken := run(s.Policy, draft("broken.yaml"))
	stack.CheckCommand(t, broken, 2, broken.Stderr, "the documents do not load", "broken.yaml:6:", "alow")
	stack.CheckCommand(t, run(s.Policy), 2, "")
}
