package wasmagent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// answerOf returns the gateway's answer to a call that policy allows.
func answerOf(text string) *gatewayv1.ToolAnswer {
	return &gatewayv1.ToolAnswer{
		Decision:   &gatewayv1.DecisionInfo{Id: "d-1", Effect: policyv1.Effect_EFFECT_ALLOW},
		ResultJson: fmt.Sprintf(`{"content":[{"type":"text","text":%q}],"structuredContent":{"n":1}}`, text),
	}
}

func refusal(code commonv1.Code, message string) *gatewayv1.ToolAnswer {
	return &gatewayv1.ToolAnswer{
		Decision: &gatewayv1.DecisionInfo{Id: "d-2", Effect: policyv1.Effect_EFFECT_DENY, Code: code, Message: message}, IsError: true,
	}
}

func toolManifest(tools ...string) *wasmagentv1.Manifest {
	m := new(wasmagentv1.Manifest)
	for _, tool := range tools {
		m.Tools = append(m.Tools, &wasmagentv1.ToolRight{Server: "demo", Tool: tool})
	}
	return m
}

// recordedCalls records the calls that a fake gateway receives, and the principals that make them.
type recordedCalls struct {
	mu   sync.Mutex
	by   []*identityv1.Principal
	made []string
}

func (c *recordedCalls) note(ctx context.Context, req *gatewayv1.CallToolRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.by = append(c.by, authn.PrincipalOf(ctx))
	c.made = append(c.made, req.GetServer()+"/"+req.GetTool()+" "+req.GetArgumentsJson())
}

// Case I6. The principal of an agent's call is the agent, and the principal's delegation chain contains the agent's
// creator. A call that the manifest does not allow does not reach the gateway.
func TestCall_HasPrincipalOfAgent(t *testing.T) {
	t.Parallel()
	var seen recordedCalls
	m := newTestServiceWith(t, func(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		seen.note(ctx, req)
		return answerOf("done"), nil
	})
	c := m.onBehalfOfUser(t, "ana")
	manifest := toolManifest("add_*", "counted")
	manifest.Tools[1].Calls = new(int32(1))
	manifest.Tools[1].Conditions = []*wasmagentv1.ArgumentCondition{{Path: "/path", Test: &wasmagentv1.ArgumentCondition_Below{Below: "/srv"}}}
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest})
	answer := c.mustPrompt(id, strings.Join([]string{
		`tool demo add_note {"text":"x"}`, `tool demo delete_note {}`, `tool other add_note {}`,
		`tool demo counted {"path":"/srv/../etc"}`, `tool demo counted {"path":"/srv/a"}`, `tool demo counted {"path":"/srv/a"}`,
	}, "\n")).GetResponse()
	want := "done\nline 2: not_in_manifest: the agent's manifest does not allow this call: delete_note of demo\n" +
		"line 3: not_in_manifest: the agent's manifest does not allow this call: add_note of other\n" +
		"line 4: not_in_manifest: the agent's manifest does not allow this call: counted of demo\ndone\n" +
		"line 6: not_in_manifest: the agent has made as many such calls as its manifest allows: counted of demo"
	if answer != want {
		t.Errorf("the agent answers %q, want %q", answer, want)
	}
	if got := strings.Join(seen.made, "; "); got != `demo/add_note {"text":"x"}; demo/counted {"path":"/srv/a"}` {
		t.Errorf("the gateway got %s", got)
	}
	p := seen.by[0]
	if p.GetSubject() != "agent:default/"+id || p.GetOwner() != "ana" || len(p.GetChain()) != 1 || p.GetChain()[0].GetSubject() != "ana" || p.GetRole() != authv1.TokenRole_TOKEN_ROLE_AGENT {
		t.Errorf("the principal of the call is %v", p)
	}
	operator := m.withToken(t, "operator")
	operatorAgent := operator.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("add_*")})
	operator.mustPrompt(operatorAgent, "tool demo add_note {}")
	if p := seen.by[len(seen.by)-1]; p.GetOwner() == "" || len(p.GetChain()) != 0 {
		t.Errorf("an operator's agent calls as %v", p)
	}
}

// If policy denies a call, the guest receives the reason. If stop_on_denial is set in the manifest, the denial stops
// the agent.
func TestCall_GuestGetsDenial(t *testing.T) {
	t.Parallel()
	m := newTestServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return refusal(commonv1.Code_CODE_DENIED_BY_RULE, "Denied by policy: by people alone."), nil
	})
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")})
	if answer := c.mustPrompt(id, "tool demo t\nsay on").GetResponse(); answer != "line 1: denied_by_rule: Denied by policy: by people alone.\non" {
		t.Errorf("the agent answers %q", answer)
	}
	if denied := c.state(id).GetUsage().GetDenied(); denied != 1 {
		t.Errorf("%d denied calls are counted, want 1", denied)
	}
	strict := toolManifest("t")
	strict.StopOnDenial = true
	id = c.create(&wasmagentv1.CreateAgentRequest{Manifest: strict})
	_, _, err := c.prompt(id, "tool demo t")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_STOPPED")
	if stopped, why := c.stopStatus(id); !stopped || why != wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED {
		t.Errorf("the agent is stopped: %v, with the reason %v", stopped, why)
	}
}

