package approvals_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

// An approver approves a held call from another terminal. The test checks that the call runs once, with the approved
// arguments.
func TestApprovals_HeldCallRunsOnceAfterItsApproval(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 60s}")
	answered := make(chan stack.Response, 1)
	c := f.Connect(t)
	go func() { answered <- c.Call("pay", `{"sum":12.50}`) }()
	id := f.AwaitOnePending(t)
	if diff := cmp.Diff([]rawmesh.Approval{{ID: id, State: "pending", Server: "raw", Tool: "pay"}}, f.ListApprovals(t)); diff != "" {
		t.Errorf("pending approvals (-want +got):\n%s", diff)
	}
	if ran := f.RunApprovalsJSONAs(t, stack.AgentToken, "approve", id, "--yes"); ran.Code == 0 {
		t.Errorf("an agent's token approves: %+v", ran)
	}
	if ran := f.RunApprovalsJSON(t, "show", id); ran.Code != 0 || !strings.Contains(ran.Stdout, `12.50`) {
		t.Errorf("the view of the approval is %+v", ran)
	}
	if n := len(f.Upstream.Calls("pay")); n != 0 {
		t.Fatalf("%d calls reached the server before the approval", n)
	}
	if ran := f.RunApprovalsJSON(t, "approve", id, "--yes"); ran.Code != 0 {
		t.Fatalf("approve: %+v", ran)
	}
	resp := <-answered
	calls := f.Upstream.Calls("pay")
	if resp.IsError(t) || resp.Text(t) != "ran" || len(calls) != 1 || !strings.Contains(string(calls[0].Body), `{"sum":12.50}`) {
		t.Errorf("answered %s after %d calls", resp.Body, len(calls))
	}
	f.AwaitOnlyState(t, "done")
	kinds := make(map[gatewayv1.RecordKind]int)
	var intended *gatewayv1.Record
	for _, r := range f.Records(t) {
		if r.GetApprovalId() == id {
			kinds[r.GetKind()]++
			if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_INTENT {
				intended = r
			}
		}
	}
	if votes := intended.GetVotes(); len(votes) != 1 || votes[0].GetSubject() != "operator" || votes[0].GetVerdict() != approvalv1.Verdict_VERDICT_APPROVE || votes[0].GetTime() == nil {
		t.Errorf("the intent names the votes %v", votes)
	}
	shown := stack.Command{Args: []string{"decisions", "--addr", f.GRPC, "show", intended.GetDecisionId()}, Env: []string{"SLUICE_TOKEN=" + stack.OperatorToken}}
	if ran := stack.Run(t, shown); !strings.Contains(ran.Stdout, "approve by operator") {
		t.Errorf("the decision is shown as %s%s", ran.Stdout, ran.Stderr)
	}
	want := map[gatewayv1.RecordKind]int{
		gatewayv1.RecordKind_RECORD_KIND_CLAIM: 1, gatewayv1.RecordKind_RECORD_KIND_INTENT: 1,
		gatewayv1.RecordKind_RECORD_KIND_OUTCOME: 1, gatewayv1.RecordKind_RECORD_KIND_SETTLED: 1,
	}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// When the hold time ends, the caller receives a ticket, which is a refusal that contains the approval's id. After the
