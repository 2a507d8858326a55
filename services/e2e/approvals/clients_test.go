package approvals_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// approverDelayVariable is the name of an environment variable. Its value is a duration: the minimum time from the
// start of the client's call to the approver's vote. The approver always votes after the refusal that contains the
// approval's id. If the variable is set, calls are held for the default time. Otherwise calls are held for one second,
// and the approver votes immediately after the refusal.
const approverDelayVariable = "SLUICE_PATIENCE"

// externalClient is an MCP client that is not part of the project.
type externalClient interface {
	CallTool(call npmtest.ToolCall) npmtest.Reply
}

// clients contains the official clients, by name. Each function connects a client, which knows only the URL and a
// token.
var clients = map[string]func(t *testing.T, url string) externalClient{
	"TypeScript SDK 1": func(t *testing.T, url string) externalClient {
		return npmtest.StartClientVersion(t, npm.TypeScriptSDK, url, stack.AgentToken)
	},
	"TypeScript SDK 2": func(t *testing.T, url string) externalClient {
		return npmtest.StartClientVersion(t, npm.TypeScriptSDK2, url, stack.AgentToken)
	},
	"inspector": func(t *testing.T, url string) externalClient { return npmtest.NewInspector(t, url, stack.AgentToken) },
}

// approvalCaller is a mesh with a client whose calls need approval.
type approvalCaller struct {
	*rawmesh.Mesh
	client externalClient
}

func paymentCall() npmtest.ToolCall {
	return npmtest.ToolCall{Name: "pay", Arguments: jsontext.Value(`{"sum":12.5}`)}
}

// startCall makes a call and returns the channel that receives its reply.
func (w *approvalCaller) startCall(call npmtest.ToolCall) <-chan npmtest.Reply {
	answered := make(chan npmtest.Reply, 1)
	go func() { answered <- w.client.CallTool(call) }()
	return answered
}

// decideApproval runs `sluice approvals` with a verb such as approve.
func (w *approvalCaller) decideApproval(t *testing.T, verdict, id string, args ...string) {
	t.Helper()
	if ran := w.RunApprovalsJSON(t, append([]string{verdict, id, "--yes"}, args...)...); ran.Code != 0 {
		t.Fatalf("%s: %+v", verdict, ran)
	}
}

// checkPayments fails the test unless the number of payments that the server has received equals the parameter want.
func (w *approvalCaller) checkPayments(t *testing.T, want int) {
	t.Helper()
	if n := len(w.Upstream.Calls("pay")); n != want {
		t.Errorf("%d calls reached the server, want %d", n, want)
	}
}

// runWithEachClient runs a test with every client. Each client has its own mesh.
func runWithEachClient(t *testing.T, approvals string, story func(t *testing.T, w *approvalCaller)) {
	t.Helper()
	t.Parallel()
	for name, connect := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := rawmesh.Start(t, rawmesh.PayPolicy, approvals)
			story(t, &approvalCaller{Mesh: f, client: connect(t, f.MCP("raw"))})
		})
	}
}

// The test approves a call while the gateway holds it. Every official client receives the result.
func TestClients_ReceiveTheResultWithinTheHold(t *testing.T) {
	runWithEachClient(t, "approvals: {hold: 45s}", func(t *testing.T, w *approvalCaller) {
		answered := w.startCall(paymentCall())
		id := w.AwaitOnePending(t)
		w.checkPayments(t, 0)
		w.decideApproval(t, "approve", id)
		if result := (<-answered).ToolResult(t); result.IsError || result.Text() != "ran" {
			t.Errorf("got %+v", result)
		}
		w.checkPayments(t, 1)
	})
}

// The client receives a refusal that contains the approval's id (a ticket). Then an approver approves the call, and the
// client repeats it. The test checks that the call runs once.
func TestClients_RepeatTheCallAfterATicket(t *testing.T) {
	hold, thinks := "approvals: {hold: 1s}", time.Duration(0)
	if text, ok := os.LookupEnv(approverDelayVariable); ok {
		var err error
		if thinks, err = time.ParseDuration(text); err != nil || thinks <= 0 {
			t.Fatalf("%s=%q is not a duration above 0", approverDelayVariable, text)
		}
		hold = ""
	}
	runWithEachClient(t, hold, func(t *testing.T, w *approvalCaller) {
		asked := time.Now()
		ticket := w.client.CallTool(paymentCall()).ToolResult(t)
		if d := stack.DecisionOf(t, ticket); !ticket.IsError || d.Code != "approval_pending" || !d.Retryable {
			t.Fatalf("the ticket is %+v", ticket)
		}
		t.Logf("the ticket came after %v", time.Since(asked).Round(100*time.Millisecond))
		<-time.After(time.Until(asked.Add(thinks)))
		w.checkPayments(t, 0)
		w.decideApproval(t, "approve", w.AwaitOnePending(t))
		t.Logf("approved after %v", time.Since(asked).Round(100*time.Millisecond))
		if result := w.client.CallTool(paymentCall()).ToolResult(t); result.IsError || result.Text() != "ran" {
			t.Errorf("the same call: %+v", result)
		}
		w.checkPayments(t, 1)
		w.AwaitOnlyState(t, "done")
	})
}

