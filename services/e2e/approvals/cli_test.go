package approvals_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Commands accept the first characters of an approval's id. If several ids or none begin with these characters, the
// error describes what to do.
func TestApprovalsCLI_AcceptsTheFirstCharactersOfAnID(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	f.Connect(t).Call("send", `{"to":"ana"}`)
	id := f.AwaitOnePending(t)
	for _, given := range []string{id, id[:8], strings.ToUpper(id[:12])} {
		ran := f.RunApprovals(t, anaToken, "show", given)
		stack.CheckCommand(t, ran, 0, ran.Stdout, "approval       "+id+": pending\n", `"to": "ana"`)
	}
	const all = "`sluice approvals list --all` prints the ids"
	for given, tt := range map[string]struct {
		code int
		want string
	}{
		"":                                     {2, "the id is empty: " + all},
		id[:7]:                                 {1, `the id "` + id[:7] + `" is too short: give at least the first 8 characters of an id; ` + all},
		"nothing-of-this":                      {1, `no approval has an id that begins with "nothing-of-this": ` + all},
		"00000000-0000-4000-8000-000000000000": {1, ": " + all[:len(all)-len("the ids")] + "the approvals that exist"},
	} {
		for _, command := range []string{"show", "approve", "cancel"} {
			ran := f.RunApprovals(t, stack.OperatorToken, command, given)
			stack.CheckCommand(t, ran, tt.code, ran.Stderr, tt.want)
		}
	}
	ran := f.RunApprovals(t, anaToken, "deny", id[:9], "-m", "not today")
	stack.CheckCommand(t, ran, 0, ran.Stdout, id+" is denied\n")
}

// If the same person votes twice, the output contains the time of the first vote. If a person votes on an approval that
// has already been denied, the output says so.
func TestApprovalsCLI_RepeatedAndLateVotesNameTheEarlierOne(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	f.Connect(t).Call("pay", `{}`)
	id := f.AwaitOnePending(t)
	first := f.RunApprovals(t, anaToken, "approve", "--yes", id, "-m", "as we agreed")
	stack.CheckCommand(t, first, 0, first.Stdout, id+" is pending: 1 more people must approve it\n")
	again := f.RunApprovals(t, anaToken, "approve", "--yes", id)
	stack.CheckCommand(t, again, 0, again.Stdout, id+" is pending: you had already approved it at ", "; 1 more people must approve it\n")
	shown := f.RunApprovals(t, benToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "  pending  ana  approved by ana: as we agreed\n")
	denied := f.RunApprovals(t, benToken, "deny", id, "-m", "not today")
	stack.CheckCommand(t, denied, 0, denied.Stdout, id+" is denied\n")
	shown = f.RunApprovals(t, benToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "  denied  ben  not today\n")
	for _, vote := range []string{"approve", "deny"} {
		for _, more := range [][]string{nil, {"-o", "json"}} {
			late := f.RunApprovals(t, benToken, append([]string{vote, id, "--yes"}, more...)...)
			stack.CheckCommand(t, late, 1, late.Stderr, "sluice: nothing was decided: "+id+" has been denied since ")
		}
	}
}

// The owner of an agent may not vote on the agent's calls. The test checks that the error gives this reason.
func TestApprovalsCLI_VoteOfTheAgentsOwnerIsRefusedWithTheReason(t *testing.T) {
	t.Parallel()
	const laptop = "test-laptop-of-ana-agent-L1a2P3t4O5p6"
	up := rawmcp.Start(t, rawmcp.Tools)
	f := &rawmesh.Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rawmesh.PayPolicy, Extra: "approvals: {hold: 0s}",
		Tokens: financePeople + fmt.Sprintf("\n    - {name: laptop, token: %q, agent: dev, role: agent, owner: ana}", laptop),
	})}
	stack.Connect(t, f.MCP("raw"), laptop).Call("pay", `{}`)
	id := f.AwaitOnePending(t)
	for _, vote := range []string{"approve", "deny"} {
		ran := f.RunApprovals(t, anaToken, vote, id, "--yes")
		stack.CheckCommand(t, ran, 1, ran.Stderr, "sluice: you own the agent that made the call (laptop): another person must decide, unless approvals.owner_may_approve is set\n")
	}
	stack.CheckCommand(t, f.RunApprovals(t, benToken, "approve", "--yes", id), 0, "")
}

