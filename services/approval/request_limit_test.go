package approval_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

// request requests an approval for a principal. The response may be a refusal.
func (s *fixture) request(t *testing.T, who *identityv1.Principal, req *approvalv1.RequestApprovalRequest) *approvalv1.RequestApprovalResponse {
	t.Helper()
	req.DecisionId = "d"
	if req.GetDecision() == nil {
		req.Decision = decision()
	}
	resp, err := s.gateway().RequestApproval(onBehalfOf(t, who), req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// checkRateRefusal checks that a refusal names the limit of approval requests and has a time to retry within the
// window.
func checkRateRefusal(t *testing.T, r *approvalv1.Refusal, window time.Duration) {
	t.Helper()
	if left := r.GetRetryAfter().AsDuration(); r.GetCode() != commonv1.Code_CODE_TOO_MANY_PENDING || left <= 0 || left > window ||
		!strings.Contains(r.GetMessage(), "(approvals.max_asked)") {
		t.Errorf("refused with %v", r)
	}
}

// Case X8. A principal makes many calls that differ in the arguments, the server, the tool's definition or the approval
// terms, or cancels each approval and makes the call again. People are asked at most max_asked times.
func TestRequestApproval_AsksPeopleAtMostMaxAskedTimes(t *testing.T) {
	const tries, most = 60, 30
	for name, question := range map[string]func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse{
		"changing definitions": func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse {
			t.Helper()
			call := bound(params)
			call.Call.DefinitionDigest = bytes.Repeat([]byte{byte(n), byte(n >> 8)}, 16)
			return s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: call})
		},
		"changing servers": func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse {
			t.Helper()
			call := bound(params)
			call.ServerIdentity = fmt.Sprint("http http://pay/", n)
			return s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: call})
		},
		"other calls, declined at the agent": func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse {
			t.Helper()
			req := &approvalv1.RequestApprovalRequest{Bound: bound(fmt.Sprintf(`{"arguments":{"n":%d}}`, n)), Decision: decision(selfConfirm), CanConfirm: true}
			resp := s.request(t, bot(), req)
			if asked := resp.GetAsked(); asked.GetConfirm() {
				s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: req.GetBound(), Decision: req.GetDecision(), SelfVote: &approvalv1.SelfVote{ApprovalId: asked.GetApproval().GetId(), Verdict: no}})
			}
			return resp
		},
		"other terms": func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse {
			t.Helper()
			return s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(func(d *policyv1.Decision) { d.RuleDigest = bytes.Repeat([]byte{byte(n)}, 32) })})
		},
		"cancelled": func(t *testing.T, s *fixture, n int) *approvalv1.RequestApprovalResponse {
			t.Helper()
			resp := s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(params)})
			if a := resp.GetAsked().GetApproval(); a != nil {
				if _, err := s.gateway().CancelApproval(onBehalfOf(t, bot()), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "no"}); err != nil {
					t.Fatal(err)
				}
			}
			return resp
		},
	} {
		t.Run(name, func(t *testing.T) {
			forEachStore(t, nil, func(t *testing.T, s *fixture) {
				asked := 0
				var last *approvalv1.Refusal
				for n := range tries {
					if resp := question(t, s, n); resp.GetAsked() != nil {
						asked++
					} else {
						last = resp.GetRefusal()
					}
				}
				if asked != most {
					t.Errorf("asked %d times", asked)
				}
				checkRateRefusal(t, last, time.Hour)
			})
		})
	}
}

// Case X8. An agent makes one call 100 times. The person who uses the agent is asked at most max_asked times. After
// that, only approvers can decide on the call.
func TestRequestApproval_AsksAtTheAgentAtMostMaxAskedTimes(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		confirms := 0
		for range 100 {
			asked := s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(selfConfirm), CanConfirm: true}).GetAsked()
			if asked.GetApproval().GetState() != pending {
				t.Fatalf("the call has %v", asked)
			}
			if asked.GetConfirm() {
				confirms++
			}
		}
		if confirms != 30 {
			t.Errorf("asked %d times", confirms)
		}
		other := bot()
		other.Agent = "other"
		for name, req := range map[string]*approvalv1.RequestApprovalRequest{
			"a client that can't ask":    {Bound: bound(params), Decision: decision(selfConfirm)},
			"terms without self_confirm": {Bound: bound(params), Decision: decision(), CanConfirm: true},
			"terms with a quorum of 2":   {Bound: bound(params), Decision: decision(selfConfirm, func(d *policyv1.Decision) { d.Approval.Quorum = 2 }), CanConfirm: true},
		} {
			if asked := s.request(t, other, req).GetAsked(); asked == nil || asked.GetConfirm() {
				t.Errorf("%s: %v", name, asked)
			}
		}
	})
}