// approval, the test repeats the call and checks that it runs once.
func TestApprovals_RepeatedCallRunsOnceAfterATicket(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s}")
	c := f.Connect(t)
	first := c.Call("pay", `{"sum":1.5}`)
	d := first.Decision(t)
	if !first.IsError(t) || d.Code != "approval_pending" || !d.Retryable || !strings.Contains(first.Text(t), "Call the same tool again later with the same arguments") {
		t.Fatalf("the ticket is %s", first.Body)
	}
	id := f.AwaitOnePending(t)
	if again := c.Call("pay", `{ "sum" : 15e-1 }`).Decision(t); again.Code != "approval_pending" || f.AwaitOnePending(t) != id {
		t.Errorf("the same call before the approval: %+v", again)
	}
	if ran := f.RunApprovalsJSON(t, "approve", id, "--yes"); ran.Code != 0 {
		t.Fatalf("approve: %+v", ran)
	}
	if resp := stack.Connect(t, f.MCP("raw"), stack.AgentToken).Call("pay", `{"sum":1.50}`); resp.IsError(t) {
		t.Errorf("the same call, in another session: %s", resp.Body)
	}
	if sent := string(f.Upstream.Calls("pay")[0].Body); !strings.Contains(sent, `"sum":1.5}`) {
		t.Errorf("sent %s, want the arguments that were approved", sent)
	}
	f.AwaitState(t, id, "done") // the gateway waits for the server's response, but only for a limited time
	if other := c.Call("pay", `{"sum":1.5}`).Decision(t); other.Code != "approval_pending" {
		t.Errorf("the same call after it ran: %+v", other)
	}
	if n := len(f.Upstream.Calls("pay")); n != 1 {
		t.Errorf("the call ran %d times", n)
	}
}

func TestApprovals_DeniedCallNeverRuns(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 60s}")
	answered := make(chan stack.Response, 1)
	c := f.Connect(t)
	go func() { answered <- c.Call("pay", `{}`) }()
	if ran := f.RunApprovalsJSON(t, "deny", f.AwaitOnePending(t), "--yes", "-m", "too much"); ran.Code != 0 {
		t.Fatalf("deny: %+v", ran)
	}
	const says = "Not executed: denied by operator: too much. The same call stays denied for another 10 minutes: do not make it again."
	for when, resp := range map[string]stack.Response{"while it was held": <-answered, "asked again at once": c.Call("pay", `{}`)} {
		if d := resp.Decision(t); d.Code != "approval_denied" || d.Retryable || resp.Text(t) != says || strings.Contains(string(resp.Body), "retryAfterMs") {
			t.Errorf("%s: answered %s", when, resp.Body)
		}
	}
	if n := len(f.Upstream.Calls("pay")); n != 0 {
		t.Errorf("the call ran %d times", n)
	}
}

// Case N2. A caller with too many pending calls is refused. The refusal names the limit and its configuration key, and
// says what to do.
func TestApprovals_TooManyPendingCallsAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s, max_pending: 2}")
	c := f.Connect(t)
	for n := range 2 {
		c.Call("pay", fmt.Sprintf(`{"n":%d}`, n))
	}
	resp := c.Call("pay", `{"n":2}`)
	if d, text := resp.Decision(t), resp.Text(t); d.Code != "too_many_pending" || !d.Retryable ||
		!strings.HasPrefix(text, "Not executed: agent and agents made by agent hold 2 of 2 calls that wait for people") || !strings.Contains(text, "(approvals.max_pending)") || !strings.Contains(text, "sluice_approval_wait") {
		t.Errorf("answered %s", resp.Body)
	}
}

// Case X8. A caller that has requested too many approvals is refused. The refusal contains the limit and its
// configuration key, and says when to try again. Calls for which an approval was already requested are not affected.
func TestApprovals_TooManyApprovalRequestsAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s, max_asked: {max: 2, window: 90m}}")
	c := f.Connect(t)
	for n := range 2 {
		c.Call("pay", fmt.Sprintf(`{"n":%d}`, n))
	}
	resp := c.Call("pay", `{"n":2}`)
	if d, text := resp.Decision(t), resp.Text(t); d.Code != "too_many_pending" || !d.Retryable || d.RetryAfterMs <= 0 || d.RetryAfterMs > (90*time.Minute).Milliseconds() ||
		!strings.HasPrefix(text, "Not executed: people were asked 2 times within 1h30m ") || !strings.Contains(text, "(approvals.max_asked)") || !strings.Contains(text, "Try again in ") {
		t.Errorf("answered %s", resp.Body)
	}
	if d := c.Call("pay", `{"n":1}`).Decision(t); d.Code != "approval_pending" {
		t.Errorf("a call with an approval request: %+v", d)
	}
}

