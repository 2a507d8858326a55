package mesh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const (
	// loadCallers is the number of concurrent callers.
	loadCallers = 4
	// finishTimeLimit is the maximum time within which calls that have started must finish.
	finishTimeLimit = 90 * time.Second
	// enoughDecisions is the minimum number of acknowledged verdicts. A run with fewer verdicts is inconclusive.
	enoughDecisions = 20
)

// approvalLoad contains callers and an approver. The callers make calls that need approval, and repeat each call until
// it has run or is denied.
type approvalLoad struct {
	a       *rawmesh.Distributed
	people  approvalv1.ApprovalServiceClient
	callers sync.WaitGroup
	person  sync.WaitGroup
	closing chan struct{}
	cancel  context.CancelFunc

	mu   sync.Mutex
	next int
	// ends contains the result of each call, by the call's number. The result is "ran" or an error code.
	ends map[int]string
	// answers contains the number of times that callers received each code.
	answers map[string]int
	// approvals contains the ids of the approvals that each call received, by the call's number. acknowledged contains
	// the acknowledged verdicts, by approval id.
	approvals    map[int][]string
	acknowledged map[string]approvalv1.Verdict
}

// isDenied reports whether the approver denies the call with this number.
func isDenied(n int) bool { return n%5 == 0 }

func startApprovalLoad(t *testing.T, a *rawmesh.Distributed) *approvalLoad {
	t.Helper()
	ctx, leave := context.WithCancel(t.Context())
	b := &approvalLoad{
		a: a, people: approvalv1.NewApprovalServiceClient(a.DialWithToken(t, approvalRole, stack.OperatorToken)),
		closing: make(chan struct{}), cancel: leave,
		ends: make(map[int]string), answers: make(map[string]int), approvals: make(map[int][]string), acknowledged: make(map[string]approvalv1.Verdict),
	}
	for range loadCallers {
		c := a.Connect(t)
		b.callers.Go(func() { b.makeCalls(ctx, t, c) })
	}
	b.person.Go(func() { b.decidePending(ctx, t) })
	return b
}

// finish waits until the approver has voted on enough calls, and then until the calls that have started have finished.
func (b *approvalLoad) finish(t *testing.T) {
	t.Helper()
	eventually.Within(t, finishTimeLimit, "enough calls were decided", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.acknowledged) >= enoughDecisions
	})
	close(b.closing)
	overdue := time.AfterFunc(finishTimeLimit, b.cancel)
	b.callers.Wait()
	if !overdue.Stop() {
		t.Errorf("calls have not ended after %v", finishTimeLimit)
	}
	b.cancel()
	b.person.Wait()
}

func (b *approvalLoad) makeCalls(ctx context.Context, t *testing.T, c *stack.Client) {
	for ctx.Err() == nil {
		select {
		case <-b.closing:
			return
		default:
		}
		b.mu.Lock()
		b.next++
		n := b.next
		b.mu.Unlock()
		for end := ""; end == "" && ctx.Err() == nil; {
			end = b.callOnce(t, c, n)
		}
	}
}

// callOnce makes a call and returns its result, or "" if the call must be repeated.
func (b *approvalLoad) callOnce(t *testing.T, c *stack.Client, n int) (end string) {
	resp, err := c.TryPost([]byte(stack.CallRequest(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, n))))
	if err != nil || resp.Status != 200 {
		t.Errorf("call %d: %v, %d %s", n, err, resp.Status, resp.Body)
		return "broken"
	}
	end = resp.Decision(t).Code
	if !resp.IsError(t) {
		end = "ran"
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answers[end]++
	if end == "ran" || end == "approval_denied" {
		b.ends[n] = end
		return end
	}
	return ""
}

