package approvals_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const (
	anaToken = "test-ana-approver-T7u8V9w0X1y2Z3a4"
	benToken = "test-ben-approver-B5c6D7e8F9g0H1i2"

	financePeople = "    - {name: ana, token: \"" + anaToken + "\", role: approver}\n    - {name: ben, token: \"" + benToken + "\", role: approver}"

	rulesPolicy = `version: 1
name: story
server: raw
default: deny
tools:
  safe: {action: allow}
  pay: {action: require_approval, approvers: [finance], quorum: 2}
  sync: {action: require_approval, idempotent: true}
  send: {action: require_approval}
  note: {action: require_approval, self_confirm: true}
  post: {action: require_approval, execute_within: 1m, decide_within: 1h, grant: {calls: 3, within: 1h, critical: true}}
  refund: {action: require_approval, grant: {calls: 9, within: 1h, critical: true, where: 'decimal(args.amount) >= decimal("0") && decimal(args.amount) <= decimal("100")'}}
`
)

// startRulesMesh starts a mesh with rulesPolicy in a separate process. Calls to its server time out after 1 s.
func startRulesMesh(t *testing.T, more string) (*rawmesh.Mesh, *stack.Process) {
	t.Helper()
	up := rawmcp.Start(t, rawmcp.Tools)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}, timeout: 1s}", up.URL), Policy: rulesPolicy, Tokens: financePeople,
		Extra: "groups: {finance: [ana, ben]}\napprovals: {hold: 0s, max_pending: 100, max_asked: {max: 10000}}\n" + more,
	}))
	return &rawmesh.Mesh{Upstream: up, Stack: p.Stack}, p
}

// leaveUnanswered makes the server leave calls to a tool unanswered until the test ends.
func leaveUnanswered(t *testing.T, f *rawmesh.Mesh, tool string) {
	t.Helper()
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	f.Upstream.SetAnswer(tool, func(http.ResponseWriter, *http.Request, string) { <-end })
}

// makeUnknownOutcome makes an approved call whose outcome is unknown, and returns the approval's id.
func makeUnknownOutcome(t *testing.T, f *rawmesh.Mesh, c *stack.Client, tool, arguments string) string {
	t.Helper()
	c.Call(tool, arguments)
	id := f.AwaitOnePending(t)
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	if d := c.Call(tool, arguments).Decision(t); d.Code != "outcome_unknown" && d.Code != "upstream_timeout" {
		t.Fatalf("a call without a response: %+v", d)
	}
	f.AwaitState(t, id, "outcome_unknown")
	return id
}

func TestApprovalsCLI_ResolvesUnknownOutcome(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	leaveUnanswered(t, f, "send")
	c := f.Connect(t)
	id := makeUnknownOutcome(t, f, c, "send", `{"n":1}`)
	ran := f.RunApprovals(t, anaToken, "resolve", "--yes", id, "--done", "-m", "seen at the server")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "sluice: ") // an approver is not an operator
	f.AwaitState(t, id, "outcome_unknown")
	ran = f.RunApprovals(t, stack.OperatorToken, "resolve", "--yes", id, "--done", "-m", "seen at the server")
	stack.CheckCommand(t, ran, 0, ran.Stdout, "call           raw send", id+" is done\n")
	again := f.RunApprovals(t, stack.OperatorToken, "resolve", id, "--failed", "-m", "no", "--yes")
	stack.CheckCommand(t, again, 1, again.Stderr, id+" is done: only an approval in outcome_unknown can be resolved")
	shown := f.RunApprovals(t, stack.OperatorToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "done  operator  seen at the server")
	other := makeUnknownOutcome(t, f, c, "send", `{"n":2}`)
	if got := stack.DecodeOutput[rawmesh.Approval](t, f.RunApprovalsJSON(t, "resolve", "--yes", other, "--failed", "-m", "not there")); got != (rawmesh.Approval{ID: other, State: "failed", Server: "raw", Tool: "send"}) {
		t.Errorf("resolved %+v", got)
	}
	if n := len(f.Upstream.Calls("send")); n != 2 {
		t.Errorf("%d calls were sent", n)
	}
}

