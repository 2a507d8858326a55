package policy_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const (
	anaToken = "test-ana-token-of-an-operator-K1l2M3n4"
	benToken = "test-ben-token-of-an-approver-P5q6R7s8"
	eveToken = "test-eve-token-of-an-approver-T9u1V2w3"

	thirdPolicy = firstPolicy + "  wipe: {action: allow}\n"
)

// changePeople returns the tokens of ana and ben, who are in the group security, and of eve, who is not.
func changePeople() string {
	return fmt.Sprintf(`    - {name: ana, token: %q, groups: [security], role: operator}
    - {name: ben, token: %q, groups: [security], role: approver}
    - {name: eve, token: %q, role: approver}`, anaToken, benToken, eveToken)
}

// startApprovedMesh starts a mesh whose policy changes need the approval of a member of the group security. The members
// are ana, who is an operator, and ben. The first policy is active, and ben has approved it.
func startApprovedMesh(t *testing.T) *revisionsMesh {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.ToolList("read", "drop", "wipe"))
	s := stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), StoredPolicies: true, Listen: stack.FreeAddr(t), GRPC: stack.FreeAddr(t),
		Tokens: changePeople(),
		Extra:  "approvals: {policy_changes: {approvers: [security]}}",
	})
	for name, text := range map[string]string{"first": firstPolicy, "second": secondPolicy, "third": thirdPolicy} {
		dir := filepath.Join(s.Dir, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, filepath.Join(dir, "team.yaml"), text)
	}
	m := &revisionsMesh{stack.Start(t, s), t}
	m.approve(benToken, m.pending(anaToken, "apply", "first", "-m", "begin", "--yes"))
	ran := m.policy(anaToken, "apply", "first", "-m", "begin", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision ")
	m.wantRun("read", "")
	return m
}

// pending runs a `sluice policy` command that must result in a pending approval, and returns the id of that approval.
func (m *revisionsMesh) pending(token string, args ...string) string {
	m.t.Helper()
	ran := m.policy(token, append(args, "-o", "json")...)
	stack.CheckCommand(m.t, ran, 3, ran.Stdout)
	got := stack.DecodeOutput[struct {
		Pending struct {
			ID, Approval, Until string
			Missing             int
		}
	}](m.t, ran)
	if got.Pending.Approval == "" || got.Pending.Missing != 1 || len(got.Pending.ID) != 64 {
		m.t.Fatalf("%+v: %s", got, ran.Stdout)
	}
	return got.Pending.Approval
}

// approvals runs a `sluice approvals` command with a token.
func (m *revisionsMesh) approvals(token string, args ...string) stack.CommandResult {
	m.t.Helper()
	return stack.Run(m.t, stack.Command{Args: append([]string{"approvals"}, append(args, "--addr", m.GRPC)...), Dir: m.Dir, Env: []string{"SLUICE_TOKEN=" + token}})
}

func (m *revisionsMesh) approve(token, id string) {
	m.t.Helper()
	ran := m.approvals(token, "approve", id, "--yes")
	stack.CheckCommand(m.t, ran, 0, ran.Stdout)
}

func (m *revisionsMesh) history() []approvedRevision {
	m.t.Helper()
	return stack.DecodeOutput[[]approvedRevision](m.t, m.policy(stack.ViewerToken, "revisions", "-o", "json"))
}

// An approvedRevision is a revision in the JSON output, together with its approval.
type approvedRevision struct {
	storedRevision

	Approval   string
	ApprovedBy []string
}

