package mesh_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// pollInterval is the time between two checks of a condition.
const pollInterval = 10 * time.Millisecond

// paymentRun describes callers whose calls need approval, an approver, and the responses that the callers and the
// approver receive. Meanwhile, the mesh may be killed and restarted.
type paymentRun struct {
	meshConfig *stack.Stack
	upstream   *rawmcp.Server
	mcp        string // URL of the server at the gateway
	dial       func() (*grpc.ClientConn, error)
	// racers is the number of callers that make each call at the same time. denies reports whether the approver denies
	// a call. If denies is nil, no call is denied.
	racers int
	denies func(n int) bool

	next, received  atomic.Int64
	calls, refusals *hashChain
	// intended contains the approval ids of calls that a kill interrupted between intent and outcome.
	intended map[string]bool

	mu sync.Mutex
	// decided contains, for each call number, the id of the first approval that the approver chose to approve.
	decided map[int]string
	// known contains the approval ids that a caller or the approver has received. verdicts contains the acknowledged
	// verdicts, by approval id.
	known    map[string]bool
	verdicts map[string]approvalv1.Verdict
}

// paymentConfig sets a short hold time, so that the tests are fast.
const paymentConfig = "approvals: {hold: 1s, max_pending: 1000, max_asked: {max: 100000}}"

// newPaymentRun writes the configuration of a mesh that runs in one process, and does not start the mesh. database is
// the URL of the approval database. If it is empty, the mesh uses the embedded database.
func newPaymentRun(t *testing.T, database string) *paymentRun {
	t.Helper()
	conf := paymentConfig
	if database != "" {
		conf += fmt.Sprintf("\nstores: {approval: %q}", database)
	}
	up, listen, addr := rawmcp.Start(t, rawmcp.Tools), stack.FreeAddr(t), stack.FreeAddr(t)
	site := stack.WriteConfig(t, stack.Options{
		Listen: listen, GRPC: addr, Policy: rawmesh.PayPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: conf,
	})
	p := paymentRunFor(site, up)
	p.mcp = "http://" + listen + "/mcp/raw"
	p.dial = func() (*grpc.ClientConn, error) { return rpc.DialPerson(addr, stack.OperatorToken, nil) }
	return p
}

// newDistributedPaymentRun starts a mesh whose services run in separate processes. The mesh stores its approvals in a
// database.
func newDistributedPaymentRun(t *testing.T, database string) (*paymentRun, *rawmesh.Distributed) {
	t.Helper()
	a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, fmt.Sprintf("%s\nstores: {approval: %q}", paymentConfig, database))
	p := paymentRunFor(a.Stack, a.Upstream)
	p.mcp = a.MCP("raw")
	p.dial = func() (*grpc.ClientConn, error) {
		return rpc.DialPerson(a.Addr(approvalRole), stack.OperatorToken, rpc.ClientTLS(nil, a.Authority.Pool(), approvalRole))
	}
	return p, a
}

func paymentRunFor(site *stack.Stack, up *rawmcp.Server) *paymentRun {
	return &paymentRun{
		meshConfig: site, upstream: up, racers: 1, calls: newHashChain(site.Journal(), "calls"), refusals: newHashChain(site.Journal(), "refusals"),
		intended: make(map[string]bool), decided: make(map[int]string), known: make(map[string]bool), verdicts: make(map[string]approvalv1.Verdict),
	}
}

// startWork starts the callers and the approver. After the returned function stop is called, the callers start no
// further calls. The returned function wait calls stop, and then waits until every call has run or has received a final
// refusal, or until ctx is done.
func (p *paymentRun) startWork(ctx context.Context, t *testing.T, callers int) (stop, wait func()) {
	t.Helper()
	more, stop := context.WithCancel(ctx)
	deciding, decided := context.WithCancel(ctx)
	var calling, person sync.WaitGroup
	for range callers {
		calling.Go(func() { p.makeCalls(ctx, more, t) })
	}
	person.Go(func() { p.decideAll(deciding, t) })
	wait = func() {
		stop()
		calling.Wait()
		decided()
		person.Wait()
	}
	t.Cleanup(wait)
	return stop, wait
}