// Case A1. A call that differs from the approved call in any way needs an approval of its own.
func TestApprovals_DifferentCallNeedsAnotherApproval(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s, max_pending: 100, max_asked: {max: 10000}}")
	c := f.Connect(t)
	c.Call("pay", `{"to":"ben","sum":9007199254740992}`)
	if ran := f.RunApprovalsJSON(t, "approve", f.AwaitOnePending(t), "--yes"); ran.Code != 0 {
		t.Fatal(ran)
	}
	for _, other := range []string{`{"to":"ben","sum":9007199254740993}`, `{"to":"Ben","sum":9007199254740992}`, `{"to":"ben","sum":"9007199254740992"}`, `{"to":"ben","sum":9007199254740992,"x":null}`} {
		if d := c.Call("pay", other).Decision(t); d.Code != "approval_pending" {
			t.Errorf("%s: %+v", other, d)
		}
	}
	if d := stack.Connect(t, f.MCP("raw"), stack.OtherToken).Call("pay", `{"to":"ben","sum":9007199254740992}`).Decision(t); d.Code != "approval_pending" {
		t.Errorf("another caller: %+v", d)
	}
	if n := len(f.Upstream.Calls("pay")); n != 0 {
		t.Fatalf("%d calls ran without an approval", n)
	}
	if resp := c.Call("pay", `{"sum":9007199254740992,"to":"ben"}`); resp.IsError(t) || len(f.Upstream.Calls("pay")) != 1 {
		t.Errorf("the approved call: %s", resp.Body)
	}
}

// Cases A2, R1. 50 callers make the approved call at the same time. The test checks that one call runs and that its
// rate limit is charged once.
func TestApprovals_ApprovedCallRunsOnceWhenCallersRace(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 0s}")
	c := f.Connect(t)
	c.Call("limited", `{}`)
	if ran := f.RunApprovalsJSON(t, "approve", f.AwaitOnePending(t), "--yes"); ran.Code != 0 {
		t.Fatal(ran)
	}
	var ran atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if resp, err := c.TryPost([]byte(stack.CallRequest(`{"name":"limited","arguments":{}}`))); err == nil && !resp.IsError(t) {
				ran.Add(1)
			}
		})
	}
	wg.Wait()
	if n := len(f.Upstream.Calls("limited")); n != 1 || ran.Load() != 1 {
		t.Errorf("the call ran %d times, and %d callers received a result", n, ran.Load())
	}
}

// Cases A4, T1, T2. A call is approved, and then the definition of its tool changes. The approval does not allow a call
// to the changed tool.
func TestApprovals_ChangedToolInvalidatesTheApproval(t *testing.T) {
	t.Parallel()
	const one, other = `{"name":"pay","description":"moves money","inputSchema":{"type":"object"}}`, `{"name":"pay","description":"moves more","inputSchema":{"type":"object"}}`
	for _, tt := range []struct{ name, first, then, want string }{
		{"another one", one, other, "tool_changed"},
		{"twice now", one, one + "," + one, "quarantined"},
		{"there now", `{"name":"x"}`, one, "tool_changed"}, // the tool was unknown when the call was approved
		{"there twice now", `{"name":"x"}`, one + "," + other, "quarantined"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.StartUnpinned(t, rawmesh.PayPolicy, "approvals: {hold: 0s}", "["+tt.first+"]")
			c := f.Connect(t)
			c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			c.Call("pay", `{}`)
			if ran := f.RunApprovalsJSON(t, "approve", f.AwaitOnePending(t), "--yes"); ran.Code != 0 {
				t.Fatal(ran)
			}
			f.Upstream.SetTools("[" + tt.then + "]")
			if d := c.Call("pay", `{}`).Decision(t); d.Code != tt.want || len(f.Upstream.Calls("pay")) != 0 {
				t.Errorf("the decision is %+v, after %d calls", d, len(f.Upstream.Calls("pay")))
			}
			if tt.want == "tool_changed" {
				f.AwaitOnlyState(t, "cancelled")
			}
		})
	}
}