// A policy change becomes active once, after another person has approved exactly the change that the mesh shows.
func TestApprovedChanges_BecomeActiveAfterTheApproval(t *testing.T) {
	t.Parallel()
	m := startApprovedMesh(t)
	ran := m.policy(anaToken, "apply", "second", "-m", "drops are needed", "--yes")
	stack.CheckCommand(t, ran, 3, ran.Stdout, "deny -> allow", "pending: revision ", "is not active yet", "needs 1 more vote(s)", "approvals approve ", "run this command again")
	id := m.pending(anaToken, "apply", "second", "-m", "drops are needed", "--yes") // the same approval again
	if !strings.Contains(ran.Stdout, id) {
		t.Errorf("another approval %s was requested:\n%s", id, ran.Stdout)
	}
	m.wantRun("drop", "denied_by_default")
	m.wantRun("read", "")

	shown := m.approvals(benToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "ana", "policy/apply", `"author": "ana"`, `"reason": "drops are needed"`, `"deny -> allow: raw/drop by any caller (default -> team/tools.drop)"`, `"+  drop: {action: allow}"`)
	if opens, lines := strings.Index(shown.Stdout, `"opens"`), strings.Index(shown.Stdout, `"documents"`); opens < 0 || lines < opens {
		t.Errorf("what the change opens is not shown before its lines:\n%s", shown.Stdout)
	}
	ran = m.approvals(anaToken, "approve", id, "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "can't decide on the call")
	ran = m.approvals(eveToken, "approve", id, "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "security")
	if m.pending(anaToken, "apply", "second", "-m", "drops are needed", "--yes") != id {
		t.Error("another approval was requested")
	}
	m.wantRun("drop", "denied_by_default")

	m.approve(benToken, id)
	m.wantRun("drop", "denied_by_default") // the author applies the change
	other := m.pending(stack.OperatorToken, "apply", "second", "-m", "drops are needed", "--yes")
	if other == id {
		t.Error("the approval of one author covers a change of another one")
	}
	m.wantRun("drop", "denied_by_default")
	ran = m.policy(anaToken, "apply", "second", "-m", "drops are needed", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision ")
	m.wantRun("drop", "")
	if all := m.history(); len(all) != 2 || !all[0].Active || all[0].Author != "ana" || all[0].Approval != id || strings.Join(all[0].ApprovedBy, " ") != "ben" || all[0].Reason != "drops are needed" {
		t.Errorf("%+v", all)
	}
	ran = m.policy(stack.ViewerToken, "revisions")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "APPROVED BY", "ben")
	for given, want := range map[string]string{id: "done", other: "cancelled"} {
		ran = m.approvals(benToken, "show", given)
		stack.CheckCommand(t, ran, 0, ran.Stdout, given+": "+want)
	}

	first := m.history()[1].ID[:8]
	back := m.pending(anaToken, "rollback", first, "-m", "a mistake", "--yes")
	m.wantRun("drop", "") // it waits, although it only refuses more
	m.approve(benToken, back)
	ran = m.policy(anaToken, "rollback", first, "-m", "a mistake", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision "+first)
	m.wantRun("drop", "denied_by_default")
	if again := m.pending(anaToken, "apply", "second", "-m", "drops are needed", "--yes"); again == id { // the used approval
		t.Error("an approval was used twice")
	}
	m.wantRun("drop", "denied_by_default")
}

// The approval of a policy change becomes void if another revision becomes active in the meantime. A denied change is
// not applied.
func TestApprovedChanges_VoidApprovalsActivateNothing(t *testing.T) {
	t.Parallel()
	m := startApprovedMesh(t)
	stale := m.pending(anaToken, "apply", "second", "-m", "drops", "--yes")
	m.approve(benToken, stale)
	quick := m.pending(stack.OperatorToken, "apply", "third", "-m", "wipes", "--yes")
	m.approve(anaToken, quick)
	ran := m.policy(stack.OperatorToken, "apply", "third", "-m", "wipes", "--yes")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision ")
	ran = m.approvals(benToken, "show", stale)
	stack.CheckCommand(t, ran, 0, ran.Stdout, stale+": cancelled", "another policy became active")
	again := m.pending(anaToken, "apply", "second", "-m", "drops", "--yes")
	if again == stale {
		t.Error("the approval of a change of an older policy is used")
	}
	m.wantRun("drop", "denied_by_default")
	m.wantRun("wipe", "")

	ran = m.approvals(benToken, "deny", again, "-m", "not before Monday")
	stack.CheckCommand(t, ran, 0, ran.Stdout)
	ran = m.policy(anaToken, "apply", "second", "-m", "drops", "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "nothing was applied, because ben denied this change: not before Monday")
	m.wantRun("drop", "denied_by_default")
	if all := m.history(); len(all) != 2 || all[0].Author != "operator" {
		t.Errorf("%+v", all)
	}
}

// With --wait, the command waits for the approval of the policy change and then applies the change. A pending approval
// survives a restart of the mesh.
func TestApprovedChanges_WaitForTheApproval(t *testing.T) {
	t.Parallel()
	m := startApprovedMesh(t)
	id := m.pending(anaToken, "apply", "second", "-m", "drops", "--yes")
	if err := m.Stop(t); err != nil {
		t.Fatal(err)
	}
	m = &revisionsMesh{stack.Start(t, m.Stack), t}
	cmd := exec.CommandContext(t.Context(), stack.Program(t, "sluice"), "policy", "apply", "second", "-m", "drops", "--yes", "--wait", "--addr", m.GRPC)
	cmd.Dir, cmd.Env = m.Dir, append(os.Environ(), "SLUICE_TOKEN="+anaToken)
	var out bytes.Buffer
	cmd.Stdout = &out
	progress, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(progress)
	for lines.Scan() && !strings.Contains(lines.Text(), "sluice: the approval "+id+" is pending: 1 vote(s) are missing") {
		t.Log(lines.Text())
	}
	m.wantRun("drop", "denied_by_default")
	m.approve(benToken, id)
	var rest []string
	for lines.Scan() {
		rest = append(rest, lines.Text())
	}
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "applied: revision ") || !slices.Contains(rest, "sluice: the approval "+id+" is approved") {
		t.Errorf("%v: %v\n%s", err, rest, out.String())
	}
	m.wantRun("drop", "")
	if all := m.history(); len(all) != 2 || all[0].Approval != id {
		t.Errorf("%+v", all)
	}
}

// The configuration key approvals.policy_changes is valid only if the policies are in the store and if enough people
// can approve.
func TestApprovedChanges_ConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		stored bool
		extra  string
		want   string
	}{
		"files":      {false, "approvals: {policy_changes: {}}", "approvals.policy_changes: needs `policies: [store]`"},
		"no people":  {true, "approvals: {policy_changes: {approvers: [security]}}", "approvals.policy_changes asks for 1 operator(s) or approver(s) of security"},
		"the quorum": {true, "approvals: {policy_changes: {quorum: 2}}", "approvals.policy_changes asks for 2 operator(s) or approver(s), other than the author, and there are 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := stack.WriteConfig(t, stack.Options{Servers: `  raw: {http: {url: "http://127.0.0.1:1/mcp"}}`, Policy: firstPolicy, StoredPolicies: tt.stored, Extra: tt.extra})
			for _, command := range [][]string{{"up"}, {"config", "check"}} {
				ran := stack.Run(t, stack.Command{Args: append(command, "--config", s.Config), Dir: s.Dir})
				stack.CheckCommand(t, ran, 1, ran.Stderr, tt.want)
			}
		})
	}
}