// makeCalls makes calls one by one. It repeats each call until the call has run or has received a final refusal.
func (p *paymentRun) makeCalls(ctx, more context.Context, t *testing.T) {
	for more.Err() == nil {
		n := p.next.Add(1)
		body := []byte(stack.CallRequest(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, n)))
		var racing sync.WaitGroup
		for range p.racers {
			racing.Go(func() {
				for !p.callOnce(ctx, t, body) {
					if ctx.Err() != nil {
						t.Errorf("call %d neither ran nor was refused finally", n)
						return
					}
				}
			})
		}
		racing.Wait()
	}
}

// callOnce makes a call once and reports whether the response is final.
func (p *paymentRun) callOnce(ctx context.Context, t *testing.T, body []byte) bool {
	c := stack.NewClient(t, p.mcp, stack.AgentToken)
	if c.Open() != nil {
		pausePolling(ctx)
		return false
	}
	resp, err := c.TryPost(body)
	if err != nil || resp.Status != http.StatusOK {
		pausePolling(ctx)
		return false
	}
	d := parseRefusal(resp.Body)
	if d.Code == "" {
		p.received.Add(1)
		return true
	}
	if d.Approval.ID != "" {
		p.addKnown(d.Approval.ID)
	}
	if d.Retryable || d.Code == "approval_used" { // after approval_used, the call that uses the approval may still release its claim
		pausePolling(ctx)
		return false
	}
	return true
}

// refusal is the refusal in a response. The zero value means that the call was not refused.
type refusal struct {
	Code      string
	Retryable bool
	Approval  struct{ ID string }
}

// parseRefusal parses a response. It treats a response that can't be parsed as a refusal.
func parseRefusal(body []byte) refusal {
	var answer struct {
		Result *struct {
			IsError bool
			Meta    map[string]refusal `json:"_meta"`
		}
	}
	if json.Unmarshal(body, &answer) != nil || answer.Result == nil {
		return refusal{Code: "unreadable", Retryable: true}
	}
	d := answer.Result.Meta["dev.sluice/decision"]
	if answer.Result.IsError && d.Code == "" {
		d.Code = "nameless"
	}
	return d
}

func pausePolling(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(pollInterval):
	}
}

func (p *paymentRun) addKnown(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[id] = true
}

// decideAll votes on pending approvals until ctx is done. After each failure it connects again.
func (p *paymentRun) decideAll(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		conn, err := p.dial()
		if err != nil {
			t.Error(err)
			return
		}
		for err == nil {
			pausePolling(ctx)
			err = p.decidePending(ctx, approvalv1.NewApprovalServiceClient(conn))
		}
		_ = conn.Close()
	}
}

func (p *paymentRun) decidePending(ctx context.Context, client approvalv1.ApprovalServiceClient) error {
	list, err := client.ListApprovals(ctx, &approvalv1.ListApprovalsRequest{PageSize: 1000, Filter: &approvalv1.ApprovalFilter{States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING}}})
	for _, a := range list.GetApprovals() {
		p.addKnown(a.GetId())
		if err := p.decideApproval(ctx, client, a.GetId()); err != nil {
			return err
		}
	}
	return err
}

// decideApproval approves the first approval of a call, unless the function denies selects the call. It denies all
// other approvals.
func (p *paymentRun) decideApproval(ctx context.Context, client approvalv1.ApprovalServiceClient, id string) error {
	seen, err := client.GetApproval(ctx, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		return err
	}
	var params struct{ Arguments struct{ N int } }
	if err := json.Unmarshal([]byte(seen.GetView().GetParams()), &params); err != nil {
		return err
	}
	verdict := p.chooseVerdict(params.Arguments.N, id)
	_, err = client.DecideApproval(ctx, &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: verdict, ViewDigest: seen.GetView().GetDigest()})
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.verdicts[id] = verdict
	return nil
}

func (p *paymentRun) chooseVerdict(n int, id string) approvalv1.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	if first, ok := p.decided[n]; ok && first != id || p.denies != nil && p.denies(n) {
		return approvalv1.Verdict_VERDICT_DENY
	}
	p.decided[n] = id // stored before the request, because its response may be lost
	return approvalv1.Verdict_VERDICT_APPROVE
}

// killMesh kills the mesh. It returns the approved calls without a final record in the journal, by decision id.
func (p *paymentRun) killMesh(t *testing.T, mesh *stack.Process) map[string]openCall {
	t.Helper()
	mesh.Kill()
	p.calls.readNewRecords(t)
	p.refusals.readNewRecords(t)
	for _, call := range p.calls.open {
		if call.kind == "intent" {
			p.intended[call.approval] = true
		}
	}
	return maps.Clone(p.calls.open)
}