// An approver denies a held call. The client receives a tool result with the reason and continues in its session.
func TestClients_ReceiveADenialAsResult(t *testing.T) {
	runWithEachClient(t, "approvals: {hold: 45s}", func(t *testing.T, w *approvalCaller) {
		answered := w.startCall(paymentCall())
		w.decideApproval(t, "deny", w.AwaitOnePending(t), "-m", "too much")
		result := (<-answered).ToolResult(t)
		if d := stack.DecisionOf(t, result); !result.IsError || d.Code != "approval_denied" || !strings.Contains(result.Text(), "too much") {
			t.Errorf("got %+v", result)
		}
		opened := countSessions(w.Mesh)
		if next := w.client.CallTool(npmtest.ToolCall{Name: "safe", Arguments: jsontext.Value(`{}`)}).ToolResult(t); next.IsError || next.Text() != "ran" {
			t.Errorf("the next call: %+v", next)
		}
		if _, perCall := w.client.(*npmtest.Inspector); !perCall && countSessions(w.Mesh) != opened {
			t.Errorf("the client opened another session")
		}
		w.checkPayments(t, 0)
	})
}

func countSessions(f *rawmesh.Mesh) int { return countRequests(f, "initialize") }

// countRequests returns the number of messages with this method that the server has received.
func countRequests(f *rawmesh.Mesh, method string) (n int) {
	for _, r := range f.Upstream.Requests() {
		if r.Method == method {
			n++
		}
	}
	return n
}

// awaitIdle waits until no call is in flight in the mesh's only session. Tests call it after a cancellation.
func awaitIdle(t *testing.T, f *rawmesh.Mesh) {
	t.Helper()
	eventually.Holds(t, "no call is in flight", func() bool {
		resp, err := gatewayv1.NewGatewayServiceClient(f.Operator(t)).ListSessions(t.Context(), new(gatewayv1.ListSessionsRequest))
		return err == nil && len(resp.GetSessions()) == 1 && resp.GetSessions()[0].GetInFlight() == 0
	})
}

// No approver votes in time. The client receives approval_expired, and its next call opens a new approval.
func TestClients_ReceiveApprovalExpired(t *testing.T) {
	runWithEachClient(t, "approvals: {hold: 45s, decide: 1s}", func(t *testing.T, w *approvalCaller) {
		for n := range 2 {
			result := w.client.CallTool(paymentCall()).ToolResult(t)
			if d := stack.DecisionOf(t, result); !result.IsError || d.Code != "approval_expired" {
				t.Errorf("call %d: %+v", n, result)
			}
		}
		found := w.ListApprovals(t, "--all")
		if len(found) != 2 || found[0].State != "expired" || found[1].State != "expired" {
			t.Errorf("the approvals are %v, want two that have expired", found)
		}
		w.checkPayments(t, 0)
	})
}

// The client requests progress notifications and restarts its timeout at each of them. The test checks that the client
// waits longer than the timeout. The inspector is not tested, because its command line can't request progress.
func TestClients_WithProgressWaitBeyondTheirTimeLimit(t *testing.T) {
	t.Parallel()
	for _, version := range []npm.Set{npm.TypeScriptSDK, npm.TypeScriptSDK2} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 60s}")
			w := &approvalCaller{Mesh: f, client: npmtest.StartClientVersion(t, version, f.MCP("raw"), stack.AgentToken)}
			asks := paymentCall()
			asks.Progress, asks.Timeout = true, 15*time.Second
			answered := w.startCall(asks)
			id := w.AwaitOnePending(t)
			<-time.After(22 * time.Second) // longer than the client's timeout; two notifications have arrived, one every 10 s
			w.decideApproval(t, "approve", id)
			reply := <-answered
			if result := reply.ToolResult(t); result.IsError || result.Text() != "ran" {
				t.Errorf("got %+v", result)
			}
			if steps := checkRisingProgress(t, reply.Progress); steps < 2 {
				t.Errorf("%d progress notifications arrived: %s", steps, reply.Progress)
			}
			w.checkPayments(t, 1)
		})
	}
}