// Each mesh service runs in its own process. While the approval service is not running, no policy change becomes
// active, not even an approved one, and the active policy stays in force. The approval survives a restart of the
// approval service and the policy service.
func TestApprovedChanges_SeparateRoles(t *testing.T) {
	t.Parallel()
	const policyRole, approvalRole = authv1.Role_ROLE_POLICY, authv1.Role_ROLE_APPROVAL
	a := stack.StartDistributed(t, stack.Options{
		Servers: `  raw: {http: {url: "http://127.0.0.1:1/mcp"}}`, StoredPolicies: true, Tokens: changePeople(), Extra: "approvals: {policy_changes: {approvers: [security]}}",
	})
	author := policyv1.NewPolicyServiceClient(a.DialWithToken(t, policyRole, anaToken))
	apply := func() error {
		_, err := author.ApplyDocuments(t.Context(), &policyv1.ApplyDocumentsRequest{Documents: []*policyv1.Document{{Path: "team.yaml", Text: firstPolicy}}, Comment: "begin"})
		return err
	}
	wantActive := func(want int) {
		t.Helper()
		list, err := author.ListRevisions(t.Context(), new(policyv1.ListRevisionsRequest))
		if err != nil || len(list.GetRevisions()) != want {
			t.Fatalf("%v: %v", list, err)
		}
	}
	err := apply()
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "POLICY_CHANGE_PENDING")
	id := rpc.Facts(err)["approval"]
	voter := approvalv1.NewApprovalServiceClient(a.DialWithToken(t, approvalRole, benToken))
	shown, err := voter.GetApproval(t.Context(), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		t.Fatal(err)
	}
	vote := &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: shown.GetView().GetDigest()}
	_, err = approvalv1.NewApprovalServiceClient(a.DialWithToken(t, approvalRole, anaToken)).DecideApproval(t.Context(), proto.CloneOf(vote))
	rpctest.WantStatus(t, err, codes.PermissionDenied, "SELF_APPROVAL")
	if _, err := voter.DecideApproval(t.Context(), vote); err != nil {
		t.Fatal(err)
	}
	a.Kill(t, approvalRole)
	rpctest.WantStatus(t, apply(), codes.Unavailable, "APPROVAL_AWAY")
	wantActive(0)
	a.Kill(t, policyRole)
	for _, role := range []authv1.Role{policyRole, approvalRole} {
		a.Start(t, role)
		a.AwaitServing(t, role)
	}
	eventually.Within(t, time.Minute, "the services connect again, and the change is active", func() bool {
		err := apply()
		if err != nil && rpc.Reason(err) != "APPROVAL_AWAY" {
			t.Fatal(err)
		}
		return err == nil
	})
	wantActive(1)
}

