package mesh_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
)

const (
	// manyPending is the number of pending approvals while the mesh is killed. pendingKills is the number of kills.
	manyPending   = 1000
	pendingKills  = 4
	pendingConfig = "approvals: {hold: 0s, decide: 1h, execute: 1h, max_pending: 1000, max_asked: {max: 100000}}"
)

// The test kills a mesh repeatedly while a thousand approvals are pending and approvers vote. No approval and no
// acknowledged vote is lost.
func TestPendingApprovals_SurviveKills(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		up, listen := rawmcp.Start(t, rawmcp.Tools), stack.FreeAddr(t)
		site := stack.WriteConfig(t, stack.Options{
			Listen: listen, GRPC: stack.FreeAddr(t), Policy: rawmesh.PayPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: pendingConfig,
		})
		mesh := stack.Start(t, site)
		killWhileDeciding(t, &pendingRun{
			mcp: "http://" + listen + "/mcp/raw", upstream: up,
			dial: func() (*grpc.ClientConn, error) { return rpc.DialPerson(site.GRPC, stack.OperatorToken, nil) },
			kill: func() { mesh.Kill() }, start: func() { mesh = stack.Start(t, site) },
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, fmt.Sprintf("%s\nstores: {approval: %q}", pendingConfig, sqlstoretest.Start(t).Database(t)))
		killWhileDeciding(t, &pendingRun{
			mcp: a.MCP("raw"), upstream: a.Upstream,
			dial: func() (*grpc.ClientConn, error) {
				return rpc.DialPerson(a.Addr(approvalRole), stack.OperatorToken, rpc.ClientTLS(nil, a.Authority.Pool(), approvalRole))
			},
			kill: func() { a.Kill(t, approvalRole) },
			start: func() {
				a.Start(t, approvalRole)
				a.AwaitServing(t, approvalRole)
				a.AwaitReady(t)
			},
		})
	})
}

// pendingRun is a mesh with many pending approvals, and the responses that its approvers received.
type pendingRun struct {
	mcp      string
	upstream *rawmcp.Server
	dial     func() (*grpc.ClientConn, error)
	// kill sends SIGKILL to the process that stores the approvals. start starts that process again.
	kill, start func()

	// requested contains the ids of the approvals, in the order in which callers received them. Every third approval is
	// denied.
	requested []string

	mu sync.Mutex
	// sent contains the approvals for which a vote was sent. acknowledged contains the approvals for which a vote was
	// acknowledged.
	sent, acknowledged map[string]bool
}

func killWhileDeciding(t *testing.T, w *pendingRun) {
	t.Helper()
	w.sent, w.acknowledged = make(map[string]bool), make(map[string]bool)
	w.requestApprovals(t)
	states := w.checkApprovals(t)
	if len(w.requested) != manyPending || states[approvalv1.ApprovalState_APPROVAL_STATE_PENDING] != manyPending {
		t.Fatalf("%d approvals were requested: %v", len(w.requested), states)
	}
	for kill := range pendingKills {
		w.decideUntil(t, (kill+1)*manyPending/(pendingKills+1)+rand.IntN(50))
		w.start()
		t.Logf("kill %d: %d decisions were acknowledged, %d more were sent; %v", kill+1, len(w.acknowledged), len(w.sent)-len(w.acknowledged), w.checkApprovals(t))
	}
	if n := len(w.upstream.Calls("pay")); n != 0 {
		t.Errorf("%d calls ran that were not repeated", n)
	}
}

// requestApprovals makes all calls. The response to each call is a ticket, which contains the approval's id.
func (w *pendingRun) requestApprovals(t *testing.T) {
	t.Helper()
	const callers = 8
	var calling sync.WaitGroup
	for i := range callers {
		c := stack.Connect(t, w.mcp, stack.AgentToken)
		calling.Go(func() {
			for n := i; n < manyPending; n += callers {
				id, err := requestTicket(c, n)
				if err != nil {
					t.Errorf("call %d: %v", n, err)
					return
				}
				w.mu.Lock()
				w.requested = append(w.requested, id)
				w.mu.Unlock()
			}
		})
	}
	calling.Wait()
}

