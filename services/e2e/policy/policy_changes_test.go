package policy_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// changesPage contains the files of examples/policy-repository, and the parts of docs/policy-changes.md that the tests
// use.
type changesPage struct {
	// files contains the files of examples/policy-repository by their paths.
	files map[string]string
	// patches contains the changes that docs/policy-changes.md shows. The first change allows no new calls. The second
	// change allows a call that was refused before.
	patches []string
	// opened is the part of the pipeline's output for the second change that docs/policy-changes.md shows.
	opened string
	// acknowledge is the command in docs/policy-changes.md that acknowledges the second change.
	acknowledge string
	// check, apply and rollback are the commands of the workflow in examples/policy-repository.
	check, apply, rollback string
}

// readChangesPage reads docs/policy-changes.md and examples/policy-repository. The test fails if a part is missing.
func readChangesPage(t *testing.T) *changesPage {
	t.Helper()
	find := func(text, expression string, want int) (found []string) {
		for _, m := range regexp.MustCompile("(?ms)"+expression).FindAllStringSubmatch(text, -1) {
			found = append(found, m[1])
		}
		if len(found) != want {
			t.Fatalf("there are %d matches of %s, want %d", len(found), expression, want)
		}
		return found
	}
	const workflow = ".github/workflows/policy.yml"
	p := &changesPage{files: make(map[string]string)}
	for _, name := range []string{"policies/notes.yaml", "smoke.sh", "policy.sh", workflow} {
		p.files[name] = stack.ReadFile(t, filepath.Join("../../../examples/policy-repository", name))
	}
	text := stack.ReadFile(t, "../../../docs/policy-changes.md")
	p.patches = find(text, "^```diff\n(.*?)^```$", 2)
	p.opened = find(text, "ends with 1, and prints:\n\n```\n(.*?)^```$", 1)[0]
	p.acknowledge = find(text, "^(git commit --allow-empty .*?)\n", 1)[0]
	commands := find(p.files[workflow], "^ +run: (sh policy\\.sh .*?)$", 3)
	p.check, p.apply, p.rollback = commands[0], commands[1], commands[2]
	return p
}

// policyRepository is a git repository with the files of examples/policy-repository.
type policyRepository struct {
	*changesPage

	t    *testing.T
	dir  string
	mesh *stack.Process // nil if the test has none
}

// newPolicyRepository creates a repository whose branch main has the files of examples/policy-repository.
func newPolicyRepository(t *testing.T) *policyRepository {
	t.Helper()
	r := &policyRepository{changesPage: readChangesPage(t), t: t, dir: t.TempDir()}
	stack.Program(t, "sluice")
	r.git("init", "-q", "-b", "main")
	stack.WriteFile(t, filepath.Join(r.dir, ".git", "info", "exclude"), "/policy-tests.xml\n")
	for name, text := range r.files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(r.dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, filepath.Join(r.dir, name), text)
	}
	r.commit("the first policy")
	return r
}

// startPolicyRepository creates a repository as newPolicyRepository does, starts a mesh, and applies the first policy
// as an operator.
func startPolicyRepository(t *testing.T) *policyRepository {
	t.Helper()
	r := newPolicyRepository(t)
	up := rawmcp.Start(t, rawmcp.ToolList("list_notes", "create_note", "read_note", "delete_note"))
	r.mesh = stack.Start(t, stack.WriteConfig(t, stack.Options{Servers: fmt.Sprintf("  notes: {http: {url: %q}}", up.URL), StoredPolicies: true}))
	stack.CheckCommand(t, r.run(r.operator(), "sluice policy apply policies -m 'first policy' --yes"), 0, "")
	r.wantCall("list_notes", "")
	return r
}

// run runs a shell command line in the repository.
func (r *policyRepository) run(env []string, line string) stack.CommandResult {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.dir, &stdout, &stderr
	cmd.Env = append(os.Environ(), "HOME="+r.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "SLUICE_ADDR=", "SLUICE_CONFIG=",
		"GIT_AUTHOR_NAME=ana", "GIT_AUTHOR_EMAIL=ana@example.com", "GIT_COMMITTER_NAME=ana", "GIT_COMMITTER_EMAIL=ana@example.com")
	cmd.Env = append(cmd.Env, env...)
	if err := cmd.Run(); cmd.ProcessState == nil || ctx.Err() != nil {
		r.t.Fatalf("%s: %v, %v\n%s%s", line, err, ctx.Err(), stdout.String(), stderr.String())
	}
	return stack.CommandResult{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}
}