// The service sends a view of more than a megabyte in parts. The test checks that the command shows the whole view and
// approves it.
func TestApprovalsCLI_LargeViewIsShownAndApprovedWhole(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	c := f.Connect(t)
	arguments := `{"text":"` + strings.Repeat("m", 3<<20) + `","z":"the end"}`
	if d := c.Call("send", arguments).Decision(t); d.Code != "approval_pending" {
		t.Fatalf("the call is answered %+v", d)
	}
	id := f.AwaitOnePending(t)
	ran := f.RunApprovals(t, anaToken, "show", id)
	stack.CheckCommand(t, ran, 0, ran.Stdout[len(ran.Stdout)-min(len(ran.Stdout), 1000):], `"z": "the end"`)
	if n := strings.Count(ran.Stdout, "m"); n < 3<<20 {
		t.Errorf("%d characters of the text are shown, want all %d", n, 3<<20)
	}
	approved := f.RunApprovals(t, anaToken, "approve", "--yes", id)
	if approved.Code != 0 || !strings.Contains(approved.Stdout, id+" is approved: the call runs once if its caller still waits for it or makes it again before ") {
		t.Fatalf("exit code %d: %s", approved.Code, approved.Stderr)
	}
	if resp := c.Call("send", arguments); resp.IsError(t) || len(f.Upstream.Calls("send")) != 1 {
		t.Errorf("the call ran %d times", len(f.Upstream.Calls("send")))
	}
}

// A caller runs a command that its role may not run. The error lists the roles that may run the command, and the
// variable or file that contains the token.
func TestCLI_RefusedTokenErrorNamesThePermittedRoles(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	f.Connect(t).Call("send", `{}`)
	id := f.AwaitOnePending(t)
	stack.CheckCommand(t, f.RunApprovals(t, stack.OperatorToken, "deny", id), 0, "")
	sluice := func(token string, args ...string) stack.CommandResult {
		return stack.Run(t, stack.Command{Args: append(args, "--addr", f.GRPC), Env: []string{"SLUICE_TOKEN=" + token, "SLUICE_URL=" + f.URL}})
	}
	const agent = `; the token in SLUICE_TOKEN is "agent", the token of an agent`
	for _, tt := range []struct {
		token, want string
		args        []string
	}{
		{stack.AgentToken, "approvals list needs a viewer's, approver's or operator's token" + agent + "\n", []string{"approvals", "list"}},
		{stack.AgentToken, "approvals watch needs a viewer's, approver's or operator's token" + agent + "\n", []string{"approvals", "watch"}},
		{stack.ViewerToken, "approvals deny needs an approver's or operator's token; the token in SLUICE_TOKEN is \"viewer\", the token of a viewer\n", nil},
		{anaToken, "approvals cancel needs an operator's token; the token in SLUICE_TOKEN is \"ana\", the token of an approver\n", []string{"approvals", "cancel", id}},
		{stack.AgentToken, agent + "; if you have only the agent's token, name a server: `sluice tools SERVER`\n", []string{"tools"}},
		{"", "no agent token: ", []string{"tools"}},
		{"", "no agent token: ", []string{"call", "raw", "safe"}},
	} {
		if tt.args == nil {
			f.Connect(t).Call("sync", `{}`)
			tt.args = []string{"approvals", "deny", f.AwaitOnePending(t)}
		}
		ran := sluice(tt.token, append(tt.args, "--data", t.TempDir())...)
		stack.CheckCommand(t, ran, 1, ran.Stderr, "sluice: ", tt.want)
		if strings.Contains(ran.Stderr, "/sluice.") || strings.Contains(ran.Stderr, "was not cancelled") {
			t.Errorf("%v: the error shows internal names: %s", tt.args, ran.Stderr)
		}
	}
	stack.CheckCommand(t, sluice(stack.AgentToken, "tools", "raw"), 0, "")
	wrong := sluice("a-text-that-is-no-token-of-this-mesh", "status")
	stack.CheckCommand(t, wrong, 1, wrong.Stderr, "sluice: the token (SLUICE_TOKEN) is not accepted: ")
}
