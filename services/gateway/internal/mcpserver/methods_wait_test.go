package mcpserver_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// asked contains all methods, other than tools/call, that may need an approval. Each has the name and params of an
// example request.
var asked = map[string]struct{ name, params string }{
	"prompts/get":    {"letter", `"name":"letter","arguments":{"to":"all"}`},
	"resources/read": {"note://plan", `"uri":"note://plan"`},
}

func newApproval(method string, state approvalv1.ApprovalState) *approvalv1.Approval {
	a := newWaitApproval(state)
	a.Method = method
	if state == approvalv1.ApprovalState_APPROVAL_STATE_DENIED {
		a.Code = commonv1.Code_CODE_APPROVAL_DENIED
	}
	return a
}

func forEachMethod(t *testing.T, story func(t *testing.T, method, name, params string)) {
	t.Helper()
	t.Parallel()
	for method, of := range asked {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { story(t, method, of.name, of.params) })
		})
	}
}

// Without a session, requests with the methods in the variable asked wait for approvals in round trips. None of them
// becomes a task.
func TestOtherMethods_WaitInRoundTrips(t *testing.T) {
	forEachMethod(t, func(t *testing.T, method, name, params string) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		waits := newApproval(method, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		waits.Terms = w.Policy.Decision.GetApproval()
		w.Approvals.Set(waits)
		begin := time.Now()
		for n, state := range []string{"", "sluice-leg.1.a-1", "sluice-leg.2.a-1"} {
			sent := params
			if state != "" {
				sent = `"requestState":"` + state + `",` + params
			}
			body, head := modern(method, name, sent)
			body = strings.Replace(body, `"elicitation":{"form":{}}`, `"extensions":{"io.modelcontextprotocol/tasks":{}}`, 1)
			got := w.do("POST", "/mcp/files", strings.Replace(body, `"name":"c"`, `"name":"patient"`, 1), head)
			want := `"result":{"resultType":"input_required","inputRequests":{},"requestState":"sluice-leg.` + string(rune('1'+n)) + `.a-1"`
			if n == 2 {
				want = `"error":{"code":-31403,"message":"Not executed: a person must approve this call. It waits in the list of approvals (` + "`sluice approvals list`" + `): tell your user, so that a person looks there. Make the same request again later: it is carried out once it is approved."`
			}
			if took := time.Since(begin); took != time.Duration(n+1)*35*time.Second || got.status != http.StatusOK || !strings.Contains(got.body, want) || !strings.Contains(got.body, `"code":"approval_pending"`) {
				t.Errorf("leg %d took until %v, and got %d %s", n, took, got.status, got.body)
			}
		}
	})
}

// In a session, a request is held and then refused with a JSON-RPC error. If an approver denies the request, it is
// refused in the same way.
func TestOtherMethods_WaitInSessions(t *testing.T) {
	forEachMethod(t, func(t *testing.T, method, _, params string) {
		w := newTestGateway(t)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
		w.Approvals.Set(newApproval(method, approvalv1.ApprovalState_APPROVAL_STATE_PENDING))
		w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			t.Error("it reached the server")
			return upstream.Answer{}, errBoom
		}
		h, begin := w.connectAs(patient), time.Now()
		request := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `}}`
		if got := w.do("POST", "/mcp/files", request, h); time.Since(begin) != 35*time.Second || !strings.Contains(got.body, `"error":{"code":-31403`) || !strings.Contains(got.body, `"code":"approval_pending"`) || !strings.Contains(got.body, `"approval":{"id":"a-1"`) {
			t.Errorf("after %v: %s", time.Since(begin), got.body)
		}
		w.Approvals.Set(newApproval(method, approvalv1.ApprovalState_APPROVAL_STATE_DENIED))
		if got := w.do("POST", "/mcp/files", request, h); time.Since(begin) != 35*time.Second || !strings.Contains(got.body, `"code":"approval_denied"`) || !strings.Contains(got.body, "denied by ben: too much") {
			t.Errorf("denied, after %v: %s", time.Since(begin), got.body)
		}
	})
}

// Cases A1, A2. The server receives an approved request once, exactly as it was approved.
func TestOtherMethods_RunAsApproved(t *testing.T) {
	forEachMethod(t, func(t *testing.T, method, _, params string) {
		w := newTestGateway(t)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
		approved := newApproval(method, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
		w.Approvals.Set(approved)
		claims := 0
		w.Approvals.Claim = func(req *approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse {
			if claims++; claims > 1 || len(req.GetDefinitionDigest()) > 0 {
				used := &approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, Approval: approved}
				return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: used}}
			}
			stored := &approvalv1.BoundCall{Call: &policyv1.Call{Method: method, ParamsJson: "{ " + params + " }"}}
			return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{Approval: approved, Bound: stored}}}
		}
		var got []string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			got = append(got, string(r.Body()))
			return gatewaytest.Result(r, `{"read":1}`), nil
		}
		h := w.connect()
		request := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `}}`
		if reply := w.do("POST", "/mcp/files", request, h); reply.body != `{"jsonrpc":"2.0","id":7,"result":{"read":1}}` {
			t.Errorf("the client got %s", reply.body)
		}
		if reply := w.do("POST", "/mcp/files", request, h); !strings.Contains(reply.body, `"code":"approval_used"`) {
			t.Errorf("the client got, another time, %s", reply.body)
		}
		if want := `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{ ` + params + ` }}`; len(got) != 1 || got[0] != want {
			t.Errorf("the server got %q, want %s", got, want)
		}
	})
}

// For methods other than tools/call, the user is not asked to confirm the request in a form, even if the policy requires
// an approval, because clients of some revisions cannot wait for the responses to such requests.
func TestOtherMethods_AreNotConfirmedByForm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
		for method, params := range map[string]string{"resources/list": "", "prompts/list": "", "acme/read": ""} {
			if got := w.doModern(method, "", params); !strings.Contains(got.body, `"code":"approval_unavailable"`) {
				t.Errorf("%s: %s", method, got.body)
			}
		}
		in := newTestGateway(t)
		in.Policy.Decision, in.files.Request = w.Policy.Decision, w.files.Request
		in.Approvals.Set(newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED))
		h := in.connect()
		for method, params := range map[string]string{"resources/subscribe": `"uri":"x:y"`, "completion/complete": `"ref":{"type":"ref/prompt","name":"x"}`, "logging/setLevel": `"level":"info"`} {
			if got := in.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"method":"`+method+`","params":{`+params+`}}`, h); !strings.Contains(got.body, `"code":"approval_unavailable"`) {
				t.Errorf("%s: %s", method, got.body)
			}
		}
	})
}
