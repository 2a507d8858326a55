package wasmagent_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/e2e/network" //nolint:depguard // simulates network failures, only in tests
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/sqlstore/sqlstoretest"
	"github.com/sluice-mesh/sluice/services/wasmagent"
)

// paymentGateway is a gateway that counts calls by their arguments, and records the approvals that were used. When
// approved is closed, all pending approvals are granted.
type paymentGateway struct {
	mu       sync.Mutex
	made     map[string]int
	used     map[string]bool
	approved chan struct{}
}

// answer runs a call at once, unless the call is for the tool named pay. A call to this tool waits for its approval.
// Each approval allows one call.
func (e *paymentGateway) answer(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
	key := req.GetTool() + " " + req.GetArgumentsJson()
	if req.GetTool() != "pay" {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.made[key]++
		return answerOf("done"), nil
	}
	select {
	case <-e.approved:
	case <-time.After(50 * time.Millisecond):
		out := refusal(commonv1.Code_CODE_APPROVAL_PENDING, "waits")
		out.Decision.Approval = &gatewayv1.ApprovalInfo{Id: "a " + req.GetArgumentsJson()}
		return out, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.used[req.GetApprovalId()] {
		return refusal(commonv1.Code_CODE_APPROVAL_USED, "used"), nil
	}
	e.used[req.GetApprovalId()] = true
	e.made[key]++
	return answerOf("paid"), nil
}

// Two replicas share their agents. One replica loses its connection to the database under load. No call runs twice,
// acknowledged answers are stored, and all agents continue in the other replica, including an agent that waits for an
// approval.
func TestReplicas_AgentsContinueWhenReplicaIsLost(t *testing.T) {
	t.Parallel()
	server := sqlstoretest.Start(t)
	database := server.Database(t)
	proxy := network.Start(t, server.Addr())
	gateway := &paymentGateway{made: make(map[string]int), used: make(map[string]bool), approved: make(chan struct{})}
	states := "file://" + t.TempDir() + "?metadata=skip&no_tmp_dir=true"
	start := func(source string) *restartableService {
		l := &restartableService{t: t, cfg: wasmagent.Config{Data: t.TempDir(), Source: source, Bucket: states}, gateway: fakeGateway{answer: gateway.answer}}
		l.start()
		return l
	}
	lost, stays := start(server.Through(proxy.Addr, database)), start(database)
	t.Cleanup(stays.close)
	one, two := lost.onBehalfOfUser(t, "ana"), stays.onBehalfOfUser(t, "ana")

	// A change that one replica makes to an agent is visible in the other replica at once.
	const agents = 6
	var ids []string
	for i := range agents {
		id := one.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("plain", "pay"), MaxTurns: new(int32(10_000))})
		if answer := two.mustPrompt(id, fmt.Sprintf("todo pending x\nsay %d", i)).GetResponse(); answer != fmt.Sprint(i) {
			t.Fatalf("the other replica answers %q", answer)
		}
		if answer := one.mustPrompt(id, "say again").GetResponse(); answer != "again" || len(one.todos(id)) != 1 {
			t.Fatalf("the first replica answers %q, with %v", answer, one.todos(id))
		}
		ids = append(ids, id)
	}
	parked := one.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("plain", "pay")})
	if answer := one.mustPrompt(parked, "tool demo plain {\"n\":\"parked\"}\ntool demo pay {\"n\":\"parked\"}\nsay after"); answer.GetFinished() {
		t.Fatalf("the prompt does not wait for an approval: %v", answer)
	}
	if _, _, err := two.prompt(parked, "x"); err == nil {
		t.Error("a replica accepts a prompt although the agent's turn runs in the other replica")
	}
	if here, there := one.state(parked).GetInfo().GetWaiting(), two.state(parked).GetInfo().GetWaiting(); here.GetApprovalId() == "" || there.GetApprovalId() != here.GetApprovalId() {
		t.Errorf("the replica with the turn shows that it waits for %v, and the other replica %v", here, there)
	}

	// A change that one replica makes to templates is visible in the other replica at once.
	if _, err := one.gallery().AddTemplate(one.ctx, &wasmagentv1.AddTemplateRequest{Template: &wasmagentv1.Template{
		Id: "shared", Name: "Shared", Category: "custom", Prompts: []*wasmagentv1.TemplatePrompt{{Name: "p", SystemPrompt: "Be shared."}},
	}}); err != nil {
		t.Fatal(err)
	}
	two.create(&wasmagentv1.CreateAgentRequest{Template: new("shared")})
	if _, err := two.gallery().RemoveTemplate(two.ctx, &wasmagentv1.RemoveTemplateRequest{Id: "shared"}); err != nil {
		t.Fatal(err)
	}
	if _, err := one.gallery().CreateAgentFromTemplate(one.ctx, &wasmagentv1.CreateAgentFromTemplateRequest{Template: "shared"}); status.Code(err) != codes.NotFound {
		t.Errorf("a template that the other replica has removed: %v", err)
	}

	var acknowledged sync.Map
	load, stop := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i, id := range ids {
		callers.Go(func() {
			for n := 0; load.Err() == nil; n++ {
				c := []client{one, two}[n%2]
				key := fmt.Sprintf("%d-%d", i, n)
				_, answer, err := c.prompt(id, fmt.Sprintf("tool demo plain {\"n\":%q}", key))
				if err == nil && answer.GetResponse() == "done" {
					acknowledged.Store(key, true)
				}
			}
		})
	}
	time.Sleep(2 * time.Second)
	proxy.DropSilently(t)
	time.Sleep(2 * time.Second)
	stop()
	callers.Wait()

	lastError := ""
	t.Cleanup(func() { t.Log("the last error was:", lastError) })
	eventually.Within(t, 3*time.Minute, "the agents continue in the other replica", func() bool {
		for _, id := range ids {
			if _, _, err := two.prompt(id, "say here"); err != nil {
				lastError = err.Error()
				return false
			}
		}
		return two.state(parked).GetInfo().GetWaiting().GetApprovalId() != ""
	})
	close(gateway.approved)
	eventually.Holds(t, "the waiting turn continues", func() bool { return two.state(parked).GetInfo().GetTurnCount() == 1 })
	lost.close()

	gateway.mu.Lock()
	defer gateway.mu.Unlock()
	for key, n := range gateway.made {
		if n != 1 {
			t.Errorf("%s was made %d times", key, n)
		}
	}
	known := 0
	acknowledged.Range(func(key, _ any) bool {
		known++
		if gateway.made[fmt.Sprintf("plain {\"n\":%q}", key)] != 1 {
			t.Errorf("%v was acknowledged, but not made", key)
		}
		return true
	})
	if known == 0 || gateway.made[`pay {"n":"parked"}`] != 1 {
		t.Errorf("%d calls were acknowledged; the approved call was made %d times", known, gateway.made[`pay {"n":"parked"}`])
	}
	for _, id := range append(ids, parked) {
		two.verifyMatches(id)
	}
}
