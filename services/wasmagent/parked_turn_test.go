package wasmagent_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// waitLimit is the maximum time that a test waits for a call of an agent.
const waitLimit = 20 * time.Second

// approvalGateway is a gateway that requires an approval for each call. It can report progress while a call waits. Use
// newApprovalGateway to create one.
type approvalGateway struct {
	gatewayv1.GatewayServiceClient

	// ticks carries progress messages. It is unbuffered, so a send returns only when an agent has received the message.
	ticks chan string
	// decided carries the gateway's answers to calls that wait for an approval.
	decided chan *gatewayv1.ToolAnswer
	// panics reports whether the stream of a waiting call panics.
	panics func() bool

	// withdrawn carries the approvals that are withdrawn, with the reasons. While the field fails is true, withdrawals
	// fail.
	withdrawn chan string
	fails     atomic.Bool

	mu   sync.Mutex
	runs int
}

func newApprovalGateway() *approvalGateway {
	return &approvalGateway{
		ticks: make(chan string), decided: make(chan *gatewayv1.ToolAnswer), panics: func() bool { return false }, withdrawn: make(chan string, 10),
	}
}

// WithdrawApproval implements gatewayv1.GatewayServiceClient.
func (g *approvalGateway) WithdrawApproval(_ context.Context, req *gatewayv1.WithdrawApprovalRequest, _ ...grpc.CallOption) (*gatewayv1.WithdrawApprovalResponse, error) {
	if g.fails.Load() {
		return nil, status.Error(codes.Unavailable, "away")
	}
	g.withdrawn <- req.GetApprovalId() + ": " + req.GetReason()
	return new(gatewayv1.WithdrawApprovalResponse), nil
}

func (g *approvalGateway) checkWithdrawn(t *testing.T, reason string) {
	t.Helper()
	select {
	case got := <-g.withdrawn:
		if !strings.HasPrefix(got, "a-1: the agent no longer waits for the call, so the call would not run: ") || !strings.Contains(got, reason) {
			t.Errorf("withdrawn: %s", got)
		}
	case <-time.After(waitLimit):
		t.Errorf("no approval was withdrawn (%s)", reason)
	}
}

// checkNoneWithdrawn checks that no approval has been withdrawn so far.
func (g *approvalGateway) checkNoneWithdrawn(t *testing.T) {
	t.Helper()
	select {
	case got := <-g.withdrawn:
		t.Errorf("withdrawn: %s", got)
	default:
	}
}

// CallTool implements gatewayv1.GatewayServiceClient.
func (g *approvalGateway) CallTool(ctx context.Context, req *gatewayv1.CallToolRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[gatewayv1.CallToolResponse], error) {
	if req.GetApprovalId() == "" {
		asked := refusal(commonv1.Code_CODE_APPROVAL_PENDING, "a person was asked")
		asked.Decision.Approval = &gatewayv1.ApprovalInfo{Id: "a-1"}
		return &oneAnswer{answer: asked}, nil
	}
	return &heldCall{gateway: g, ctx: ctx}, nil
}

// tick reports progress to a waiting agent.
func (g *approvalGateway) tick(t *testing.T) {
	t.Helper()
	select {
	case g.ticks <- "waiting for a person's approval":
	case <-time.After(waitLimit):
		t.Fatal("no agent waits for the progress of its call")
	}
}

func (g *approvalGateway) decide(t *testing.T, answer *gatewayv1.ToolAnswer) {
	t.Helper()
	select {
	case g.decided <- answer:
	case <-time.After(waitLimit):
		t.Fatal("no agent waits for the answer of its call")
	}
}

// runCount returns the number of calls that ran after an approval.
func (g *approvalGateway) runCount() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.runs
}

type heldCall struct {
	grpc.ClientStream

	gateway *approvalGateway
	ctx     context.Context //nolint:containedctx // it is the context of the stream
}

// Recv implements grpc.ServerStreamingClient.
func (c *heldCall) Recv() (*gatewayv1.CallToolResponse, error) {
	if c.gateway.panics() {
		panic("a fault of this program")
	}
	select {
	case text := <-c.gateway.ticks:
		return &gatewayv1.CallToolResponse{Item: &gatewayv1.CallToolResponse_Progress{Progress: &gatewayv1.Progress{Progress: 1e-6, Message: text}}}, nil
	case answer := <-c.gateway.decided:
		c.gateway.mu.Lock()
		defer c.gateway.mu.Unlock()
		if !answer.GetIsError() {
			c.gateway.runs++
		}
		return &gatewayv1.CallToolResponse{Item: &gatewayv1.CallToolResponse_Answer{Answer: answer}}, nil
	case <-c.ctx.Done():
		return nil, c.ctx.Err()
	}
}