// An operator stops an agent's calls while the agent works on a prompt. At the next call, the prompt fails with the
// operator's reason, even if the guest would continue. After the operator resumes the calls, the agent accepts the next
// prompt.
func TestCall_StopEndsThePrompt(t *testing.T) {
	t.Parallel()
	var stopped atomic.Bool
	m := newTestServiceWith(t, func(_ context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		if stopped.Load() {
			return refusal(commonv1.Code_CODE_STOPPED, "Stopped by an operator: it loops. An operator has stopped all calls of agent coder."), nil
		}
		stopped.Store(req.GetTool() == "last")
		return &gatewayv1.ToolAnswer{ResultJson: `{"content":[{"type":"text","text":"done"}]}`}, nil
	})
	c := m.onBehalfOfUser(t, "ana")
	id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t", "last")})
	c.mustPrompt(id, "tool demo t")
	before := c.state(id)
	_, _, err := c.prompt(id, "tool demo last\ntool demo t\nsay on")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "CALLS_STOPPED")
	if err == nil || !strings.Contains(err.Error(), "Stopped by an operator: it loops.") || !strings.Contains(err.Error(), "sluice agents events") {
		t.Errorf("%v", err)
	}
	after := c.state(id)
	if isStopped, _ := c.stopStatus(id); isStopped || len(after.GetState().GetMessages()) != len(before.GetState().GetMessages()) {
		t.Errorf("the agent is %v, stopped: %t", after.GetState(), isStopped)
	}
	stopped.Store(false)
	if answer := c.mustPrompt(id, "tool demo t\nsay on").GetResponse(); !strings.HasSuffix(answer, "on") {
		t.Errorf("after the calls were resumed, the agent answers %q", answer)
	}
}

// If a call was not sent, the guest receives the reason, and the call is not counted. If a call fails in any other way,
// the guest receives outcome_unknown, and the call is counted.
func TestCall_GuestGetsReasonOfFailure(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want string
	}{
		"refused":             {&rpc.Error{Code: codes.InvalidArgument, Reason: "JSON_INVALID", Err: errors.New("the arguments are no JSON object")}, "line 1: json_invalid: the arguments are no JSON object"},
		"answer too large":    {status.Error(codes.ResourceExhausted, "the answer is larger than it may be"), "outcome_unknown"},
		"gateway unavailable": {status.Error(codes.Unavailable, "gone"), "outcome_unknown: the outcome of the call is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTestServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) { return nil, tt.err })
			c := m.onBehalfOfUser(t, "ana")
			manifest := toolManifest("t")
			manifest.Tools[0].Calls = new(int32(1))
			id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest})
			if answer := c.mustPrompt(id, "tool demo t").GetResponse(); !strings.Contains(answer, tt.want) || strings.Contains(answer, "gone") {
				t.Errorf("the agent answers %q, want %q", answer, tt.want)
			}
			second := c.mustPrompt(id, "tool demo t").GetResponse()
			if spent := strings.Contains(second, "as many such calls"); spent != (name != "refused") {
				t.Errorf("the agent answers a second prompt with %q", second)
			}
		})
	}
}

// A call that ran or may have run is counted, even if there is no usable answer.
func TestCall_IsCountedWhenItMayHaveRun(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]*gatewayv1.ToolAnswer{
		"timeout":          refusal(commonv1.Code_CODE_UPSTREAM_TIMEOUT, "the server did not answer in time"),
		"no usable answer": refusal(commonv1.Code_CODE_OUTCOME_UNKNOWN, "no usable answer"),
		"too large":        {Decision: &gatewayv1.DecisionInfo{Id: "d"}, TooLarge: true},
		"no result":        {Decision: &gatewayv1.DecisionInfo{Id: "d"}, ResultJson: "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newTestServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) { return answer, nil })
			c := m.onBehalfOfUser(t, "ana")
			manifest := toolManifest("t")
			manifest.StopOnDenial, manifest.Tools[0].Calls = true, new(int32(1))
			id := c.create(&wasmagentv1.CreateAgentRequest{Manifest: manifest})
			if text := c.mustPrompt(id, "tool demo t").GetResponse(); !strings.HasPrefix(text, "line 1: ") {
				t.Errorf("the agent answers %q", text)
			}
			_, _, err := c.prompt(id, "tool demo t")
			rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_STOPPED") // because the calls in its manifest are used up
		})
	}
}

