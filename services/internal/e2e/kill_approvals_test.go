package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/internal/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// A2: the mesh is killed as kill -9 does at random points while approved calls run:
// no call runs more often than people have approved it, nobody's decision is lost,
// and nothing is stuck.
func TestA2KilledMeshRunsNoApprovedCallTwice(t *testing.T) {
	t.Parallel()
	kills := 8
	if text, ok := os.LookupEnv("SLUICE_KILLS"); ok {
		var err error
		if kills, err = strconv.Atoi(text); err != nil || kills < 1 {
			t.Fatalf("SLUICE_KILLS=%q is no number of kills", text)
		}
	}
	stack.Program(t, "sluice")
	up := rawmcp.Start(t, tools)
	p := &paying{up: up, decided: make(map[int]string), mcp: stack.FreeAddr(t), grpc: stack.FreeAddr(t)}
	site := stack.Write(t, stack.Options{
		Listen: p.mcp, GRPC: p.grpc, Policy: payPolicy,
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: "approvals: {hold: 1s, max_pending: 1000}",
	})
	ctx, stop := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for range 8 {
		work.Go(func() { p.call(ctx, t) })
	}
	work.Go(func() { p.approve(ctx, t) })
	for range kills {
		mesh := stack.Launch(t, site)
		<-time.After(300*time.Millisecond + rand.N(700*time.Millisecond))
		mesh.Kill()
		_ = mesh.Wait()
	}
	mesh := stack.Start(t, site)
	<-time.After(2 * time.Second)
	stop()
	work.Wait()
	p.check(t, mesh)
	t.Logf("%d kills: %d calls were approved, %d results told, the server saw %d", kills, len(p.decided), p.told.Load(), len(up.Calls("pay")))
	if p.told.Load() == 0 || len(p.decided) < kills {
		t.Error("too little ran: this run proves nothing")
	}
}

// paying is callers who make calls that a person must approve, and that person.
type paying struct {
	up        *rawmcp.Server
	mcp, grpc string
	next      atomic.Int64
	told      atomic.Int64

	mu sync.Mutex
	// decided are the approvals that the person has approved, by the call's number:
	// the first of each.
	decided map[int]string
}

// call makes one call after the other, each again until it has run or is refused
// for good.
func (p *paying) call(ctx context.Context, t *testing.T) {
	for ctx.Err() == nil {
		body := []byte(call(fmt.Sprintf(`{"name":"pay","arguments":{"n":%d}}`, p.next.Add(1))))
		for done := false; !done && ctx.Err() == nil; {
			done = p.once(t, body)
		}
	}
}

func (p *paying) once(t *testing.T, body []byte) bool {
	c := stack.NewClient(t, p.addr(), stack.AgentToken)
	if c.Open() != nil {
		<-time.After(20 * time.Millisecond)
		return false
	}
	resp, err := c.Try(body)
	if err != nil {
		return false
	}
	var answer struct {
		Result struct {
			IsError bool `json:"isError"`
			Meta    map[string]struct{ Retryable bool }
		}
	}
	if json.Unmarshal(resp.Body, &answer) != nil || resp.Status != 200 {
		return false
	}
	if !answer.Result.IsError {
		p.told.Add(1)
		return true
	}
	for _, decision := range answer.Result.Meta {
		return !decision.Retryable
	}
	return true
}

func (p *paying) addr() string { return "http://" + p.mcp + "/mcp/raw" }

// approve approves the first approval of each call, and denies every other.
func (p *paying) approve(ctx context.Context, t *testing.T) {
	conn, err := rpc.DialPerson(p.grpc, stack.OperatorToken, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	client := approvalv1.NewApprovalServiceClient(conn)
	for ctx.Err() == nil {
		<-time.After(20 * time.Millisecond)
		list, err := client.List(ctx, &approvalv1.ListRequest{PageSize: 1000, Filter: &approvalv1.ApprovalFilter{States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING}}})
		if err != nil {
			continue
		}
		for _, a := range list.GetApprovals() {
			p.decide(ctx, client, a.GetId())
		}
	}
}

func (p *paying) decide(ctx context.Context, client approvalv1.ApprovalServiceClient, id string) {
	seen, err := client.Get(ctx, &approvalv1.GetRequest{ApprovalId: id, View: true})
	var params struct{ Arguments struct{ N int } }
	if err != nil || json.Unmarshal([]byte(seen.GetView().GetParams()), &params) != nil {
		return
	}
	n, verdict := params.Arguments.N, approvalv1.Verdict_VERDICT_APPROVE
	p.mu.Lock()
	defer p.mu.Unlock()
	if first, ok := p.decided[n]; ok && first != id {
		verdict = approvalv1.Verdict_VERDICT_DENY
	} else {
		p.decided[n] = id // also where the answer is lost
	}
	_, _ = client.Decide(ctx, &approvalv1.DecideRequest{ApprovalId: id, Verdict: verdict, ViewDigest: seen.GetView().GetDigest()})
}

func (p *paying) check(t *testing.T, mesh *stack.Process) {
	t.Helper()
	ran := make(map[int]int)
	for _, r := range p.up.Calls("pay") {
		var m struct {
			Params struct{ Arguments struct{ N int } }
		}
		if err := json.Unmarshal(r.Body, &m); err != nil {
			t.Fatal(err)
		}
		ran[m.Params.Arguments.N]++
	}
	for n, times := range ran {
		if times > 1 || p.decided[n] == "" {
			t.Errorf("call %d ran %d times; approved: %q", n, times, p.decided[n])
		}
	}
	client := approvalv1.NewApprovalServiceClient(mesh.Operator(t))
	for n, id := range p.decided {
		resp, err := client.Get(stack.Soon(t), &approvalv1.GetRequest{ApprovalId: id})
		if err != nil {
			t.Errorf("call %d: %v", n, err)
			continue
		}
		state := resp.GetApproval().GetState()
		if claimed := state == approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED; claimed {
			t.Errorf("call %d is stuck: %v", n, resp.GetApproval().GetClaim())
		}
		if done := state == approvalv1.ApprovalState_APPROVAL_STATE_DONE; done && ran[n] != 1 {
			t.Errorf("call %d is %v and ran %d times", n, state, ran[n])
		}
	}
}