// operator returns the environment variables for an operator's commands. viewer returns the environment variables for a
// viewer's commands.
func (r *policyRepository) operator() []string {
	return []string{"SLUICE_ADDR=" + r.mesh.GRPC, "SLUICE_TOKEN=" + stack.OperatorToken, "SLUICE_URL=" + r.mesh.URL, "SMOKE_TOKEN=" + stack.AgentToken}
}

func (r *policyRepository) viewer() []string {
	return []string{"SLUICE_ADDR=" + r.mesh.GRPC, "SLUICE_TOKEN=" + stack.ViewerToken}
}

// git runs git and returns its output. The test fails if git fails.
func (r *policyRepository) git(args ...string) string {
	r.t.Helper()
	quoted := make([]string, len(args))
	for i, arg := range args {
		quoted[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
	}
	ran := r.run(nil, "git "+strings.Join(quoted, " "))
	if ran.Code != 0 {
		r.t.Fatalf("git %v: %s%s", args, ran.Stdout, ran.Stderr)
	}
	return strings.TrimSpace(ran.Stdout)
}

func (r *policyRepository) commit(messages ...string) {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "--allow-empty", "-m", strings.Join(messages, "\n\n"))
}

// branch creates a branch from main, and applies a patch to it.
func (r *policyRepository) branch(name, patch string) {
	r.t.Helper()
	r.git("checkout", "-q", "-b", name, "main")
	file := filepath.Join(r.t.TempDir(), "patch")
	stack.WriteFile(r.t, file, patch)
	r.git("apply", file)
	r.commit(name)
}

// edit edits the repository's policy. It replaces the text in the parameter old with the text in the parameter with.
func (r *policyRepository) edit(old, with string) {
	r.t.Helper()
	stack.ReplaceInFile(r.t, filepath.Join(r.dir, "policies", "notes.yaml"), old, with)
}

// checkBranch runs the workflow's command for a pull request.
func (r *policyRepository) checkBranch(env ...string) stack.CommandResult {
	r.t.Helper()
	return r.run(append(env, "BASE=main"), r.check)
}

// merge merges a branch into main, and runs the workflow's command for a push.
func (r *policyRepository) merge(branch string) stack.CommandResult {
	r.t.Helper()
	r.git("checkout", "-q", "main")
	r.git("merge", "-q", "--no-ff", "-m", "Merge "+branch, branch)
	return r.push("HEAD^")
}

// push runs the workflow's command for a push to main. The parameter before is the previous commit of main.
func (r *policyRepository) push(before string) stack.CommandResult {
	r.t.Helper()
	return r.run(append(r.operator(), "BASE="+r.git("rev-parse", before)), r.apply)
}

// active returns the active policy revision.
func (r *policyRepository) active() storedRevision {
	r.t.Helper()
	all := stack.DecodeOutput[[]storedRevision](r.t, r.run(r.viewer(), "sluice policy revisions -o json"))
	if len(all) == 0 || !all[0].Active {
		r.t.Fatalf("no active revision: %+v", all)
	}
	return all[0]
}

// wantCall calls a tool as the agent, and checks the code of the decision.
func (r *policyRepository) wantCall(tool, want string) {
	r.t.Helper()
	resp := stack.Connect(r.t, r.mesh.MCP("notes"), stack.AgentToken).Call(tool, `{}`)
	if got := resp.Decision(r.t).Code; got != want {
		r.t.Errorf("%s: %q, want %q: %s", tool, got, want, resp.Body)
	}
}