func TestApprovalsCLI_ResolveRefusesMissingArguments(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"neither":     {[]string{"x", "-m", "y"}, "at least one of the flags in the group [done failed] is required"},
		"both":        {[]string{"x", "-m", "y", "--done", "--failed"}, "none of the others can be"},
		"no word why": {[]string{"x", "--done"}, `required flag(s) "comment" not set`},
		"no approval": {[]string{"--done", "-m", "y"}, "accepts 1 arg(s), received 0"},
	} {
		ran := f.RunApprovals(t, stack.OperatorToken, append([]string{"resolve"}, tt.args...)...)
		if stack.CheckCommand(t, ran, 2, ran.Stderr, tt.want); t.Failed() {
			t.Fatal(name)
		}
	}
	ran := f.RunApprovals(t, stack.OperatorToken, "resolve", "--yes", "nowhere", "--done", "-m", "y")
	stack.CheckCommand(t, ran, 1, ran.Stderr, "sluice: ")
}

func TestApprovalsCLI_CancelsApproval(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	c := f.Connect(t)
	c.Call("sync", `{"n":1}`)
	id := f.AwaitOnePending(t)
	complete := stack.Run(t, stack.Command{Args: []string{"__complete", "--addr", f.GRPC, "approvals", "cancel", ""}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}})
	stack.CheckCommand(t, complete, 0, complete.Stdout, id+"\traw sync, pending\n")
	ran := f.RunApprovals(t, stack.OperatorToken, "resolve", "--yes", id, "--done", "-m", "x")
	stack.CheckCommand(t, ran, 1, ran.Stderr, id+" is pending: only an approval in outcome_unknown can be resolved")
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	ran = f.RunApprovals(t, stack.OperatorToken, "cancel", id, "-m", "no longer needed")
	stack.CheckCommand(t, ran, 0, ran.Stdout, id+" is cancelled\n")
	if got := stack.DecodeOutput[rawmesh.Approval](t, f.RunApprovalsJSON(t, "cancel", id)); got.State != "cancelled" {
		t.Errorf("the second cancellation: %+v", got)
	}
	if d := c.Call("sync", `{"n":1}`).Decision(t); d.Code != "approval_pending" || len(f.Upstream.Calls("sync")) != 0 {
		t.Errorf("the next call: %+v after %d", d, len(f.Upstream.Calls("sync")))
	}
	next := f.AwaitOnePending(t)
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "deny", next, "--yes"), 0, "")
	ran = f.RunApprovals(t, stack.OperatorToken, "cancel", next)
	stack.CheckCommand(t, ran, 1, ran.Stderr, next+" is denied and was not cancelled: the approval has ended")
	shown := f.RunApprovals(t, stack.OperatorToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "cancelled  operator  no longer needed")
}

