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

// newRoundTripGateway returns a gateway whose clients use no sessions. In each round trip, the gateway holds a call of
// the client "patient" for 35 s while the call waits for an approval.
func newRoundTripGateway(t *testing.T, state approvalv1.ApprovalState) *testGateway {
	t.Helper()
	w := newModernGateway(t)
	w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
	w.setRoundTripApproval(state, nil)
	w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
		t.Error("it reached the server")
		return upstream.Answer{}, errBoom
	}
	return w
}

// setRoundTripApproval sets the approval for calls to a gateway that newRoundTripGateway has returned. The function
// change may modify the approval first, or be nil.
func (w *testGateway) setRoundTripApproval(state approvalv1.ApprovalState, change func(*approvalv1.Approval)) {
	a := newWaitApproval(state)
	a.Terms = &policyv1.ApprovalTerms{Quorum: 1}
	if change != nil {
		change(a)
	}
	w.Approvals.Set(a)
}

func (w *testGateway) callWithState(state string) httpResponse {
	w.t.Helper()
	params := `"name":"safe"`
	if state != "" {
		params = `"requestState":"` + state + `",` + params
	}
	body, head := modern("tools/call", "safe", params)
	return w.do("POST", "/mcp/files", strings.Replace(body, `"name":"c"`, `"name":"patient"`, 1), head)
}

// A call without a session waits for its approval in round trips. Before clients would time out, the call is refused,
// and the refusal contains the approval's id. The server never receives the call.
func TestRoundTrips_CallWaitsForItsApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		begin, state := time.Now(), ""
		for n, next := range []string{"sluice-leg.1.a-1", "sluice-leg.2.a-1"} {
			got := w.callWithState(state)
			if took := time.Since(begin); took != time.Duration(n+1)*35*time.Second || got.status != http.StatusOK {
				t.Errorf("leg %d took until %v, and got %d", n, took, got.status)
			}
			want := `"result":{"resultType":"input_required","inputRequests":{},"requestState":"` + next + `"`
			if !strings.Contains(got.body, want) || !strings.Contains(got.body, `"code":"approval_pending"`) {
				t.Errorf("leg %d got %s", n, got.body)
			}
			state = next
		}
		if got := w.callWithState(state); !strings.Contains(got.body, `"isError":true`) || !strings.Contains(got.body, `"code":"approval_pending"`) {
			t.Errorf("the last leg got %s", got.body)
		}
	})
}

// A call waits for its approval in a second round trip. As soon as an approver has decided on the approval, the call is
// answered.
func TestRoundTrips_AnswerWhenTheApprovalIsDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		begin := time.Now()
		w.callWithState("")
		go func() {
			time.Sleep(5 * time.Second)
			denied := newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_DENIED)
			denied.Code = commonv1.Code_CODE_APPROVAL_DENIED
			w.Approvals.Set(denied)
		}()
		if got := w.callWithState("sluice-leg.1.a-1"); time.Since(begin) != 40*time.Second || !strings.Contains(got.body, `"code":"approval_denied"`) || !strings.Contains(got.body, "denied by ben") {
			t.Errorf("after %v: %s", time.Since(begin), got.body)
		}
	})
}

// Cases A2, A3. A requestState does not authorize a call. A requestState that the gateway has not created is refused.
// If a requestState contains the id of another caller's approval, the refusal says that the approval is unknown. If it
// contains the id of a used approval, the refusal says that the approval was used.
func TestRoundTrips_RequestStateAllowsNothing(t *testing.T) {
	t.Parallel()
	const waits, done = approvalv1.ApprovalState_APPROVAL_STATE_PENDING, approvalv1.ApprovalState_APPROVAL_STATE_DONE
	for name, tt := range map[string]struct {
		state string
		now   approvalv1.ApprovalState
		says  string
	}{
		"no count":             {"sluice-leg.x.a-1", waits, `"code":-32602`},
		"no leg before":        {"sluice-leg.0.a-1", waits, `"code":-32602`},
		"too many":             {"sluice-leg.3.a-1", waits, `"code":-32602`},
		"no approval":          {"sluice-leg.1.", waits, `"code":-32602`},
		"a long one":           {"sluice-leg.1." + strings.Repeat("a", 129), waits, `"code":-32602`},
		"with another sign":    {"sluice-leg.+1.a-1", waits, `"code":-32602`},
		"another caller's":     {"sluice-leg.1.a-2", waits, "this caller has no such approval"},
		"written in escapes":   {`\u0073luice-leg.1.a-2`, waits, "this caller has no such approval"},
		"it has run meanwhile": {"sluice-leg.1.a-1", done, `"code":"approval_used"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newRoundTripGateway(t, tt.now)
				w.setRoundTripApproval(tt.now, func(a *approvalv1.Approval) {
					a.Code = map[approvalv1.ApprovalState]commonv1.Code{done: commonv1.Code_CODE_APPROVAL_USED}[tt.now]
				})
				begin := time.Now()
				if got := w.callWithState(tt.state); !strings.Contains(got.body, tt.says) || time.Since(begin) != 0 {
					t.Errorf("after %v: %s", time.Since(begin), got.body)
				}
			})
		})
	}
}

// The server receives a requestState that the server itself has created, but not a requestState that the gateway has
// created.
func TestRoundTrips_RequestStateOfServersPasses(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]bool{"sluice": true, "of the server": true, "sluice-leg.1.a-1": false} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t)
				w.Approvals.Set(newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED))
				var got string
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					got = string(r.Body())
					return gatewaytest.Result(r, `{"content":[],"resultType":"complete"}`), nil
				}
				if answered := w.callWithState(state); answered.status != http.StatusOK || strings.Contains(got, state) != want || !strings.Contains(got, `"params":{"_meta":`) {
					t.Errorf("the server got %s, and the client %s", got, answered.body)
				}
			})
		})
	}
}

// A call that contains inputResponses and needs an approval does not wait in round trips, because the client would not
// repeat the inputResponses. The call is refused, and the refusal contains the approval's id.
func TestRoundTrips_InputResponsesAreNotLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		w.Policy.Access.Methods = []string{"sampling/createMessage"}
		for _, more := range []string{`"inputResponses":{"a":{}},`, `"requestState":"of the server",`} {
			body, head := modern("tools/call", "safe", more+`"name":"safe"`)
			got := w.do("POST", "/mcp/files", strings.Replace(body, `"name":"c"`, `"name":"patient"`, 1), head)
			if !strings.Contains(got.body, `"isError":true`) || strings.Contains(got.body, "sluice-leg") {
				t.Errorf("%s: %s", more, got.body)
			}
		}
		for more, want := range map[string]string{`"inputResponses":{},`: "sluice-leg.2.a-1", `"inputResponses":{"a":{}},`: "nothing was asked"} {
			body, head := modern("tools/call", "safe", more+`"requestState":"sluice-leg.1.a-1","name":"safe"`)
			if got := w.do("POST", "/mcp/files", strings.Replace(body, `"name":"c"`, `"name":"patient"`, 1), head); !strings.Contains(got.body, want) {
				t.Errorf("an answer to nothing, %s: %s", more, got.body)
			}
		}
	})
}