// More agents wait for approvals than there are slots. Another agent can nevertheless run a prompt, because waiting
// agents hold no slots. After the calls are approved, the waiting agents continue without their callers.
func TestApproval_WaitingAgentsHoldNoSlots(t *testing.T) {
	t.Parallel()
	decided := make(chan struct{})
	m := newTestServiceWith(t, func(ctx context.Context, req *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		if req.GetApprovalId() == "" {
			asked := refusal(commonv1.Code_CODE_APPROVAL_PENDING, "a person was asked")
			asked.Decision.Approval = &gatewayv1.ApprovalInfo{Id: "a-1"}
			return asked, nil
		}
		select {
		case <-decided:
			return answerOf("approved"), nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	c := m.onBehalfOfUser(t, "ana")
	const parked = 8 // more agents than can work at the same time
	ids := make([]string, parked)
	for i := range ids {
		ids[i] = c.create(&wasmagentv1.CreateAgentRequest{Manifest: toolManifest("t")})
		answer := c.mustPrompt(ids[i], "tool demo t\nsay after")
		if answer.GetFinished() || answer.GetWaiting().GetApprovalId() != "a-1" || answer.GetState() != wasmagentv1.AgentState_AGENT_STATE_WAITING {
			t.Fatalf("the prompt of agent %d ends with %v", i, answer)
		}
	}
	_, _, err := c.prompt(ids[0], "say hello")
	rpctest.WantStatus(t, err, codes.Aborted, "AGENT_BUSY")
	other := c.create(&wasmagentv1.CreateAgentRequest{})
	if answer := c.mustPrompt(other, "say hello").GetResponse(); answer != "hello" {
		t.Errorf("another agent answers %q", answer)
	}
	if _, err := c.StopAgent(c.ctx, &wasmagentv1.StopAgentRequest{AgentId: ids[1]}); err != nil {
		t.Error(err)
	}
	close(decided)
	for i, id := range ids {
		if i == 1 {
			continue
		}
		eventually.Holds(t, "the agent has answered", func() bool {
			messages := c.state(id).GetState().GetMessages()
			return messages[len(messages)-1].GetContent() == "approved\nafter"
		})
	}
	if stopped, why := c.stopStatus(ids[1]); !stopped || why != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
		t.Errorf("the agent that was stopped meanwhile: %v, %v", stopped, why)
	}
}

// Case I6. An agent can create only agents whose rights are within its own manifest. It can't prompt itself or an agent
// in its delegation chain.
func TestCreateAgent_ByAgentStaysWithinManifest(t *testing.T) {
	t.Parallel()
	m := newTestServiceWith(t, func(context.Context, *gatewayv1.CallToolRequest) (*gatewayv1.ToolAnswer, error) {
		return answerOf("done"), nil
	})
	ana := m.onBehalfOfUser(t, "ana")
	acts := func(id string, chain ...*identityv1.Principal) (client, *identityv1.Principal) {
		p := rpctest.Principal("default", "agent:default/"+id)
		p.Owner, p.Chain = "ana", chain
		bare := rpctest.Principal("default", "agent:default/"+id)
		return m.onBehalfOf(t, p), bare
	}
	root := rpctest.Principal("default", "ana")
	parent := toolManifest("t")
	parent.Children = &wasmagentv1.ChildRight{Depth: 2, Count: 2}
	first := ana.create(&wasmagentv1.CreateAgentRequest{Manifest: parent})
	asFirst, firstBare := acts(first, root)
	child := toolManifest("t", "more")
	child.Children = &wasmagentv1.ChildRight{Depth: 1, Count: 5}
	second := asFirst.create(&wasmagentv1.CreateAgentRequest{Manifest: child})
	asSecond, _ := acts(second, firstBare, root)
	third := asSecond.create(&wasmagentv1.CreateAgentRequest{})
	asThird, _ := acts(third, rpctest.Principal("default", "agent:default/"+second), firstBare, root)
	_, err := asThird.CreateAgent(asThird.ctx, &wasmagentv1.CreateAgentRequest{})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "MANIFEST_TOO_WIDE")
	_, err = asSecond.CreateAgent(asSecond.ctx, &wasmagentv1.CreateAgentRequest{})
	rpctest.WantStatus(t, err, codes.PermissionDenied, "MANIFEST_TOO_WIDE") // the first agent has its maximum of two descendants
	_, _, err = asSecond.prompt(second, "say hello")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_CYCLE")
	_, _, err = asSecond.prompt(first, "say hello")
	rpctest.WantStatus(t, err, codes.FailedPrecondition, "AGENT_CYCLE")
	answer := asFirst.mustPrompt(second, "tool demo t\ntool demo more").GetResponse()
	if want := "done\nline 2: not_in_manifest"; !strings.HasPrefix(answer, want) {
		t.Errorf("the agent makes a call that its creator may not make: %q, want %q", answer, want)
	}
	if _, err := ana.TerminateAgent(ana.ctx, &wasmagentv1.TerminateAgentRequest{AgentId: first}); err != nil {
		t.Fatal(err)
	}
	if answer := ana.mustPrompt(second, "tool demo t").GetResponse(); !strings.Contains(answer, "creator_gone") {
		t.Errorf("after the end of its creator the agent answers %q", answer)
	}
}