// createParked creates an agent and prompts it, so that the agent waits for an approval.
func (c client) createParked() (id string) {
	c.t.Helper()
	id = c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")})
	c.promptUntilParked(id)
	return id
}

func (c client) promptUntilParked(id string) {
	c.t.Helper()
	answer := c.mustPrompt(id, "tool demo t\nsay after")
	if answer.GetFinished() || answer.GetWaiting().GetApprovalId() != "a-1" {
		c.t.Fatalf("the prompt ends with %v", answer)
	}
}

// waitForAnswer waits until the content of an agent's newest message equals want.
func (c client) waitForAnswer(id, want string) {
	c.t.Helper()
	eventually.Holds(c.t, "the agent has answered "+want, func() bool {
		messages := c.state(id).GetState().GetMessages()
		return len(messages) > 0 && messages[len(messages)-1].GetContent() == want
	})
}

// The gateway reports progress after the prompt has returned. The progress does not end the turn. When the approval is
// granted or denied, the turn continues.
func TestParkedTurn_ContinuesWhenProgressArrivesAfterReturn(t *testing.T) {
	t.Parallel()
	gateway := newApprovalGateway()
	l := newRestartableServiceAt(t, gateway)
	c := l.onBehalfOfUser(t, "ana")
	id := c.createParked()
	for range 5 {
		gateway.tick(t)
	}
	if state := c.state(id).GetInfo().GetState(); state != wasmagentv1.AgentState_AGENT_STATE_WAITING {
		t.Errorf("after the progress the agent's state is %v", state)
	}
	gateway.decide(t, answerOf("approved"))
	c.waitForAnswer(id, "approved\nafter")
	if n := gateway.runCount(); n != 1 {
		t.Errorf("the call ran %d times", n)
	}
	c.verifyMatches(id)
	gateway.checkNoneWithdrawn(t)

	// A second prompt to the same agent also waits for an approval after it has returned.
	c.promptUntilParked(id)
	gateway.tick(t)
	gateway.decide(t, refusal(commonv1.Code_CODE_APPROVAL_DENIED, "denied by ben"))
	c.waitForAnswer(id, "line 1: approval_denied: denied by ben\nafter")
	if n := gateway.runCount(); n != 1 {
		t.Errorf("after a denied call, %d calls have run", n)
	}
	gateway.checkNoneWithdrawn(t)
}

func TestParkedTurn_ContinuesWhenApprovedAfterRestart(t *testing.T) {
	t.Parallel()
	gateway := newApprovalGateway()
	l := newRestartableServiceAt(t, gateway)
	id := l.onBehalfOfUser(t, "ana").createParked()
	gateway.tick(t)
	l.close()
	gateway.checkNoneWithdrawn(t)
	l.start()
	c := l.onBehalfOfUser(t, "ana")
	gateway.tick(t)
	gateway.tick(t)
	gateway.decide(t, answerOf("approved"))
	c.waitForAnswer(id, "approved\nafter")
	if n := gateway.runCount(); n != 1 {
		t.Errorf("the call ran %d times", n)
	}
	c.verifyMatches(id)
}

func TestParkedTurn_ContinuesWhenPromptIsCancelled(t *testing.T) {
	t.Parallel()
	gateway := newApprovalGateway()
	c := newRestartableServiceAt(t, gateway).onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")})
	ctx, cancel := context.WithCancel(c.ctx)
	stream, err := c.PromptAgent(ctx, &wasmagentv1.PromptAgentRequest{AgentId: id, Input: "tool demo t\nsay after"})
	if err != nil {
		t.Fatal(err)
	}
	for text := ""; !strings.Contains(text, "approval a-1"); { // until the approval is requested
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		text = resp.GetProgress().GetMessage() + resp.GetWaiting().GetApprovalId()
		if resp.GetWaiting().GetApprovalId() == "a-1" {
			break
		}
	}
	eventually.Holds(t, "the agent waits for the approval", func() bool { return c.state(id).GetInfo().GetWaiting().GetApprovalId() == "a-1" })
	cancel()
	gateway.tick(t)
	gateway.tick(t)
	gateway.decide(t, answerOf("approved"))
	c.waitForAnswer(id, "approved\nafter")
	gateway.checkNoneWithdrawn(t)
}