func TestApprovals_SurviveAKill(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.WriteConfig(t, stack.Options{Servers: "  raw: {http: {url: \"" + up.URL + "\"}}", Policy: rawmesh.PayPolicy, Extra: "approvals: {hold: 0s, max_pending: 100, max_asked: {max: 10000}}"})
	p := stack.Start(t, s)
	f := &rawmesh.Mesh{Upstream: up, Stack: p.Stack}
	c := f.Connect(t)
	for _, sum := range []string{"1", "2", "3"} {
		c.Call("pay", `{"sum":`+sum+`}`)
	}
	first := f.ListApprovals(t)
	if ran := f.RunApprovalsJSON(t, "approve", first[2].ID, "--yes"); len(first) != 3 || ran.Code != 0 {
		t.Fatal(first, ran)
	}
	reached, hang := make(chan struct{}), make(chan struct{})
	defer close(hang)
	f.Upstream.SetAnswer("pay", func(http.ResponseWriter, *http.Request, string) { close(reached); <-hang })
	go func() { _, _ = c.TryPost([]byte(stack.CallRequest(`{"name":"pay","arguments":{"sum":1}}`))) }()
	<-reached
	p.Kill()
	_ = p.Wait()
	p = stack.Start(t, s)
	f = &rawmesh.Mesh{Upstream: up, Stack: p.Stack}
	want := map[string]string{first[0].ID: "pending", first[1].ID: "pending", first[2].ID: "outcome_unknown"}
	got := make(map[string]string)
	for range 100 {
		for _, a := range f.ListApprovals(t, "--all") {
			got[a.ID] = a.State
		}
		if cmp.Equal(want, got) {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after the kill (-want +got):\n%s", diff)
	}
	if n := len(f.Upstream.Calls("pay")); n != 1 {
		t.Errorf("the call was sent %d times", n)
	}
	if _, err := approvalv1.NewApprovalServiceClient(f.Operator(t)).ResolveOutcome(stack.TimeoutContext(t), &approvalv1.ResolveOutcomeRequest{
		ApprovalId: first[2].ID, Resolution: approvalv1.Resolution_RESOLUTION_DONE, Comment: "seen at the server",
	}); err != nil {
		t.Error(err)
	}
}

// Case A3. A person can't vote on a call that this person requested, even with another token.
func TestApprovals_RequesterCannotDecideOnItsCall(t *testing.T) {
	t.Parallel()
	const second = "test-second-token-of-one-person-9x8c"
	up := rawmcp.Start(t, rawmcp.Tools)
	f := &rawmesh.Mesh{Upstream: up, Stack: stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rawmesh.PayPolicy, Extra: "approvals: {hold: 0s}",
		Tokens: fmt.Sprintf("    - {name: second, token: %q, subject: agent, role: operator}", second),
	})}
	f.Connect(t).Call("pay", `{}`)
	id := f.AwaitOnePending(t)
	if ran := f.RunApprovalsJSONAs(t, second, "approve", id, "--yes"); ran.Code == 0 || !strings.Contains(ran.Stderr, "the caller, or a principal in its chain, can't decide on the call") {
		t.Errorf("the requester's second token: %+v", ran)
	}
	if got := f.ListApprovals(t); len(got) != 1 || got[0].State != "pending" {
		t.Errorf("the approvals are %+v", got)
	}
}