// The pipeline in examples/policy-repository exits with code 3 until another person has approved the change. When it runs
// again after the approval, it applies the change.
func TestApprovedChanges_Pipeline(t *testing.T) {
	t.Parallel()
	r := newPolicyRepository(t)
	up := rawmcp.Start(t, rawmcp.ToolList("list_notes", "create_note", "read_note", "delete_note"))
	r.mesh = stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  notes: {http: {url: %q}}", up.URL), StoredPolicies: true, Tokens: changePeople(), Extra: "approvals: {policy_changes: {approvers: [security]}}",
	}))
	waits := func(ran stack.CommandResult) {
		t.Helper()
		stack.CheckCommand(t, ran, 3, ran.Stdout, "pending: revision ", "needs 1 more vote(s)")
		found := regexp.MustCompile(`The approval ([^ ]+) needs`).FindStringSubmatch(ran.Stdout)
		if found == nil {
			t.Fatal("no approval is named")
		}
		(&revisionsMesh{r.mesh, t}).approve(benToken, found[1])
	}
	const first = "sluice policy apply policies -m 'first policy' --yes"
	waits(r.run(r.operator(), first))
	stack.CheckCommand(t, r.run(r.operator(), first), 0, "")
	r.branch("limit", r.patches[0])
	waits(r.merge("limit"))
	before := r.active()
	ran := r.push("HEAD^")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "applied: revision ", "deny  denied_by_rule")
	if now := r.active(); before.Number != 1 || now.Number != 2 || now.Reason != r.git("rev-parse", "HEAD")+" Merge limit" {
		t.Errorf("before the approval %+v was active, and now %+v", before, now)
	}
}
