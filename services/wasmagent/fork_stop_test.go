package wasmagent_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	_ "modernc.org/sqlite" // the driver "sqlite"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// A fork has its own files. If the original was created by an agent, a fork that another principal creates does not get
// the rights that depend on that agent.
func TestForkAgent_HasOwnFilesAndRights(t *testing.T) {
	t.Parallel()
	m := newTestService(t)
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(new(wasmagentv1.CreateAgentRequest))
	c.mustPrompt(id, "write a.txt one")
	fork, err := c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: id})
	if err != nil {
		t.Fatal(err)
	}
	second := fork.GetAgent().GetId()
	var both sync.WaitGroup
	for _, one := range []string{id, second} {
		both.Go(func() {
			for i := range 20 {
				if _, _, err := c.prompt(one, fmt.Sprintf("write %s-%d x", one, i)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	for _, one := range []string{id, second} {
		for _, path := range c.files(one) {
			if path != "a.txt" && !strings.HasPrefix(path, one) {
				t.Errorf("%s has %s", one, path)
			}
		}
	}
	maker := c.create(&wasmagentv1.CreateAgentRequest{Manifest: &wasmagentv1.Manifest{Children: &wasmagentv1.ChildRight{Depth: 1, Count: 2}}})
	made := &identityv1.Principal{Tenant: "default", Subject: "agent:default/" + maker, Owner: "ana", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: []*identityv1.Principal{rpctest.Principal("default", "ana")}}
	child := m.onBehalfOf(t, made).create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("pay")})
	fork, err = c.ForkAgent(c.ctx, &wasmagentv1.ForkAgentRequest{AgentId: child})
	if err != nil {
		t.Fatal(err)
	}
	if rights := c.state(fork.GetAgent().GetId()).GetManifest().GetTools(); len(rights) != 0 {
		t.Errorf("the copy of an agent that another agent created may %v", rights)
	}
}

// An operator stops an agent that waits for an approval and an agent that is working. Both are still stopped after a
// restart.
func TestStopAgent_SurvivesRestart(t *testing.T) {
	t.Parallel()
	l := newRestartableService(t, func(ctx context.Context, _ *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
		out := refusal(commonv1.Code_CODE_APPROVAL_PENDING, "waits")
		out.Decision.Approval = &gatewayv1.ApprovalInfo{Id: "a-1"}
		return out, nil
	})
	c := l.onBehalfOfUser(t, "ana")
	parked, works, ends := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")}), c.create(new(wasmagentv1.CreateAgentRequest)), c.create(new(wasmagentv1.CreateAgentRequest))
	if answer := c.mustPrompt(parked, "tool demo t"); answer.GetFinished() {
		t.Fatalf("the prompt does not wait for an approval: %v", answer)
	}
	for _, id := range []string{works, ends} {
		go func() { _, _, _ = c.prompt(id, "sleep 5m") }() // the restart cancels the prompt
		c.waitUntilSleeping(id)
	}
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	eventually.Holds(t, "the agent waits for the approval again", func() bool { return c.state(parked).GetInfo().GetWaiting().GetApprovalId() == "a-1" })
	for _, id := range []string{works, ends} {
		go func() { _, _, _ = c.prompt(id, "sleep 5m") }() // StopAgent or TerminateAgent cancels the prompt
		c.waitUntilSleeping(id)
	}
	operator := l.withToken(t, "operator")
	for _, id := range []string{parked, works} {
		if _, err := operator.StopAgent(operator.ctx, &wasmagentv1.StopAgentRequest{AgentId: id}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: ends}); err != nil {
		t.Fatal(err)
	}
	l.close()
	l.start()
	c = l.onBehalfOfUser(t, "ana")
	for _, id := range []string{parked, works} {
		if stopped, why := c.stopStatus(id); !stopped || why != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
			t.Errorf("the agent is stopped: %v, with the reason %v", stopped, why)
		}
		_, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id})
		rpctest.WantStatus(t, err, codes.PermissionDenied, "STOPPED_BY_OPERATOR")
		if got := eventWords(c.events(id)); !strings.HasSuffix(got, "undone (the agent is stopped), lifecycle (stopped), stored") {
			t.Errorf("the journal is %s", got)
		}
		c.verifyMatches(id)
	}
	if info := c.state(ends).GetInfo(); info.GetState() != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		t.Errorf("the terminated agent is %v", info)
	}
}

// The pages of a list contain each agent in the selected states exactly once, even if some agents have running turns.
func TestListAgents_PagesHaveAllAgentsInStates(t *testing.T) {
	t.Parallel()
	c := newTestService(t).onBehalfOfUser(t, "ana")
	want := make(map[string]bool)
	for i := range 7 {
		id := c.create(&wasmagentv1.CreateAgentRequest{Guest: new("script")})
		if i%3 != 0 {
			want[id] = true
			continue
		}
		go func() { _, _, _ = c.prompt(id, "sleep 5m") }() // the end of the test cancels the prompt
		c.waitUntilSleeping(id)
	}
	token, working := "", 0
	for {
		page, err := c.ListAgents(c.ctx, &wasmagentv1.ListAgentsRequest{PageSize: 2, PageToken: token, States: []wasmagentv1.AgentState{wasmagentv1.AgentState_AGENT_STATE_IDLE}})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range page.GetAgents() {
			if !want[a.GetId()] {
				t.Errorf("%v is listed twice, or in another state", a)
			}
			delete(want, a.GetId())
		}
		if token = page.GetNextPageToken(); token == "" {
			break
		}
	}
	if len(want) != 0 {
		t.Errorf("%v are not listed", want)
	}
	page, err := c.ListAgents(c.ctx, &wasmagentv1.ListAgentsRequest{States: []wasmagentv1.AgentState{wasmagentv1.AgentState_AGENT_STATE_WAITING}})
	for _, a := range page.GetAgents() {
		if a.GetState() == wasmagentv1.AgentState_AGENT_STATE_WAITING {
			working++
		}
	}
	if err != nil || working != 3 {
		t.Errorf("%d agents wait, want 3: %v", working, err)
	}
}
