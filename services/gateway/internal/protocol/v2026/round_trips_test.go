package v2026_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
)

// inState returns a call that contains the given requestState. If state is empty, the call contains no requestState.
func (a address) inState(state string) gatewaytest.Message {
	if state == "" {
		return patient(a.call("safe", ""))
	}
	return patient(a.call("safe", `"requestState":"`+state+`"`))
}

// A call waits for its approval in round trips. In each round trip, the gateway holds the call for the configured time.
// After the last round trip, the call is refused with the approval's id.
func TestRoundTrips_CallWaitsForItsApproval(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.RequireApproval("safe")
		g.Do(at.call("safe", "")) // makes the server known
		begin, state := time.Now(), ""
		for n := range 3 {
			got := g.Do(at.inState(state))
			if took := time.Since(begin); took != time.Duration(n+1)*35*time.Second || got.Code() != "approval_pending" {
				t.Errorf("round trip %d ended after %v: %s", n, took, got.Text)
			}
			state = fmt.Sprintf("sluice-leg.%d.a-1", n+1)
			want := `"result":{"resultType":"input_required","inputRequests":{},"requestState":"` + state + `"`
			if goesOn := strings.Contains(got.Text, want); goesOn != (n < 2) || !goesOn && !strings.Contains(got.Text, `"isError":true`) {
				t.Errorf("round trip %d: %s", n, got.Text)
			}
		}
		if len(g.Files().Requests()) != 0 {
			t.Errorf("the server got %q", g.Files().Requests())
		}
	})
}

func TestRoundTrips_CallRunsWhenItIsApproved(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.RequireApproval("safe")
		g.Do(at.call("safe", ""))
		g.Do(at.inState(""))
		go func() {
			time.Sleep(5 * time.Second)
			g.Approve(`{"name":"safe"}`)
		}()
		begin := time.Now()
		got := g.Do(at.inState("sluice-leg.1.a-1"))
		if got.Code() != "" || !strings.Contains(got.Text, `"content":[]`) || time.Since(begin) > 5*time.Second {
			t.Errorf("after %v: %s", time.Since(begin), got.Text)
		}
		if sent := last(g.Files()); strings.Contains(sent, "sluice-leg") || strings.Contains(sent, "requestState") {
			t.Errorf("the server got %s", sent)
		}
	})
}

// If a call does not come from a client, it does not wait in round trips, because no further round trip would follow.
// If the gateway does not hold the client's calls, the client receives the approval's id immediately.
func TestRoundTrips_NeedAClientThatIsHeld(t *testing.T) {
	t.Parallel()
	forEachAddress(t, []string{"sampling/createMessage"}, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.RequireApproval("safe")
		held := 35 * time.Second
		inside := patient(at.call("safe", ""))
		inside.Hold = &held
		texts := map[string]string{
			"a caller inside":    string(g.Inside(inside, nil).Joined),
			"a client not held":  g.Do(at.call("safe", "")).Text,
			"answers to servers": g.Do(patient(at.call("safe", `"inputResponses":{"a":{}}`))).Text,
			"a server's state":   g.Do(patient(at.call("safe", `"requestState":"of the server"`))).Text,
		}
		for name, text := range texts {
			if gatewaytest.CodeOf(text) != "approval_pending" || strings.Contains(text, "sluice-leg") || !strings.Contains(text, `"id":"a-1"`) {
				t.Errorf("%s: %s", name, text)
			}
		}
	})
}

// Cases A2, A3. A requestState does not authorize a call. It only contains the id of an approval, and only the caller
// that has requested the approval can use it.
func TestRoundTrips_StateThatTheGatewayHasNotGivenIsRefused(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.RequireApproval("safe")
		for state, want := range map[string]string{
			"sluice-leg.":       "the requestState was not issued by this gateway",
			"sluice-leg.1":      "the requestState was not issued by this gateway",
			"sluice-leg.1.":     "the requestState was not issued by this gateway",
			"sluice-leg.x.a-1":  "the requestState was not issued by this gateway",
			"sluice-leg.0.a-1":  "the requestState was not issued by this gateway",
			"sluice-leg.3.a-1":  "the requestState was not issued by this gateway",
			"sluice-leg.01.a-1": "the requestState was not issued by this gateway",
			"sluice-leg.+1.a-1": "the requestState was not issued by this gateway",
			"sluice-leg.1." + strings.Repeat("a", 129): "the requestState was not issued by this gateway",
			"sluice-leg.1." + strings.Repeat("a", 128): "this caller has no such approval",
			"sluice-leg.1.a-2":                         "this caller has no such approval",
			`\u0073luice-leg.2.a-2`:                    "this caller has no such approval",
		} {
			begin := time.Now()
			if got := g.Do(at.inState(state)); !strings.Contains(got.Text, want) || time.Since(begin) != 0 {
				t.Errorf("%s: %s", state, got.Text)
			}
		}
		if got := g.Do(at.inState("sluice-leg.1.a-1").From("ben")); !strings.Contains(got.Text, "this caller has no such approval") {
			t.Errorf("another caller: %s", got.Text)
		}
		for _, responses := range []string{`{"a":{}}`, `{ }`} {
			if got := g.Do(at.inState("sluice-leg.1.a-1").Replace(`"requestState"`, `"inputResponses":`+responses+`,"requestState"`)); !strings.Contains(got.Text, "nothing was asked, so there is nothing to answer") {
				t.Errorf("with answers %s: %s", responses, got.Text)
			}
		}
		if got := g.Do(at.inState("sluice-leg.1.a-1").Replace(`"requestState"`, `"inputResponses":{},"requestState"`)); !strings.Contains(got.Text, "sluice-leg.2.a-1") {
			t.Errorf("with no answers: %s", got.Text)
		}
		if len(g.Files().Requests()) != 0 {
			t.Errorf("the server got %q", g.Files().Requests())
		}
	})
}

func TestRoundTrips_UsedApprovalIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		g.Approvals.Set(&approvalv1.Approval{Id: "a-1", State: approvalv1.ApprovalState_APPROVAL_STATE_DONE, Code: commonv1.Code_CODE_APPROVAL_USED, Server: "files", Method: "tools/call", Name: "safe"})
		if got := g.Do(address{"files", ""}.inState("sluice-leg.1.a-1")); got.Code() != "approval_used" {
			t.Errorf("%s", got.Text)
		}
	})
}

// A requestState that the server has created is forwarded to the server unchanged.
func TestRoundTrips_StateOfTheServerPasses(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]address{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t)
				for _, state := range []string{`"of the server"`, `"sluice"`, `"sluice-le"`, `{"a":1}`, `7`} {
					if got := g.Do(at.call("safe", `"requestState":`+state)); got.Code() != "" && state[0] == '"' {
						t.Errorf("%s: %s", state, got.Text)
					}
					if sent := last(g.Files()); state[0] == '"' && !strings.Contains(sent, `"requestState":`+state) {
						t.Errorf("%s: the server got %s", state, sent)
					}
				}
			})
		})
	}
}
