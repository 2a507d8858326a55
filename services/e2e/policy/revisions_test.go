package policy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	firstPolicy  = "version: 1\nname: team\ndefault: deny\ntools:\n  read: {action: allow}\n"
	secondPolicy = firstPolicy + "  drop: {action: allow}\n"
)

// A storedRevision is a policy revision in the JSON output of `sluice policy`.
type storedRevision struct {
	ID, Author, Reason string
	Number             int
	Active             bool
	Documents          []struct{ Path, Text string }
}

// revisionsMesh is a mesh whose policies are in its store. The fixture also has directories with policy documents.
type revisionsMesh struct {
	*stack.Process
	t *testing.T
}

func startRevisionsMesh(t *testing.T) *revisionsMesh {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "drop"))
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), StoredPolicies: true, Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
	})
	for name, text := range map[string]string{"first": firstPolicy, "second": secondPolicy, "broken": strings.Replace(firstPolicy, "allow", "alow", 1)} {
		dir := filepath.Join(s.Dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, filepath.Join(dir, "team.yaml"), text)
	}
	return &revisionsMesh{stack.Start(t, s), t}
}

// policy runs a `sluice policy` command with a token.
func (m *revisionsMesh) policy(token string, args ...string) stack.CommandResult {
	m.t.Helper()
	return stack.Run(m.t, stack.Command{Args: append([]string{"policy"}, append(args, "--addr", m.GRPC)...), Dir: m.Dir, Env: []string{"SLUICE_TOKEN=" + token}})
}

func (m *revisionsMesh) wantRun(tool, want string) {
	m.t.Helper()
	c := stack.Connect(m.t, m.MCP("raw"), stack.AgentToken)
	resp := c.Call(tool, `{}`)
	if got := resp.Decision(m.t).Code; got != want {
		m.t.Errorf("%s: %q, want %q: %s", tool, got, want, resp.Body)
	}
}

// An operator applies policy documents, applies other documents, and rolls back. Each change is in force as soon as the
// command has finished. After a restart, the last change is still in force.
func TestRevisions_AreAppliedAndRolledBack(t *testing.T) {
	t.Parallel()
	m := startRevisionsMesh(t)
	const operator = stack.OperatorToken
	before := stack.Connect(t, m.MCP("raw"), stack.AgentToken).Call("read", `{}`)
	if text := string(before.Body); before.Decision(t).Code != "denied_by_rule" || !strings.Contains(text, "sluice policy apply") {
		t.Errorf("before the first documents: %s", text)
	}
	ran := m.policy(operator, "revisions")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "no policy has been applied yet")
	ran = m.policy(operator, "apply", "first", "-m", "begin")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "nothing was applied", "add --yes")
	ran = m.policy(operator, "apply", "first", "--yes")
	stack.CheckCommand(t, ran, 2, ran.Stderr, "set -m")
	ran = m.policy(stack.ViewerToken, "apply", "first", "-m", "begin", "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "operator")
	m.wantRun("read", "denied_by_rule")

	ran = m.policy(operator, "apply", "first", "-m", "begin", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "deny -> allow", "raw/read", "applied: revision ")
	m.wantRun("read", "")
	m.wantRun("drop", "denied_by_default")
	ran = m.policy(operator, "apply", "broken", "-m", "x", "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "do not load", "team.yaml:5:18", "alow")
	ran = m.policy(operator, "apply", "second/team.yaml", "-m", "drops are needed", "--yes", "-o", "json")
	applied := stack.DecodeOutput[struct {
		ID, Revision string
		Unchanged    bool
	}](t, ran)
	stack.CheckCommand(t, ran, 0, ran.Stderr, "deny -> allow", "raw/drop")
	m.wantRun("drop", "")
	ran = m.policy(operator, "apply", "second", "-m", "again", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "unchanged: revision "+applied.ID[:12])

	all := stack.DecodeOutput[[]storedRevision](t, m.policy(stack.ViewerToken, "revisions", "-o", "json"))
	if len(all) != 2 || !all[0].Active || all[0].ID != applied.ID || all[0].Reason != "drops are needed" || all[0].Author != "operator" || all[1].Active || all[1].Reason != "begin" {
		t.Fatalf("%+v", all)
	}
	first := all[1].ID[:8]
	ran = m.policy(operator, "apply", "first", "-m", "x", "--yes", "--expect", first)
	stack.CheckCommand(t, ran, 1, ran.Stderr, "nothing was applied, because the active revision is not "+first, "applied by operator at ", "drops are needed")
	ran = m.policy(operator, "diff", first, applied.ID[:10])
	stack.CheckCommand(t, ran, 1, ran.Stdout, "deny -> allow", "raw/drop")
	ran = m.policy(operator, "diff", "first")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "allow -> deny", "raw/drop")

	ran = m.policy(operator, "rollback", first, "-m", "x", "--yes", "--expect", first)
	stack.CheckCommand(t, ran, 1, ran.Stderr, "nothing was applied, because the active revision is not "+first, "drops are needed")
	m.wantRun("drop", "")
	ran = m.policy(operator, "rollback", first, "-m", "drops were a mistake", "--yes", "--expect", applied.ID)
	stack.CheckCommand(t, ran, 0, ran.Stdout, "allow -> deny", "raw/drop", "applied: revision "+first)
	m.wantRun("drop", "denied_by_default")
	m.wantRun("read", "")
	ran = stack.Run(t, stack.Command{Args: []string{"status", "--addr", m.GRPC}, Env: []string{"SLUICE_TOKEN=" + operator}})
	stack.CheckCommand(t, ran, 0, ran.Stdout, "documents", "revision "+first, "applied by operator at ", "drops were a mistake")
	ran = m.policy(operator, "rollback", "00000000", "-m", "x", "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "no stored revision has this id", "policy revisions")
	m.wantExport(applied.ID)

	if err := m.Stop(t); err != nil {
		t.Fatal(err)
	}
	m = &revisionsMesh{stack.Start(t, m.Stack), t}
	m.wantRun("drop", "denied_by_default")
	m.wantRun("read", "")
	if all := stack.DecodeOutput[[]storedRevision](t, m.policy(operator, "revisions", "-o", "json")); len(all) != 3 || all[0].Number != 3 || all[0].ID[:8] != first {
		t.Errorf("after a restart: %+v", all)
	}
}

// wantExport checks that the documents of the second revision are printed and can be exported to a directory, and that
// the export overwrites no file.
func (m *revisionsMesh) wantExport(id string) {
	m.t.Helper()
	ran := m.policy(stack.ViewerToken, "revision", id[:8])
	stack.CheckCommand(m.t, ran, 0, ran.Stdout, "revision "+id[:12], "drops are needed", "\nteam.yaml:\n", "    drop: {action: allow}\n")
	shown := stack.DecodeOutput[storedRevision](m.t, m.policy(stack.ViewerToken, "revision", id, "-o", "json"))
	if len(shown.Documents) != 1 || shown.Documents[0].Text != secondPolicy {
		m.t.Errorf("%+v", shown)
	}
	for want := range 2 { // the second export finds the file of the first one
		ran = m.policy(stack.ViewerToken, "revision", id[:8], "--export", "out")
		stack.CheckCommand(m.t, ran, want, ran.Stdout+ran.Stderr, map[int]string{0: "written: out/team.yaml", 1: "file exists"}[want])
	}
	if text, err := os.ReadFile(filepath.Join(m.Dir, "out", "team.yaml")); err != nil || string(text) != secondPolicy {
		m.t.Errorf("%q: %v", text, err)
	}
}
