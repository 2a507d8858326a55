package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/hosttools"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newApprovalHookGateway starts a gateway that requires an approval for each call that a hook asks about. The approval
// is pending, and the first attempt to claim it succeeds.
func newApprovalHookGateway(t *testing.T) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, "")
	w.hosts, w.MaxSessions = []string{"claude-code", hosttools.Codex}, 40
	w.build()
	w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
	w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING, nil)
	approved := newApproval("tools/call", approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
	used := false
	w.Approvals.Claim = func(*approvalv1.ClaimApprovalRequest) *approvalv1.ClaimApprovalResponse {
		if used {
			refused := &approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, Approval: approved}
			return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Refusal{Refusal: refused}}
		}
		used = true
		stored := &approvalv1.BoundCall{Call: &policyv1.Call{Method: "tools/call", ParamsJson: `{"name":"Bash","arguments":{"command":"make"}}`}}
		return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{Approval: approved, Bound: stored}}}
	}
	return w
}

// held returns an event for a call that may wait up to a minute for approvers.
func held(id string) string { return strings.Replace(bash(id, "make"), "{", `{"hold_ms":60000,`, 1) }

// took sends an event. It returns the verdict, and how long the gateway took to respond.
func (w *testGateway) took(event string) (verdict, time.Duration) {
	w.t.Helper()
	begin := time.Now()
	v := w.hook("claude-code", event)
	return v, time.Since(begin)
}

// Up to 16 of a caller's events may wait for approvers at a time. Further events are denied immediately. When the
// waiting time of the 16 events is over, other events can wait.
func TestHook_HeldCallsUseThePlacesOfTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalHookGateway(t)
		for range 2 {
			var all sync.WaitGroup
			for n := range 16 {
				all.Go(func() {
					if v, took := w.took(held(fmt.Sprint("held-", n))); v.Code != "approval_pending" || took != time.Minute {
						t.Errorf("held: %+v after %v", v, took)
					}
				})
			}
			time.Sleep(59 * time.Second)
			if v, took := w.took(held("")); v.Code != "approval_pending" || took != 0 {
				t.Errorf("one more: %+v after %v", v, took)
			}
			all.Wait()
			time.Sleep(time.Minute) // the ids are forgotten
		}
		if v, took := w.took(held("")); v.Code != "approval_pending" || took != time.Minute {
			t.Errorf("afterwards: %+v after %v", v, took)
		}
	})
}

// If the client closes the connections of its waiting hooks, other events can wait in their place.
func TestHook_DisconnectedCallsAreNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalHookGateway(t)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mcp.example/hook/claude-code", strings.NewReader(held("")))
				if err != nil {
					t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+anaToken)
				req.Header.Set("Content-Type", "application/json")
				if resp, err := w.client.Do(req); err == nil {
					_ = resp.Body.Close()
					t.Errorf("it was answered with %d", resp.StatusCode)
				}
			})
		}
		time.Sleep(time.Second)
		cancel()
		all.Wait()
		synctest.Wait()
		if v, took := w.took(held("")); v.Code != "approval_pending" || took != time.Minute {
			t.Errorf("afterwards: %+v after %v", v, took)
		}
	})
}

// An approval allows a call once. For 30 s after the verdict, an event with the same id is treated as the same call.
// After that, it is treated as a new call.
func TestHook_ApprovedCallIsANewCallAfterItsWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalHookGateway(t)
		time.AfterFunc(10*time.Second, func() { w.Approvals.SetState(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED) })
		first, took := w.took(held("u1"))
		if first.Verdict != "allow" || took != 10*time.Second {
			t.Fatalf("approved: %+v after %v", first, took)
		}
		time.Sleep(29 * time.Second)
		if again := w.hook("claude-code", held("u1")); again != first {
			t.Errorf("within the window: %+v, want %+v", again, first)
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n != 1 {
			t.Errorf("%d intents within the window", n)
		}
		time.Sleep(2 * time.Second)
		if v := w.hook("claude-code", held("u1")); v.Verdict != "deny" || v.Code != "approval_used" {
			t.Errorf("after the window: %+v", v)
		}
	})
}

// After a call is approved, Codex asks about it a second time, with a description. The gateway allows this second event
// once, and only for the approved call.
func TestHook_PermissionIsThatOfTheApprovedCall(t *testing.T) {
	t.Parallel()
	permission := func(old, new string) string {
		event := strings.Replace(bash("", "make"), `"event":"call"`, `"event":"permission"`, 1)
		event = strings.Replace(event, `"input":{`, `"input":{"description":"why",`, 1)
		return strings.Replace(event, old, new, 1)
	}
	for name, tt := range map[string]struct {
		tool, old, new string
		wait           time.Duration
		want           string
	}{
		"with a description":       {want: "allow"},
		"without one":              {old: `"description":"why",`, want: "allow"},
		"another command":          {old: "make", new: "make all", want: "pass"},
		"more arguments":           {old: `"description"`, new: `"workdir":"/","description"`, want: "pass"},
		"another turn":             {old: `"t1"`, new: `"t2"`, want: "pass"},
		"another session":          {old: `"s1"`, new: `"s2"`, want: "pass"},
		"another tool":             {old: `"Bash"`, new: `"apply_patch"`, want: "pass"},
		"late":                     {wait: 10 * time.Minute, want: "pass"},
		"a tool that is not known": {tool: "Rocket", want: "pass"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalHookGateway(t)
				w.Approvals.SetState(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
				of := func(event string) string {
					if tt.tool == "" {
						return event
					}
					return strings.Replace(event, `"Bash"`, `"`+tt.tool+`"`, 1)
				}
				if v := w.hook(hosttools.Codex, of(held("u1"))); v.Verdict != "allow" {
					t.Fatalf("approved: %+v", v)
				}
				time.Sleep(tt.wait)
				if v := w.hook(hosttools.Codex, of(permission(tt.old, tt.new))); v.Verdict != tt.want {
					t.Errorf("%+v, want %s", v, tt.want)
				}
				if v := w.hook(hosttools.Codex, of(permission(tt.old, tt.new))); v.Verdict != "pass" {
					t.Errorf("another time: %+v", v)
				}
			})
		})
	}
}
