package agents_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// approvalWait is the name of an environment variable. Its value is a duration, by which the test delays the approval
// of the agent's call. If the variable is not set, the test is skipped. If the duration is longer than 10 s, the
// gateway sends several progress notifications before the approval.
const approvalWait = "SLUICE_APPROVAL_WAIT"

// parkAgent creates an agent, prompts it to make a call that needs approval, and returns the agent's id.
func (a *agentMesh) parkAgent(t *testing.T) string {
	t.Helper()
	id := textBetween(t, a.callAgentTool(t, "create", `{"manifest":{"files":{"bytes":1000,"count":1},"tools":[{"server":"raw","tool":"pay"}]}}`), `"id":"`, `"`)
	parked := a.callAgentTool(t, "prompt", fmt.Sprintf(`{"agentId":%q,"input":"tool raw pay {\"sum\":12.5}\nsay after"}`, id))
	if !strings.Contains(parked, `"finished":false`) || !strings.Contains(parked, `"waitingFor":"approval"`) {
		t.Fatalf("the prompt ends with %s", parked)
	}
	return id
}

// checkRunsOnce checks that the agent finishes its turn and that the call it makes runs exactly once.
func (a *agentMesh) checkRunsOnce(t *testing.T, id string) {
	t.Helper()
	agent := fmt.Sprintf(`{"agentId":%q}`, id)
	eventually.Holds(t, "the agent has answered", func() bool { return strings.Contains(a.callAgentTool(t, "state", agent), `paid\nafter`) })
	if n := len(a.upstream.Calls("pay")); n != 1 {
		t.Errorf("%d calls reached the server", n)
	}
	if proof := a.callAgentTool(t, "verify", agent); !strings.Contains(proof, `"verification":"matches"`) {
		t.Errorf("the verification reports %s", proof)
	}
}

// answerWithProgress returns a handler that sends two progress notifications and then the result of the call.
func answerWithProgress(t *testing.T, up *rawmcp.Server) rawmcp.Answer {
	t.Helper()
	return func(w http.ResponseWriter, _ *http.Request, id string) {
		calls := up.Calls("pay")
		body := calls[len(calls)-1].Body
		var call struct {
			Params struct {
				Meta struct {
					Token json.RawMessage `json:"progressToken"`
				} `json:"_meta"`
			} `json:"params"`
		}
		if err := json.Unmarshal(body, &call); err != nil || len(call.Params.Meta.Token) == 0 {
			t.Errorf("the call %s has no progress token: %v", body, err)
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 2 {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":\"paying\"}}\n\n", call.Params.Meta.Token, n+1)
		}
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[{\"type\":\"text\",\"text\":\"paid\"}]}}\n\n", id)
	}
}

// An agent's call is approved after the prompt has returned. The server sends progress notifications before the result
// of the call. The test checks that the agent's turn does not end before the result arrives, that the call runs once,
// and that the agent receives the result.
func TestAgents_ProgressAfterThePromptDoesNotEndTheTurn(t *testing.T) {
	t.Parallel()
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			a.upstream.SetAnswer("pay", answerWithProgress(t, a.upstream))
			id := a.parkAgent(t)
			a.approveAll(t)
			a.checkRunsOnce(t, id)
		})
	}
}

// An agent's call is approved after the gateway has sent several progress notifications. The test checks that the call
// runs once.
func TestAgents_CallRunsOnceWhenApprovedLongAfterThePrompt(t *testing.T) {
	t.Parallel()
	wait, err := time.ParseDuration(os.Getenv(approvalWait))
	if err != nil {
		t.Skipf("%s is not set: it holds the time that the agent waits for the approval", approvalWait)
	}
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			a.upstream.SetAnswer("pay", answerWithProgress(t, a.upstream))
			id := a.parkAgent(t)
			select {
			case <-time.After(wait):
			case <-t.Context().Done():
			}
			a.approveAll(t)
			a.checkRunsOnce(t, id)
		})
	}
}

// The test stops or terminates an agent whose call waits for approval. It expects that the approval is cancelled, that
// the reason for this says what happened to the agent, that a later vote is refused with the same reason, and that the
// call does not run.
func TestAgents_ApprovalIsCancelledWhenTheAgentStops(t *testing.T) {
	t.Parallel()
	for name, start := range agentMeshStarters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t)
			client := approvalv1.NewApprovalServiceClient(a.dialRole(authv1.Role_ROLE_APPROVAL))
			for tool, want := range map[string]string{"stop": "the agent is stopped", "terminate": "the agent has ended"} {
				id := a.parkAgent(t)
				list, err := client.ListApprovals(stack.TimeoutContext(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{States: []approvalv1.ApprovalState{approvalv1.ApprovalState_APPROVAL_STATE_PENDING}}})
				if err != nil || len(list.GetApprovals()) != 1 {
					t.Fatalf("the pending approvals are %v, %v", list, err)
				}
				approval := list.GetApprovals()[0].GetId()
				view, err := client.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: approval, View: true})
				if err != nil {
					t.Fatal(err)
				}
				a.callAgentTool(t, tool, fmt.Sprintf(`{"agentId":%q}`, id))
				var shown *approvalv1.Approval
				eventually.Holds(t, "the approval is cancelled", func() bool {
					resp, err := client.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: approval})
					shown = resp.GetApproval()
					return err == nil && shown.GetState() == approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED
				})
				if !strings.Contains(shown.GetReason(), "the agent no longer waits for the call, so the call would not run: "+want) {
					t.Errorf("the approval is cancelled because %q", shown.GetReason())
				}
				_, err = client.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{
					ApprovalId: approval, Verdict: approvalv1.Verdict_VERDICT_APPROVE, ViewDigest: view.GetView().GetDigest(),
				})
				if status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the call would not run: "+want) {
					t.Errorf("the vote is refused with %v", err)
				}
			}
			if n := len(a.upstream.Calls("pay")); n != 0 {
				t.Errorf("%d calls reached the server", n)
			}
		})
	}
}