// The test approves three calls to a tool with one grant. The fourth call needs another approval. A call that is made
// after the grant was revoked also needs one.
func TestApprovals_GrantCoversALimitedNumberOfCalls(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	c := f.Connect(t)
	post := func(n int) string { return c.Call("post", fmt.Sprintf(`{"n":%d}`, n)).Decision(t).Code }
	runs := func(n int) {
		t.Helper()
		if resp := c.Call("post", fmt.Sprintf(`{"n":%d}`, n)); resp.IsError(t) {
			t.Errorf("call %d: %s", n, resp.Body)
		}
	}
	if code := post(1); code != "approval_pending" {
		t.Fatal(code)
	}
	id := f.AwaitOnePending(t)
	shown := f.RunApprovals(t, stack.OperatorToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "This allows up to 3 calls within 1h0m0s, not only this one.")
	list := f.RunApprovals(t, stack.OperatorToken, "list")
	stack.CheckCommand(t, list, 0, list.Stdout, "for 3 calls")
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	for n := 1; n <= 3; n++ {
		runs(n)
	}
	if code := post(4); code != "approval_pending" {
		t.Errorf("the fourth call: %s", code)
	}
	list = f.RunApprovals(t, stack.OperatorToken, "list", "--all")
	stack.CheckCommand(t, list, 0, list.Stdout, "by grant "+id, "grant, 3 of 3 used", "for 3 calls")
	shown = f.RunApprovals(t, stack.OperatorToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "grant          3 of 3 calls used, until ")
	next := f.AwaitOnePending(t)
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", next, "--yes"), 0, "")
	runs(4)
	runs(5)
	covered := stack.DecodeOutput[[]struct{ ID, GrantedBy string }](t, f.RunApprovalsJSON(t, "list", "--all", "-n", "1"))
	shown = f.RunApprovals(t, stack.OperatorToken, "show", covered[0].ID)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "covered by     the grant of approval "+next)
	f.AwaitState(t, next, "done")
	ran := f.RunApprovals(t, stack.OperatorToken, "cancel", next, "-m", "enough")
	stack.CheckCommand(t, ran, 0, ran.Stdout, next+" is done: its grant was cancelled\n")
	if code := post(6); code != "approval_pending" || len(f.Upstream.Calls("post")) != 5 {
		t.Errorf("after the grant was revoked: %s, and %d calls were sent", code, len(f.Upstream.Calls("post")))
	}
}

// A grant with a condition covers the calls that meet the condition. The condition compares numbers exactly. Every
// other call needs its own approval.
func TestApprovals_GrantCoversOnlyCallsThatMeetItsCondition(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	c := f.Connect(t)
	refund := func(amount string) string { return c.Call("refund", `{"amount":`+amount+`}`).Decision(t).Code }
	if code := refund("5"); code != "approval_pending" {
		t.Fatal(code)
	}
	id := f.AwaitOnePending(t)
	shown := f.RunApprovals(t, stack.OperatorToken, "show", id)
	stack.CheckCommand(t, shown, 0, shown.Stdout, "This allows up to 9 calls within 1h0m0s that meet these conditions, not only this one.\n",
		`careful        Each such call meets: decimal(args.amount) >= decimal("0") && decimal(args.amount) <= decimal("100")`+"\n")
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
	for _, amount := range []string{"5", "100", "1e2", "100.00", "0.005", `"12.50"`} {
		if resp := c.Call("refund", `{"amount":`+amount+`}`); resp.IsError(t) {
			t.Errorf("%s: %s", amount, resp.Body)
		}
	}
	others := []string{"100.000000000000000001", "101", "1e3", "-1", `"a lot"`, "null"}
	for _, amount := range others {
		if code := refund(amount); code != "approval_pending" {
			t.Errorf("%s: %s", amount, code)
		}
	}
	for _, a := range f.ListApprovals(t) {
		shown := f.RunApprovals(t, stack.OperatorToken, "show", a.ID)
		if strings.Contains(shown.Stdout, "This allows") {
			t.Errorf("a call that the grant does not cover offers one: %s", shown.Stdout)
		}
		stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", a.ID, "--yes"), 0, "")
	}
	for _, amount := range others {
		if resp := c.Call("refund", `{"amount":`+amount+`}`); resp.IsError(t) {
			t.Errorf("%s, once approved: %s", amount, resp.Body)
		}
	}
	if code := refund("101.5"); code != "approval_pending" {
		t.Errorf("another amount: %s", code)
	}
	if n := len(f.Upstream.Calls("refund")); n != 6+len(others) {
		t.Errorf("%d calls were sent", n)
	}
}