// The pipeline in examples/policy-repository is run as it is written. A change that allows no new calls is applied. For
// a change that allows a new call, the pipeline fails until the change is acknowledged. After a rollback the call is
// refused again, and the pipeline applies nothing until the change is reverted on main.
func TestPolicyChanges_FromThePullRequestToTheRollback(t *testing.T) {
	t.Parallel()
	r := startPolicyRepository(t)
	r.branch("limit", r.patches[0])
	ran := r.checkBranch()
	stack.CheckCommand(t, ran, 0, ran.Stdout, "1 test(s) pass", "allow: no limit -> 30 in 1h0m0s", "notes/create_note")
	if report := stack.ReadFile(t, filepath.Join(r.dir, "policy-tests.xml")); !strings.Contains(report, `tests="1" failures="0"`) {
		t.Errorf("the report: %s", report)
	}
	ran = r.merge("limit")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision ", " unknown).\n", "deny  denied_by_rule")
	limited := r.active()
	if want := r.git("rev-parse", "HEAD") + " Merge limit"; limited.Reason != want {
		t.Errorf("the reason is %q, want %q", limited.Reason, want)
	}
	r.wantLimit(30)

	r.openRead()
	r.rollBack(limited)
}

// wantLimit checks that one session may create exactly as many notes as the parameter limit says.
func (r *policyRepository) wantLimit(limit int) {
	r.t.Helper()
	c := stack.Connect(r.t, r.mesh.MCP("notes"), stack.AgentToken)
	for i := range limit {
		if code := c.Call("create_note", `{}`).Decision(r.t).Code; code != "" {
			r.t.Fatalf("call %d: %s", i, code)
		}
	}
	if code := c.Call("create_note", `{}`).Decision(r.t).Code; code != "rate_limited" {
		r.t.Errorf("call %d: %q", limit, code)
	}
}

// openRead makes the second change in docs/policy-changes.md. The pipeline prints the call that the change newly
// allows. It passes after the acknowledge command was run, but no longer after a further change.
func (r *policyRepository) openRead() {
	r.t.Helper()
	r.branch("read", r.patches[1])
	tree := r.git("rev-parse", "HEAD:policies")
	ran := r.checkBranch()
	stack.CheckCommand(r.t, ran, 1, ran.Stdout+ran.Stderr, strings.Split(strings.ReplaceAll(r.opened, "TREE", tree), "\n")...)
	stack.CheckCommand(r.t, r.run(nil, r.acknowledge), 0, "")
	r.edit("read_note: {action: allow}", "read_note: {action: allow}\n  purge_notes: {action: allow}")
	r.commit("a further change")
	ran = r.checkBranch()
	stack.CheckCommand(r.t, ran, 1, ran.Stdout, "notes/purge_notes")
	r.git("reset", "-q", "--hard", "HEAD^")
	ran = r.checkBranch()
	stack.CheckCommand(r.t, ran, 0, ran.Stdout, "acknowledged: Policy-Opens: "+tree)
	ran = r.checkBranch(r.viewer()...)
	stack.CheckCommand(r.t, ran, 0, ran.Stdout, "acknowledged: Policy-Opens: "+tree, " unknown).\n")
	r.wantCall("read_note", "denied_by_default")
	ran = r.merge("read")
	stack.CheckCommand(r.t, ran, 0, ran.Stdout, "applied: revision ")
	r.wantCall("read_note", "")
}

// rollBack makes the previous revision active again. Until the change is reverted on main, the pipeline applies
// nothing.
func (r *policyRepository) rollBack(before storedRevision) {
	r.t.Helper()
	ran := r.run(append(r.operator(), "REVISION="+before.ID[:8], "REASON=agents read private notes"), r.rollback)
	stack.CheckCommand(r.t, ran, 0, ran.Stdout, "allow -> deny", "notes/read_note", "applied: revision "+before.ID[:12])
	r.wantCall("read_note", "denied_by_default")
	ran = r.push("HEAD^")
	stack.CheckCommand(r.t, ran, 1, ran.Stderr, "this commit was applied before")
	bad := r.git("rev-parse", "HEAD")
	r.commit("another change")
	ran = r.push("HEAD^")
	stack.CheckCommand(r.t, ran, 1, ran.Stderr, "revert the change on main")
	r.wantCall("read_note", "denied_by_default")
	r.git("revert", "--no-edit", "-m", "1", bad)
	ran = r.push("HEAD^")
	stack.CheckCommand(r.t, ran, 0, ran.Stdout, "has these documents already", "deny  denied_by_rule")
	if now := r.active(); now.ID != before.ID || now.Reason != "agents read private notes" {
		r.t.Errorf("the active revision is %+v", now)
	}
	r.wantCall("read_note", "denied_by_default")
	r.wantCall("list_notes", "")
}