// A turn that waits for an approval ends, for example because its agent is stopped. The approval is withdrawn, with the
// reason that the turn ended.
func TestParkedTurn_ApprovalIsWithdrawnWhenAgentEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end    func(c client, id string) error
		reason string
	}{
		"stopped": {func(c client, id string) error {
			_, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: id})
			return err
		}, "the agent is stopped"},
		"terminated": {func(c client, id string) error {
			_, err := c.TerminateAgent(c.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: id})
			return err
		}, "the agent has ended"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateway := newApprovalGateway()
			c := newRestartableServiceAt(t, gateway).onBehalfOfUser(t, "ana")
			id := c.createParked()
			gateway.tick(t)
			gateway.fails.Store(true) // so that the withdrawal must be retried
			if err := tt.end(c, id); err != nil {
				t.Fatal(err)
			}
			gateway.checkNoneWithdrawn(t)
			gateway.fails.Store(false)
			gateway.checkWithdrawn(t, tt.reason)
			if n := gateway.runCount(); n != 0 {
				t.Errorf("%d calls ran", n)
			}
		})
	}
}

// The creator of an agent is terminated while the agent waits for an approval. The agent's call is refused, and the
// approval is withdrawn.
func TestParkedTurn_CallIsRefusedWhenCreatorEnds(t *testing.T) {
	t.Parallel()
	gateway := newApprovalGateway()
	l := newRestartableServiceAt(t, gateway)
	rights := toolManifest("t")
	rights.Children = &wasmagentv1.ChildRight{Depth: 1, Count: 1}
	ana := l.onBehalfOfUser(t, "ana")
	maker := ana.create(&wasmagentv1.CreateAgentRequest{Manifest: rights})
	as := rpctest.Principal("default", "agent:default/"+maker)
	as.Owner, as.Chain = "ana", []*identityv1.Principal{rpctest.Principal("default", "ana")}
	id := l.onBehalfOf(t, as).create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")})
	ana.promptUntilParked(id)
	gateway.tick(t)
	if _, err := ana.TerminateAgent(ana.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: maker}); err != nil {
		t.Fatal(err)
	}
	gateway.checkNoneWithdrawn(t)
	l.close()
	l.start()
	ana = l.onBehalfOfUser(t, "ana")
	gateway.checkWithdrawn(t, "an agent in the chain of this agent has ended")
	eventually.Holds(t, "the guest has got the error", func() bool {
		messages := ana.state(id).GetState().GetMessages()
		return len(messages) > 0 && strings.Contains(messages[len(messages)-1].GetContent(), "creator_gone")
	})
	if n := gateway.runCount(); n != 0 {
		t.Errorf("%d calls ran", n)
	}
}

// The wasmagent service panics in a turn that waits for an approval. The agent fails. The agent's state and journal
// contain the reason, and the approval is withdrawn. Afterwards, the agent can be resumed.
func TestParkedTurn_AgentFailsWhenProgramPanics(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"in the process that was prompted", "after a restart"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			gateway := newApprovalGateway()
			var breaks atomic.Bool
			gateway.panics = breaks.Load
			l := newRestartableServiceAt(t, gateway)
			c := l.onBehalfOfUser(t, "ana")
			id := c.createParked()
			gateway.tick(t)
			if name == "after a restart" {
				l.close()
				breaks.Store(true)
				l.start()
				c = l.onBehalfOfUser(t, "ana")
			} else {
				breaks.Store(true)
				select { // makes the next read panic, unless a read has already panicked
				case gateway.ticks <- "waiting for a person's approval":
				case <-time.After(time.Second):
				}
			}
			eventually.Holds(t, "the agent has failed", func() bool {
				return c.state(id).GetInfo().GetState() == wasmagentv1.AgentState_AGENT_STATE_FAILED
			})
			failure := c.state(id).GetInfo().GetFailure()
			if failure.GetCause() != wasmagentv1.FailureCause_FAILURE_CAUSE_INTERNAL || !strings.Contains(failure.GetMessage(), "has a fault: the log of the wasmagent role has the details") || strings.Contains(failure.GetMessage(), "goroutine") {
				t.Errorf("the failure of the agent is %v", failure)
			}
			gateway.checkWithdrawn(t, "has a fault")
			if got := eventWords(c.events(id)); !strings.Contains(got, "parked tool, undone (the agent failed), lifecycle (failed)") {
				t.Errorf("the journal is %s", got)
			}
			_, _, err := c.prompt(id, "say hello")
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_FAILED")
			if _, err := c.ResumeAgent(c.ctx, &wasmagentv1.ResumeAgentRequest{AgentId: id}); err != nil {
				t.Fatal(err)
			}
			if answer := c.mustPrompt(id, "say hello").GetResponse(); answer != "hello" {
				t.Errorf("the resumed agent answers %q", answer)
			}
			c.verifyMatches(id)
		})
	}
}
