package approvals_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Case N1. A mesh without a configuration has a demo server. After a restart, the demo server has another address. The
// test checks that a pending approval is unchanged after the restart, and that the approved call runs once.
func TestApprovals_OfTheDemoServerSurviveARestart(t *testing.T) {
	t.Parallel()
	const refund = `{"account":"ana","amount":"12.50"}`
	p := stack.StartWithoutConfig(t)
	agent := p.GeneratedToken(t, "agent")
	answered := make(chan stack.Response, 1)
	c := stack.Connect(t, p.MCP("demo"), agent)
	go func() { answered <- c.Call("refund", refund) }()
	id := awaitOnlyPending(t, p)
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	if d := (<-answered).Decision(t); d.Code != "approval_pending" {
		t.Fatalf("the call that waited: %+v", d)
	}
	added := filepath.Join(p.Dir, ".sluice", "policies", "accounts.yaml") // the mesh reads all documents of the folder
	if err := os.WriteFile(added, []byte("version: 1\nserver: demo\ntools:\n  list_accounts: {action: allow}\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	p = stack.StartWithoutConfigIn(t, p.Dir)
	if again := awaitOnlyPending(t, p); again != id {
		t.Fatalf("after the restart the pending approval is %s, want %s", again, id)
	}
	ran := runDemoApprovals(t, p, "show", id)
	stack.CheckCommand(t, ran, 0, ran.Stdout, "embedded demo")
	stack.CheckCommand(t, runDemoApprovals(t, p, "approve", id, "--yes"), 0, "")
	c = stack.Connect(t, p.MCP("demo"), agent)
	before := c.Call("list_accounts", `{}`).Text(t)
	if resp := c.Call("refund", refund); resp.IsError(t) {
		t.Errorf("the approved call: %s", resp.Body)
	}
	moved := c.Call("list_accounts", `{}`).Text(t)
	go func() { answered <- c.Call("refund", refund) }()
	if next := awaitOnlyPending(t, p); next == id || moved == before || c.Call("list_accounts", `{}`).Text(t) != moved {
		t.Errorf("the same call after it ran has the approval %s; the accounts were %s, then %s", next, before, moved)
	}
	if err := p.Stop(t); err != nil {
		t.Error(err)
	}
	<-answered
}

func runDemoApprovals(t *testing.T, p *stack.Process, args ...string) stack.CommandResult {
	t.Helper()
	return stack.Run(t, stack.Command{
		Args: append([]string{"approvals", "--addr", p.GRPC}, args...), Env: []string{"SLUICE_TOKEN=" + p.GeneratedToken(t, "operator")},
	})
}

// awaitOnlyPending waits until exactly one approval is pending and returns its id.
func awaitOnlyPending(t *testing.T, p *stack.Process) string {
	t.Helper()
	var found []rawmesh.Approval
	eventually.Holds(t, "one approval is pending", func() bool {
		ran := runDemoApprovals(t, p, "list", "--state", "pending", "--output", "json")
		return json.Unmarshal([]byte(ran.Stdout), &found) == nil && len(found) == 1
	})
	return found[0].ID
}