// requestTicket makes a call until the response is a ticket, and returns the id of the approval in the ticket. On a
// busy machine the first responses may be approval_unavailable.
func requestTicket(c *stack.Client, n int) (string, error) {
	for end := time.Now().Add(waitTimeLimit); ; time.Sleep(100 * time.Millisecond) {
		resp, err := c.TryPost([]byte(stack.CallRequest(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, n))))
		switch d := parseRefusal(resp.Body); {
		case err != nil:
			return "", err
		case d.Code == "approval_pending" && d.Approval.ID != "":
			return d.Approval.ID, nil
		case !d.Retryable || time.Now().After(end):
			return "", fmt.Errorf("answered %s", resp.Body)
		}
	}
}

// decideUntil starts approvers. As soon as the given number of votes was acknowledged, it kills the process that stores
// the approvals, while the approvers are still voting.
func (w *pendingRun) decideUntil(t *testing.T, acknowledged int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*waitTimeLimit)
	defer cancel()
	enough := make(chan struct{})
	var deciding sync.WaitGroup
	for range 4 {
		conn, err := w.dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		deciding.Go(func() { w.decideAll(ctx, approvalv1.NewApprovalServiceClient(conn), acknowledged, enough) })
	}
	select {
	case <-enough:
	case <-ctx.Done():
		t.Errorf("%d decisions were not acknowledged in time", acknowledged)
	}
	w.kill()
	cancel()
	deciding.Wait()
}

// decideAll votes on approvals one by one until ctx is done. A vote may fail, because the process is killed, or because
// a busy machine does not answer in time.
func (w *pendingRun) decideAll(ctx context.Context, client approvalv1.ApprovalServiceClient, acknowledged int, enough chan<- struct{}) {
	for id := w.takeUndecided(); id != "" && ctx.Err() == nil; id = w.takeUndecided() {
		seen, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
		if err == nil {
			_, err = client.DecideApproval(ctx, &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: w.verdictFor(id), ViewDigest: seen.GetView().GetDigest()})
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond)
			continue
		}
		w.mu.Lock()
		if w.acknowledged[id] = true; len(w.acknowledged) == acknowledged {
			close(enough)
		}
		w.mu.Unlock()
	}
}

// takeUndecided chooses an approval for which no vote was sent, marks it as sent and returns its id. It returns "" if
// votes were sent for all approvals.
func (w *pendingRun) takeUndecided() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, i := range rand.Perm(len(w.requested)) {
		if id := w.requested[i]; !w.sent[id] {
			w.sent[id] = true
			return id
		}
	}
	return ""
}

func (w *pendingRun) verdictFor(id string) approvalv1.Verdict {
	if slices.Index(w.requested, id)%3 == 0 {
		return approvalv1.Verdict_VERDICT_DENY
	}
	return approvalv1.Verdict_VERDICT_APPROVE
}

// checkApprovals compares all approvals with the responses that the approvers received. It returns the number of
// approvals by state.
func (w *pendingRun) checkApprovals(t *testing.T) map[approvalv1.ApprovalState]int {
	t.Helper()
	found, err := w.listApprovals(t)
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[approvalv1.ApprovalState]int)
	for _, a := range found {
		states[a.GetState()]++
	}
	if len(found) != len(w.requested) {
		t.Errorf("%d approvals exist, %d were requested", len(found), len(w.requested))
	}
	for _, id := range w.requested {
		want := approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
		if w.verdictFor(id) == approvalv1.Verdict_VERDICT_DENY {
			want = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
		}
		a, state := found[id], found[id].GetState()
		decided := state == want && len(a.GetVotes()) == 1 && a.GetVotes()[0].GetVerdict() == w.verdictFor(id)
		waits := state == approvalv1.ApprovalState_APPROVAL_STATE_PENDING && len(a.GetVotes()) == 0
		if !decided && (w.acknowledged[id] || !waits) || decided && !w.sent[id] {
			t.Errorf("approval %s is %v; a decision was sent: %t, acknowledged: %t", id, a, w.sent[id], w.acknowledged[id])
		}
	}
	return states
}

// listApprovals returns all approvals. It reads them page by page.
func (w *pendingRun) listApprovals(t *testing.T) (map[string]*approvalv1.Approval, error) {
	t.Helper()
	conn, err := w.dial()
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	found := make(map[string]*approvalv1.Approval)
	for token := ""; ; {
		page, err := approvalv1.NewApprovalServiceClient(conn).ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{PageSize: 300, PageToken: token})
		if err != nil {
			return nil, err
		}
		for _, a := range page.GetApprovals() {
			if found[a.GetId()] != nil {
				return nil, errors.New("a page repeats an approval of an earlier page")
			}
			found[a.GetId()] = a
		}
		if token = page.GetNextPageToken(); token == "" {
			return found, nil
		}
	}
}
