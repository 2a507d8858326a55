package policy_test

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// lossPolicy requires an approval for tools that destroy data.
const lossPolicy = `version: 1
name: team
server: raw
default: allow
rules:
  - {name: loss, match: {category: [destructive]}, action: require_approval}
`

// TestDiff_ShowsWhatAnOverrideOpens checks that `policy diff` shows which calls an override of a tool's class would
// newly allow. It compares the override with the active catalog of a running mesh, before and after the override is
// set.
func TestDiff_ShowsWhatAnOverrideOpens(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, `[{"name":"delete_note","description":"Deletes a note permanently.","inputSchema":{"type":"object"}}]`)
	s := stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: lossPolicy, Extra: "approvals: {hold: 0s}"})
	p := stack.Start(t, s)
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--addr", p.GRPC), Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	}
	c := stack.Connect(t, p.MCP("raw"), stack.AgentToken)
	if code := c.Call("delete_note", `{}`).Decision(t).Code; code != "approval_pending" {
		t.Fatalf("before: %q", code)
	}
	diff := run("policy", "diff", "--override", "raw/delete_note=read:low")
	stack.CheckCommand(t, diff, 1, diff.Stdout, ", changes: 1 (1 open something, 0 close something, 0 change limits or other terms).\n",
		"require_approval -> allow  raw/delete_note  any caller  -   team/loss -> default\n", "Compared symbolically: all arguments of 1 tool.")
	asJSON := run("policy", "diff", "--override", "raw/delete_note=read:low", "-o", "json")
	var resp policyv1.DiffRevisionsResponse
	if err := protojson.Unmarshal([]byte(asJSON.Stdout), &resp); err != nil || asJSON.Code != 1 || len(resp.GetFlips()) != 1 {
		t.Errorf("exit code %d, %v\n%s", asJSON.Code, err, asJSON.Stdout)
	}
	if code := c.Call("delete_note", `{}`).Decision(t).Code; code != "approval_pending" {
		t.Errorf("the comparison has changed the decision to %q", code)
	}
	set := run("catalog", "override", "raw", "delete_note", "--category", "read", "--risk", "low", "--reason", "test")
	stack.CheckCommand(t, set, 0, set.Stdout, "done")
	if resp := c.Call("delete_note", `{}`); resp.IsError(t) {
		t.Errorf("after the override: %s", resp.Body)
	}
	removed := run("policy", "diff", "--override", "raw/delete_note=")
	stack.CheckCommand(t, removed, 0, removed.Stdout, "allow -> require_approval", "default -> team/loss")
	none := run("policy", "diff", "--catalog")
	stack.CheckCommand(t, none, 0, none.Stdout, ": no call gets another result.", "no definition is pending")
	both := run("policy", "diff", "--catalog", s.Policy)
	stack.CheckCommand(t, both, 2, both.Stderr, "leave out OLD and NEW")
	if code := run("policy", "diff", "--override", "raw/delete_note=harmless").Code; code != 2 {
		t.Errorf("an unknown category: exit code %d", code)
	}
}