// The smoke test in examples/policy-repository fails after an acknowledged change was applied. Therefore the pipeline
// makes the previous policy active again.
func TestPolicyChanges_RollsBackAfterAFailedSmokeTest(t *testing.T) {
	t.Parallel()
	r := startPolicyRepository(t)
	first := r.active()
	r.git("checkout", "-q", "-b", "delete")
	r.edit("delete_note: {action: deny, reason: move the note to the archive instead}", "delete_note: {action: allow}")
	r.commit("notes can be deleted")
	stack.CheckCommand(t, r.run(nil, r.acknowledge), 0, "")
	ran := r.checkBranch()
	stack.CheckCommand(t, ran, 0, ran.Stdout, "notes/delete_note", "acknowledged")
	ran = r.merge("delete")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "smoke.sh failed, and revision "+first.ID[:12]+" is active again")
	if now := r.active(); now.ID != first.ID || now.Number != 3 || !strings.HasPrefix(now.Reason, "smoke.sh failed after ") {
		t.Errorf("the active revision is %+v", now)
	}
	r.wantCall("delete_note", "denied_by_rule")
}

// refusedChanges contains changes for which the pipeline for pull requests fails. This pipeline runs without a mesh.
// Its output contains the string want, and its JUnit file contains the string report.
var refusedChanges = map[string]struct {
	change       func(r *policyRepository)
	want, report string
}{
	"does not load": {func(r *policyRepository) { r.edit("delete_note: {action: deny", "delete_note: {action: dny") }, "dny", `errors="1"`},
	"failed test":   {func(r *policyRepository) { r.edit("list_notes: {action: allow}", "list_notes: {action: deny}") }, "notes can be listed", `failures="1"`},
	"approval":      {func(r *policyRepository) { r.edit("action: deny, reason", "action: require_approval, reason") }, "Policy-Opens: ", `failures="0"`},
	"incomplete": {func(r *policyRepository) {
		r.edit("tests:", "rules:\n  - {name: many, match: {tool: list_notes, groups: [a, b]}, action: allow}\ntests:")
	}, "Policy-Unknown: ", `failures="0"`},
	"symbolic link": {func(r *policyRepository) {
		if err := os.Symlink("../smoke.sh", filepath.Join(r.dir, "policies", "more.yaml")); err != nil {
			r.t.Fatal(err)
		}
	}, "only regular files", ""},
	"behind main": {func(r *policyRepository) {
		r.git("checkout", "-q", "main")
		r.commit("newer")
		r.git("checkout", "-q", "change")
	}, "main has newer commits", ""},
}

func TestPolicyChanges_CheckFails(t *testing.T) {
	t.Parallel()
	for name, tt := range refusedChanges {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newPolicyRepository(t)
			r.git("checkout", "-q", "-b", "change")
			tt.change(r)
			r.commit("a change")
			ran := r.checkBranch()
			stack.CheckCommand(t, ran, 1, ran.Stdout+ran.Stderr, tt.want)
			if tt.report == "" {
				return
			}
			if report := stack.ReadFile(t, filepath.Join(r.dir, "policy-tests.xml")); !strings.Contains(report, tt.report) {
				t.Errorf("%s is not in the report: %s", tt.report, report)
			}
		})
	}
}

// The pipeline also fails if the repository has uncommitted files, or if the mesh can't be reached.
func TestPolicyChanges_CheckFailsIfItCantCompare(t *testing.T) {
	t.Parallel()
	r := newPolicyRepository(t)
	ran := r.checkBranch()
	stack.CheckCommand(t, ran, 0, ran.Stdout, "no call gets another result")
	ran = r.run([]string{"BASE=main"}, r.apply)
	if ran.Code == 0 || !strings.Contains(ran.Stderr, "SLUICE_ADDR") { // the code depends on the shell
		t.Errorf("apply without a mesh: exit code %d: %s", ran.Code, ran.Stderr)
	}
	ran = r.checkBranch("SLUICE_ADDR="+stack.FreeAddr(t), "SLUICE_TOKEN="+stack.ViewerToken)
	stack.CheckCommand(t, ran, 1, ran.Stderr, "the mesh does not answer")
	stack.WriteFile(t, filepath.Join(r.dir, "policies", "more.yaml"), "{version: 1, default: allow}\n")
	ran = r.checkBranch()
	stack.CheckCommand(t, ran, 1, ran.Stderr, "commit the files in policies first")
}