// decidePending votes on pending approvals until ctx is done.
func (b *approvalLoad) decidePending(ctx context.Context, t *testing.T) {
	for ; ctx.Err() == nil; <-time.After(20 * time.Millisecond) {
		soon, cancel := context.WithTimeout(ctx, 3*time.Second)
		list, err := b.people.ListApprovals(soon, &approvalv1.ListApprovalsRequest{PageSize: 1000, Filter: &approvalv1.ApprovalFilter{
			States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING},
		}})
		cancel()
		b.checkError(t, "list", err)
		for _, waiting := range list.GetApprovals() {
			soon, cancel := context.WithTimeout(ctx, 3*time.Second)
			b.decideApproval(soon, t, waiting.GetId())
			cancel()
		}
	}
}

// checkError fails the test if the approver receives an error that the API does not allow here.
func (b *approvalLoad) checkError(t *testing.T, what string, err error) {
	switch status.Code(err) {
	case codes.OK, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
	case codes.AlreadyExists, codes.FailedPrecondition: // the vote was stored, but its response was lost
	case codes.Aborted: // the view has changed, because it includes the latest similar call
	default:
		t.Errorf("%s: %v", what, err)
	}
}

func (b *approvalLoad) decideApproval(ctx context.Context, t *testing.T, id string) {
	seen, err := b.people.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	b.checkError(t, "get", err)
	var params struct{ Arguments struct{ N int } }
	if err != nil || json.Unmarshal([]byte(seen.GetView().GetParams()), &params) != nil || params.Arguments.N == 0 {
		return // the approver ignores calls without a number
	}
	n, verdict := params.Arguments.N, approvalv1.Verdict_VERDICT_APPROVE
	if isDenied(n) {
		verdict = approvalv1.Verdict_VERDICT_DENY
	}
	_, err = b.people.DecideApproval(ctx, &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: verdict, ViewDigest: seen.GetView().GetDigest()})
	b.checkError(t, "decide", err)
	b.mu.Lock()
	defer b.mu.Unlock()
	if known := b.approvals[n]; len(known) == 0 || known[len(known)-1] != id {
		b.approvals[n] = append(known, id)
	}
	if err == nil {
		b.acknowledged[id] = verdict
	}
}

// checkResults compares the responses that the callers and the approver received with the calls that reached the server
// and with the stored approvals.
func (b *approvalLoad) checkResults(t *testing.T) {
	t.Helper()
	ran := b.countReceived(t)
	for n := range b.next {
		n++
		want, times := "ran", 1
		if isDenied(n) {
			want, times = "approval_denied", 0
		}
		if b.ends[n] != want || ran[n] != times || len(b.approvals[n]) != 1 {
			t.Errorf("call %d ended with %q and ran %d times; its approvals are %v", n, b.ends[n], ran[n], b.approvals[n])
		}
	}
	for id, verdict := range b.acknowledged {
		want := approvalv1.ApprovalState_APPROVAL_STATE_DONE
		if verdict == approvalv1.Verdict_VERDICT_DENY {
			want = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
		}
		b.awaitState(t, id, want)
	}
	t.Logf("%d calls, %d verdicts acknowledged; responses by code: %v", b.next, len(b.acknowledged), b.answers)
}

// countReceived returns the number of times that the server received each call.
func (b *approvalLoad) countReceived(t *testing.T) map[int]int {
	t.Helper()
	out := make(map[int]int)
	for _, r := range b.a.Upstream.Calls("pay") {
		var m struct {
			Params struct{ Arguments struct{ N int } }
		}
		if err := json.Unmarshal(r.Body, &m); err != nil {
			t.Fatal(err)
		}
		out[m.Params.Arguments.N]++
	}
	return out
}

// awaitState waits until an approval is in the given state. Waiting is necessary because the store may receive the
// result of a call late.
func (b *approvalLoad) awaitState(t *testing.T, id string, want approvalv1.ApprovalState) {
	t.Helper()
	var got *approvalv1.GetApprovalResponse
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); <-time.After(50 * time.Millisecond) {
		var err error
		if got, err = b.people.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id}); err == nil && got.GetApproval().GetState() == want {
			return
		}
	}
	t.Errorf("the approval is %v, want %v", got.GetApproval(), want)
}
