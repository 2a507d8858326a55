package approvals_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// The mesh does not start if a rule requires more approvers than the configuration has. `config check` and `policy
// lint` report the rule.
func TestApprovals_UnreachableQuorumIsRefusedAtStart(t *testing.T) {
	t.Parallel()
	const (
		refused = "policy.yaml:7:3: tools.pay: can never be approved: it asks for 2 operators or approvers of finance, and there is 1; " +
			"that is ana: give more people a token with role approver or operator, in one of these groups"
		groups = "groups: {finance: [ana, ben], ghosts: [nobody]}\n"
	)
	s := stack.WriteConfig(t, stack.Options{
		Servers: `  raw: {http: {url: "http://127.0.0.1:1/mcp"}}`, Policy: rulesPolicy, Tokens: financePeople, Extra: groups,
	})
	config := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--config", s.Config), Dir: s.Dir})
	}
	check := config("config", "check")
	stack.CheckCommand(t, check, 0, check.Stdout, "group         finance: ana, ben", "group         ghosts: nobody (no token)")
	lint := config("policy", "lint", "policy.yaml")
	stack.CheckCommand(t, lint, 0, lint.Stdout, "1 document(s) load")
	stack.ReplaceInFile(t, s.Config, "[ana, ben]", "[ana]")
	for _, command := range [][]string{{"up"}, {"config", "check"}} {
		ran := config(command...)
		stack.CheckCommand(t, ran, 1, ran.Stderr, refused)
	}
	lint = config("policy", "lint", "policy.yaml")
	stack.CheckCommand(t, lint, 1, lint.Stdout, "policy.yaml:7:3: error: tools.pay: can never be approved")
	alone := stack.Run(t, stack.Command{Args: []string{"policy", "lint", s.Policy}})
	stack.CheckCommand(t, alone, 0, alone.Stdout, "1 document(s) load")
}

// `sluice up` generates an operator for a configuration without tokens. The test checks that this operator counts
// toward the quorum.
func TestApprovals_QuorumCountsTheGeneratedOperator(t *testing.T) {
	t.Parallel()
	const asks = "version: 1\ntools: {pay: {action: require_approval}}\n"
	dir := stack.WriteFolder(t, map[string]string{"sluice.yaml": "policies: [policy.yaml]\n", "policy.yaml": asks, "two.yaml": strings.Replace(asks, "approval}", "approval, quorum: 2}", 1)})
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--config", "sluice.yaml"), Dir: dir})
	}
	stack.CheckCommand(t, run("config", "check"), 0, "")
	two := run("policy", "lint", "two.yaml")
	stack.CheckCommand(t, two, 1, two.Stdout, "and there is 1; that is local-operator: ")
}

func TestApprovals_OwnerMayApproveIsWarnedAbout(t *testing.T) {
	t.Parallel()
	const warning = "approvals.owner_may_approve is true: the owner of an agent may approve its calls, so no second person need see them"
	s := stack.WriteConfig(t, stack.Options{
		Servers: `  raw: {http: {url: "http://127.0.0.1:1/mcp"}}`, Policy: rawmesh.PayPolicy, Extra: "approvals: {owner_may_approve: true}",
	})
	run := func(args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append([]string{"config", "check", "--config", s.Config}, args...)})
	}
	check := run()
	stack.CheckCommand(t, check, 0, check.Stdout, "warning       "+warning)
	got := stack.DecodeOutput[struct{ Warnings []string }](t, run("-o", "json"))
	if diff := cmp.Diff([]string{warning}, got.Warnings); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	p := stack.Start(t, s)
	if err := p.Stop(t); err != nil || strings.Count(p.Stderr(), warning) != 1 {
		t.Errorf("%v; the log is %s", err, p.Stderr())
	}
	stack.ReplaceInFile(t, s.Config, "owner_may_approve: true", "owner_may_approve: false")
	got = stack.DecodeOutput[struct{ Warnings []string }](t, run("-o", "json"))
	if len(got.Warnings) != 0 {
		t.Errorf("without owner_may_approve the warnings are %v", got.Warnings)
	}
}

func TestPolicyExplain_DescribesTheRequiredApproval(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	f.Connect(t).Call("safe", "{}") // adds the server to the catalog
	explain := func(tool, arguments string, want ...string) {
		t.Helper()
		ran := stack.Run(t, stack.Command{
			Args: []string{"policy", "explain", "--all", "--addr", f.GRPC, "--server", "raw", "--tool", tool, "--args", arguments},
			Env:  []string{"SLUICE_TOKEN=" + stack.OperatorToken},
		})
		stack.CheckCommand(t, ran, 0, ran.Stdout, want...)
	}
	explain("pay", `{}`, "approval: by 2 operators or approvers of finance\n")
	explain("post", `{}`, "approval: by an operator or approver; decided within 1h0m0s; executed within 1m0s; for up to 3 calls within 1h0m0s\n")
	explain("sync", `{}`, "approval: by an operator or approver\nidempotent: the call may be sent again if its outcome is not known\n")
	const where = `decimal(args.amount) >= decimal("0") && decimal(args.amount) <= decimal("100")`
	explain("refund", `{"amount":99}`, "approval: by an operator or approver; for up to 9 calls within 1h0m0s where "+where+"\n", "✓ grant.where="+where+"\n")
	explain("refund", `{"amount":101}`, "approval: by an operator or approver\nno grant: an approval would be for this call only, because story/tools.refund gives a grant only if "+
		where+" (here: false)\n", "✗ grant.where="+where+"\n")
	explain("refund", `{"to":1}`, " (here: no such key: amount)\n", "✗ grant.where="+where+" (no such key: amount)\n")
	explain("refund", "", "approval: by an operator or approver\nno grant: story/tools.refund gives a grant only if "+where+": set --arg NAME=VALUE to check that\n")
}

// A person votes and then leaves the group that may vote. When the call is made, the vote does not count.
func TestApprovals_VoteOfAFormerGroupMemberDoesNotCount(t *testing.T) {
	t.Parallel()
	f, p := startRulesMesh(t, "")
	c := f.Connect(t)
	c.Call("pay", `{}`)
	id := f.AwaitOnePending(t)
	ran := f.RunApprovalsJSON(t, "approve", id, "--yes")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "the rule names groups that decide, and the voter is in none of them")
	for _, token := range []string{anaToken, benToken} {
		stack.CheckCommand(t, f.RunApprovalsJSONAs(t, token, "approve", id, "--yes"), 0, "")
	}
	f.AwaitState(t, id, "approved")
	if err := p.Stop(t); err != nil {
		t.Fatal(err)
	}
	stack.ReplaceInFile(t, f.Config, "finance: [ana, ben]", "finance: [ana, operator]")
	p = stack.Start(t, p.Stack)
	f = &rawmesh.Mesh{Upstream: f.Upstream, Stack: p.Stack}
	c = f.Connect(t)
	if d := c.Call("pay", `{}`).Decision(t); d.Code != "approval_pending" || len(f.Upstream.Calls("pay")) != 0 {
		t.Errorf("after ben has left the group: %+v after %d calls", d, len(f.Upstream.Calls("pay")))
	}
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	if resp := c.Call("pay", `{}`); resp.IsError(t) || len(f.Upstream.Calls("pay")) != 1 {
		t.Errorf("after the operator's vote: %s", resp.Body)
	}
}