// While the database of the approval service is down, calls that need approval are refused and other calls run. After
// the database has restarted, no approval is lost and no call runs twice.
func TestApprovals_SurviveADatabaseRestart(t *testing.T) {
	t.Parallel()
	database := sqlstoretest.Start(t)
	f := rawmesh.Start(t, rawmesh.PayPolicy, fmt.Sprintf("approvals: {hold: 0s, max_pending: 100, max_asked: {max: 10000}}\nstores: {approval: %q}", database.Database(t)))
	c := f.Connect(t)
	for n := range 5 {
		c.Call("pay", fmt.Sprintf(`{"n":%d}`, n))
	}
	before := f.ListApprovals(t)
	if ran := f.RunApprovalsJSON(t, "approve", before[4].ID, "--yes"); len(before) != 5 || ran.Code != 0 {
		t.Fatal(before, ran)
	}
	database.Kill(t)
	if d := c.Call("pay", `{"n":0}`).Decision(t); d.Code != "approval_unavailable" || !d.Retryable {
		t.Errorf("a call that needs approval: %+v", d)
	}
	if resp := c.Call("safe", `{}`); resp.IsError(t) {
		t.Errorf("another call: %s", resp.Body)
	}
	database.Restart(t)
	var after []rawmesh.Approval
	for range 100 {
		if ran := f.RunApprovalsJSON(t, "list"); ran.Code == 0 && json.Unmarshal([]byte(ran.Stdout), &after) == nil {
			break
		}
		<-time.After(50 * time.Millisecond)
	}
	before[4].State = "approved"
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("pending approvals (-before +after):\n%s", diff)
	}
	if resp := c.Call("pay", `{"n":0}`); resp.IsError(t) || len(f.Upstream.Calls("pay")) != 1 {
		t.Errorf("the approved call: %s, after %d calls", resp.Body, len(f.Upstream.Calls("pay")))
	}
}

// The test restarts all mesh services while 50 approvals are pending. Each service is a separate process, and the test
// stops or kills one after another. It checks that no vote and no pending approval is lost, and that no call runs
// twice.
func TestApprovals_SurviveARestartOfEveryRole(t *testing.T) {
	t.Parallel()
	const calls = 50
	a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, "approvals: {hold: 0s, max_pending: 100, max_asked: {max: 10000}}")
	pay := func(n int) string { return stack.CallRequest(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, n)) }
	c := a.Connect(t)
	for n := range calls {
		if d := c.Post(pay(n)).Decision(t); d.Code != "approval_pending" {
			t.Fatalf("call %d: %+v", n, d)
		}
	}
	client := func() approvalv1.ApprovalServiceClient {
		return approvalv1.NewApprovalServiceClient(a.DialWithToken(t, authv1.Role_ROLE_APPROVAL, stack.OperatorToken))
	}
	list := func() map[string]string {
		resp, err := client().ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{PageSize: 1000})
		if err != nil {
			t.Fatal(err)
		}
		out := make(map[string]string)
		for _, found := range resp.GetApprovals() {
			out[found.GetId()] = found.GetState().String()
		}
		return out
	}
	decided := list()
	for id := range decided {
		view, err := client().GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
		if err != nil {
			t.Fatal(err)
		}
		if len(decided) == calls && strings.HasSuffix(decided[id], "PENDING") && view.GetView().GetDigest()[0]%2 == 0 {
			if _, err := client().DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: view.GetView().GetDigest()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := list()
	for i, role := range authn.Roles() {
		if i%2 == 0 {
			if err := a.Stop(t, role); err != nil {
				t.Errorf("%v stopped with %v", role, err)
			}
		} else {
			a.Kill(t, role)
		}
		a.Start(t, role)
		a.AwaitServing(t, role)
	}
	a.AwaitReady(t)
	if diff := cmp.Diff(want, list()); len(want) != calls || diff != "" {
		t.Errorf("%d approvals (-before +after):\n%s", len(want), diff)
	}
	approved := 0
	for _, state := range want {
		if strings.HasSuffix(state, "APPROVED") {
			approved++
		}
	}
	c = a.Connect(t)
	var ran atomic.Int64
	for range 2 { // in the second round each call is a new approval request
		for n := range calls {
			if resp := c.Post(pay(n)); !resp.IsError(t) {
				ran.Add(1)
			}
		}
	}
	if n := len(a.Upstream.Calls("pay")); approved == 0 || n != approved || int(ran.Load()) != approved {
		t.Errorf("%d were approved, %d ran, %d reached the server", approved, ran.Load(), n)
	}
}