// Case X8. A repeated request for a pending or approved call does not count against max_asked.
func TestRequestApproval_CountsARepeatedCallOnce(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxAsked = 2 }, func(t *testing.T, s *fixture) {
		id := s.ask(t, params).GetApproval().GetId()
		for range 40 {
			s.ask(t, params)
		}
		s.approve(t, "ana", id)
		for range 40 {
			s.ask(t, params)
		}
		if second := s.ask(t, `{"n":1}`); !second.GetOpened() {
			t.Errorf("a second request: %v", second)
		}
		checkRateRefusal(t, s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":2}`)}).GetRefusal(), time.Hour)
		if again := s.ask(t, params).GetApproval(); again.GetId() != id || again.GetState() != approved {
			t.Errorf("the approval of the first call is %v", again)
		}
	})
}

// Case X8. Calls that a grant covers do not count against max_asked. After the limit is reached, a caller makes a claim
// for which approvers would have to be asked again. The claim is refused, and the approval does not change.
func TestClaimApproval_RefusesToAskAgainOverMaxAsked(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxAsked = 1 }, func(t *testing.T, s *fixture) {
		s.approve(t, "ana", s.ask(t, `{"n":0}`, grants).GetApproval().GetId())
		for n := range 3 {
			if a := s.ask(t, fmt.Sprintf(`{"n":%d}`, n+1), grants).GetApproval(); a.GetState() != approved {
				t.Errorf("call %d, which the grant covers: %v", n+1, a)
			}
		}
		a := s.ask(t, `{"n":1}`, grants).GetApproval()
		resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1"))
		if err != nil || resp.GetRefusal().GetLeaseUnused() {
			t.Fatal(resp, err)
		}
		checkRateRefusal(t, resp.GetRefusal(), time.Hour)
		if is := s.get(t, a.GetId()); is.GetVersion() != a.GetVersion() || is.GetState() != approved {
			t.Errorf("the approval is now %v", is)
		}
	})
}

// Case X8. max_asked applies to one tenant, subject and agent, and also to each principal in the delegation chain. A
// request after the time to retry succeeds.
func TestRequestApproval_SucceedsAfterTheTimeToRetry(t *testing.T) {
	const window = 3 * time.Second
	forEachStore(t, func(c *approval.Config) { c.MaxAsked, c.AskedWindow = 2, window }, func(t *testing.T, s *fixture) {
		child, sibling := bot(), bot()
		child.Subject, sibling.Subject = "child", "sibling"
		child.Chain, sibling.Chain = []*identityv1.Principal{bot()}, []*identityv1.Principal{bot()}
		begin := time.Now()
		s.ask(t, `{"n":0}`)
		if s.request(t, child, &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":1}`)}).GetAsked() == nil {
			t.Error("the second request was refused")
		}
		for _, who := range []*identityv1.Principal{bot(), sibling} { // sibling works for bot
			checkRateRefusal(t, s.request(t, who, &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":2}`)}).GetRefusal(), window)
		}
		for name, change := range map[string]func(*identityv1.Principal){
			"another tenant": func(p *identityv1.Principal) { p.Tenant = "acme" }, "another agent": func(p *identityv1.Principal) { p.Agent = "prod" },
		} {
			who := bot()
			change(who)
			if s.request(t, who, &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":2}`)}).GetAsked() == nil {
				t.Errorf("%s was refused", name)
			}
		}
		left := s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":2}`)}).GetRefusal().GetRetryAfter().AsDuration()
		<-time.After(left)
		if resp := s.request(t, bot(), &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":2}`)}); resp.GetAsked() == nil || time.Since(begin) < window {
			t.Errorf("after the retry time of %v, which is %v since the first request: %v", left, time.Since(begin), resp)
		}
	})
}