// checkRisingProgress returns the number of progress notifications. The test fails unless each progress value is
// greater than the previous one.
func checkRisingProgress(t *testing.T, steps []jsontext.Value) int {
	t.Helper()
	last := 0.0
	for _, step := range steps {
		var at struct {
			Progress float64 `json:"progress"`
		}
		if err := json.Unmarshal(step, &at); err != nil || at.Progress <= last {
			t.Errorf("%s after %v: %v", step, last, err)
		}
		last = at.Progress
	}
	return len(steps)
}

// A client stops waiting for its call before an approver votes. The test checks that the approval stays valid, that the
// approved call does not run by itself, and that the call runs once when the client repeats it.
func TestClients_CallRunsOnceAfterTheyGaveUp(t *testing.T) {
	t.Parallel()
	for _, version := range []npm.Set{npm.TypeScriptSDK, npm.TypeScriptSDK2} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 45s}")
			w := &approvalCaller{Mesh: f, client: npmtest.StartClientVersion(t, version, f.MCP("raw"), stack.AgentToken)}
			hasty, again := paymentCall(), paymentCall()
			hasty.Timeout = time.Second
			hasty.Meta, again.Meta = map[string]any{"claudecode/toolUseId": "toolu_1"}, map[string]any{"claudecode/toolUseId": "toolu_2"}
			if err := w.client.CallTool(hasty).Error; err == nil || !strings.Contains(err.Message, "timed out") {
				t.Fatalf("the client with a time limit of one second received %v", err)
			}
			awaitIdle(t, w.Mesh)
			if n := countRequests(w.Mesh, "notifications/cancelled"); n != 0 {
				t.Errorf("the server received %d cancellations of a call that it never received", n)
			}
			w.decideApproval(t, "approve", w.AwaitOnePending(t))
			w.checkPayments(t, 0)
			if result := w.client.CallTool(again).ToolResult(t); result.IsError || result.Text() != "ran" {
				t.Errorf("the same call: %+v", result)
			}
			w.checkPayments(t, 1)
			if sent := string(w.Upstream.Calls("pay")[0].Body); !strings.Contains(sent, "toolu_2") {
				t.Errorf("the server got %s", sent)
			}
		})
	}
}

// The hold time depends on the client's name. The configuration sets it to zero for the inspector.
func TestClients_HoldTimeDependsOnTheirName(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, `approvals: {hold: 10m, clients: [{name: "*inspector*", hold: 0s}]}`)
	ticket := npmtest.NewInspector(t, f.MCP("raw"), stack.AgentToken).CallTool(paymentCall()).ToolResult(t)
	if d := stack.DecisionOf(t, ticket); !ticket.IsError || d.Code != "approval_pending" {
		t.Errorf("the ticket is %+v", ticket)
	}
}

// Version 2 of the SDK opens a session by default, as version 1 does. If it is configured to negotiate, it sends
// server/discover and opens no session, even though the server supports only revisions that use sessions.
func TestTypeScriptSDK2_OpensASessionUnlessItNegotiates(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	client := npmtest.NewClient(t, npm.TypeScriptSDK2)
	sent := func(reply npmtest.Reply, version string) string {
		t.Helper()
		var session struct {
			ProtocolVersion string `json:"protocolVersion"`
		}
		if reply.Into(t, &session); session.ProtocolVersion != version {
			t.Errorf("the client's protocol version is %+v", session)
		}
		var methods []string
		for _, exchange := range reply.HTTP {
			var m struct {
				Method string `json:"method"`
			}
			if err := json.Unmarshal([]byte(exchange.Sent), &m); err != nil {
				t.Fatal(err)
			}
			methods = append(methods, m.Method)
		}
		return strings.Join(methods, " ")
	}
	if got := sent(client.Connect(f.MCP("raw"), stack.AgentToken), "2025-11-25"); got != "initialize notifications/initialized" {
		t.Errorf("by default the client sends %s", got)
	}
	client.Close()
	if got := sent(client.Negotiate(f.MCP("raw"), stack.AgentToken), "2026-07-28"); got != "server/discover" {
		t.Errorf("to negotiate the client sends %s", got)
	}
	if result := client.CallTool(npmtest.ToolCall{Name: "safe"}).ToolResult(t); result.IsError || len(f.Upstream.Calls("safe")) != 1 {
		t.Errorf("a call after the negotiation: %+v", result)
	}
	for _, r := range f.Records(t) {
		late := r.GetCode() == commonv1.Code_CODE_SESSION_UNKNOWN // the client may request the stream of the closed session after the session has ended
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_REFUSAL && !late {
			t.Errorf("the journal has a refusal of a client that negotiated: %v", r)
		}
	}
}
