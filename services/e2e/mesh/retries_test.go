package mesh_test

import (
	"fmt"
	"sync"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Case A2. Several sessions make 200 concurrent retries of an approved call. Exactly one of the retries reaches the
// server.
func TestRetries_ApprovedCallReachesTheServerOnce(t *testing.T) {
	t.Parallel()
	const retries, sessions = 200, 8
	rounds := repetitions(t, "SLUICE_REDEEMS", 5)
	up := rawmcp.Start(t, rawmcp.Tools)
	mesh := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Policy: rawmesh.PayPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: "approvals: {hold: 0s, max_pending: 1000, max_asked: {max: 100000}}",
	}))
	people := approvalv1.NewApprovalServiceClient(mesh.Operator(t))
	var callers []*stack.Client
	for range sessions {
		callers = append(callers, stack.Connect(t, mesh.MCP("raw"), stack.AgentToken))
	}
	for round := range rounds {
		body := stack.CallRequest(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, round))
		id := parseRefusal(callers[0].Post(body).Body).Approval.ID
		seen, err := people.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := people.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: seen.GetView().GetDigest()}); err != nil {
			t.Fatal(err)
		}
		codes := make(map[string]int)
		for tries := 0; codes[""] == 0 && tries < 5; tries++ { // on a busy machine, all calls may be refused
			codes = callConcurrently(retries, func(i int) (stack.Response, error) { return callers[i%sessions].TryPost([]byte(body)) })
		}
		others := codes["approval_used"] + codes["approval_pending"] + codes["approval_unavailable"] + codes["policy_unavailable"] // approval_pending: a retry after the call has run makes another approval request
		if n := len(up.Calls("pay")); n != round+1 || codes[""] != 1 || others != retries-1 {
			t.Fatalf("round %d: the server received %d calls in total; the codes of the retries are %v", round, n, codes)
		}
	}
}

// callConcurrently makes the given number of calls at the same time, and counts the responses by refusal code. The code
// of a response with a result is "".
func callConcurrently(calls int, try func(i int) (stack.Response, error)) map[string]int {
	var mu sync.Mutex
	codes := make(map[string]int)
	begin := make(chan struct{})
	var calling sync.WaitGroup
	for i := range calls {
		calling.Go(func() {
			<-begin
			resp, err := try(i)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				codes[err.Error()]++
				return
			}
			codes[parseRefusal(resp.Body).Code]++
		})
	}
	close(begin)
	calling.Wait()
	return codes
}