// After an unknown outcome, a call is sent again if the policy declares its tool idempotent. Otherwise it is not sent
// again.
func TestApprovals_IdempotentCallIsSentAgainAfterUnknownOutcome(t *testing.T) {
	t.Parallel()
	f, _ := startRulesMesh(t, "")
	leaveUnanswered(t, f, "sync")
	c := f.Connect(t)
	id := makeUnknownOutcome(t, f, c, "sync", `{"n":1}`)
	f.Upstream.SetAnswer("sync", rawmcp.Result(`{"content":[{"type":"text","text":"ran"}]}`))
	if resp := c.Call("sync", `{"n":1}`); resp.IsError(t) || len(f.Upstream.Calls("sync")) != 2 {
		t.Errorf("the same call: %s, and %d were sent", resp.Body, len(f.Upstream.Calls("sync")))
	}
	f.AwaitState(t, id, "done")
	leaveUnanswered(t, f, "send")
	makeUnknownOutcome(t, f, c, "send", `{"n":1}`)
	f.Upstream.SetAnswer("send", rawmcp.Result(`{"content":[]}`))
	if d := c.Call("send", `{"n":1}`).Decision(t); d.Code != "approval_pending" || len(f.Upstream.Calls("send")) != 1 {
		t.Errorf("another tool: %+v, and %d were sent", d, len(f.Upstream.Calls("send")))
	}
}

// callWithElicitation calls a tool and answers the elicitation with result. It returns the elicitation's params and the
// response to the call.
func callWithElicitation(t *testing.T, f *rawmesh.Mesh, tool, result string) (question, answer string) {
	t.Helper()
	var session string
	post := func(body string) *http.Response {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.MCP("raw"), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for key, value := range map[string]string{
			"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + stack.AgentToken,
			"Mcp-Session-Id": session, "Mcp-Protocol-Version": "2025-11-25",
		} {
			if value != "" {
				req.Header.Set(key, value)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = resp.Body.Close() })
		return resp
	}
	opened := post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"asking","version":"1"}}}`)
	session = opened.Header.Get("Mcp-Session-Id")
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	lines := bufio.NewScanner(post(stack.CallRequest(`{"name":"` + tool + `","arguments":{"text":"a\u202eb"}}`)).Body)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		ok = ok && data != "" // an empty event opens a stream
		if !ok {
			continue
		}
		var m struct{ ID, Method, Params jsontext.Value }
		if err := json.Unmarshal([]byte(data), &m); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		switch string(m.Method) {
		case `"elicitation/create"`:
			question = string(m.Params)
			post(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + result + `}`)
		case "":
			return question, data
		}
	}
	t.Fatalf("no response to the call: %v", lines.Err())
	return "", ""
}

// The rule asks the agent's user to confirm the call. The user confirms it, or declines it by accepting the elicitation
// with run=false.
func TestApprovals_CallIsConfirmedByElicitation(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, strings.Replace(rulesPolicy, "pay:", "# pay:", 1), "approvals: {hold: 60s}")
	for _, tt := range []struct{ name, result, answer, note string }{
		{"confirmed", `{"action":"accept","content":{"run":true}}`, `"text":"ran"`, "confirmed at the agent"},
		{"declined", `{"action":"accept","content":{"run":false}}`, "approval_denied", "-   "},
	} {
		question, answer := callWithElicitation(t, f, "note", tt.result)
		if !strings.Contains(question, "a\\\\u202eb") || !strings.Contains(answer, tt.answer) {
			t.Errorf("%s: the elicitation is %s, the response %s", tt.name, question, answer)
		}
		found := stack.DecodeOutput[[]struct {
			ID, State   string
			SelfConfirm bool
			Votes       []struct{ Subject, Channel string }
		}](t, f.RunApprovalsJSON(t, "list", "--all", "-n", "1"))
		if len(found) != 1 || !found[0].SelfConfirm || len(found[0].Votes) != 1 || found[0].Votes[0] != (struct{ Subject, Channel string }{"agent", "elicitation"}) {
			t.Errorf("%s: %+v", tt.name, found)
		}
		list := f.RunApprovals(t, stack.OperatorToken, "list", "--all", "-n", "1")
		stack.CheckCommand(t, list, 0, list.Stdout, "  "+tt.note+"  "+found[0].ID+"\n")
		shown := f.RunApprovals(t, stack.OperatorToken, "show", found[0].ID)
		stack.CheckCommand(t, shown, 0, shown.Stdout, "  agent  "+tt.name+" at the agent\n")
	}
	if n := len(f.Upstream.Calls("note")); n != 1 {
		t.Errorf("the call ran %d times", n)
	}
}
