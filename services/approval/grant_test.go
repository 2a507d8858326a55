package approval_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

func TestGrant_CoversCallsUntilItIsUsedUp(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		wide := func(d *policyv1.Decision) {
			d.Approval.Grant = &policyv1.Grant{Calls: 2, Within: durationpb.New(time.Hour)}
		}
		first := s.ask(t, `{"n":1}`, wide).GetApproval()
		s.approve(t, "ana", first.GetId())
		var last *approvalv1.ClaimApprovalResponse
		for n := 2; n < 5; n++ {
			a := s.ask(t, fmt.Sprintf(`{"n":%d}`, n), wide).GetApproval()
			if n < 4 && (a.GetState() != approved || a.GetGrantedBy() != first.GetId()) || n == 4 && a.GetState() != pending {
				t.Fatalf("call %d: %v", n, a)
			}
			if n == 4 {
				break
			}
			var err error
			if last, err = s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, fmt.Sprint("c", n), func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(wide) })); err != nil || last.GetClaimed() == nil {
				t.Fatal(last, err)
			}
			if votes := last.GetClaimed().GetVotes(); len(votes) != 1 || votes[0].GetSubject() != "ana" {
				t.Errorf("call %d was allowed by the votes %v", n, votes)
			}
		}
	})
}

// A grant does not cover a call whose approval terms differ from the grant's. The terms may differ even if the decision
// names the same rule, because another matching rule may require approval too.
func TestGrant_CoversNoCallWithOtherTerms(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		wide := func(d *policyv1.Decision) {
			d.Approval.Grant = &policyv1.Grant{Calls: 5, Within: durationpb.New(time.Hour)}
		}
		first := s.ask(t, `{"n":1}`, wide).GetApproval()
		s.approve(t, "ana", first.GetId())
		for name, change := range map[string]func(*policyv1.Decision){
			"a larger quorum":  func(d *policyv1.Decision) { d.Approval.Quorum = 2 },
			"other groups":     func(d *policyv1.Decision) { d.Approval.Approvers = []string{"legal"} },
			"a smaller grant":  func(d *policyv1.Decision) { d.Approval.Grant.Calls = 4 },
			"a shorter time":   func(d *policyv1.Decision) { d.Approval.ExecuteWithin = durationpb.New(time.Minute) },
			"a shorter one":    func(d *policyv1.Decision) { d.Approval.Grant.Within = durationpb.New(time.Minute) },
			"no grant at all":  func(d *policyv1.Decision) { d.Approval.Grant = nil },
			"other conditions": func(d *policyv1.Decision) { d.Approval.Grant.Scope = "other" },
			"another's digest": func(d *policyv1.Decision) { d.RuleDigest = []byte("other") },
		} {
			a := s.ask(t, fmt.Sprintf("{%q:1}", name), wide, change).GetApproval()
			if a.GetState() != pending || a.GetGrantedBy() != "" {
				t.Errorf("%s: %v", name, a)
			}
			if _, err := s.person(t, "operator").CancelApproval(t.Context(), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "x"}); err != nil {
				t.Fatal(err)
			}
		}
		if a := s.ask(t, `{"n":2}`, wide).GetApproval(); a.GetState() != approved || a.GetGrantedBy() != first.GetId() {
			t.Errorf("the same terms: %v", a)
		}
	})
}

// grants adds a grant of five calls to the approval terms of a decision.
func grants(d *policyv1.Decision) {
	d.Approval.Grant = &policyv1.Grant{Calls: 5, Within: durationpb.New(time.Hour), Scope: "s"}
}

// A grant covers only calls of the same caller, server and tool. The server's identity and the tool's definition must
// not change.
func TestGrant_CoversOnlyItsCallerServerAndTool(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		first := s.askAs(t, bot(), `{"n":1}`, nil, grants)
		s.approve(t, "ana", first.GetId())
		who := func(change func(*identityv1.Principal)) *identityv1.Principal {
			p := bot()
			change(p)
			return p
		}
		for name, a := range map[string]*approvalv1.Approval{
			"another subject":    s.askAs(t, who(func(p *identityv1.Principal) { p.Subject = "bot2" }), `{"n":2}`, nil, grants),
			"another agent":      s.askAs(t, who(func(p *identityv1.Principal) { p.Agent = "prod" }), `{"n":3}`, nil, grants),
			"a chain":            s.askAs(t, who(func(p *identityv1.Principal) { p.Chain = []*identityv1.Principal{bot()} }), `{"n":4}`, nil, grants),
			"another server":     s.askAs(t, bot(), `{"n":5}`, func(c *approvalv1.BoundCall) { c.Call.Server = "pay2" }, grants),
			"another identity":   s.askAs(t, bot(), `{"n":6}`, otherServer, grants),
			"another method":     s.askAs(t, bot(), `{"n":7}`, func(c *approvalv1.BoundCall) { c.Call.Method = "prompts/get" }, grants),
			"another tool":       s.askAs(t, bot(), `{"n":8}`, func(c *approvalv1.BoundCall) { c.Call.Name = "payout" }, grants),
			"another definition": s.askAs(t, bot(), `{"n":9}`, otherDefinition, grants),
		} {
			if a.GetState() != pending || a.GetGrantedBy() != "" {
				t.Errorf("%s is covered: %v", name, a)
			}
		}
		if a := s.askAs(t, bot(), `{"n":10}`, nil, grants); a.GetState() != approved || a.GetGrantedBy() != first.GetId() {
			t.Errorf("the same caller, server and tool: %v", a)
		}
	})
}

// A person approves a call with a grant of 3 calls. The grant also covers the pending calls of the same caller and
// tool, the oldest first, until all 3 calls are used.
func TestGrant_CoversPendingCallsWhenGiven(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		wide := func(d *policyv1.Decision) {
			grants(d)
			d.Approval.Grant.Calls = 3
		}
		other := bot()
		other.Agent = "prod"
		earlier := s.askAs(t, bot(), `{"n":1}`, nil, wide)
		voted := s.askAs(t, bot(), `{"n":2}`, nil, wide)
		later := s.askAs(t, bot(), `{"n":3}`, nil, wide)
		beyond := s.askAs(t, bot(), `{"n":4}`, nil, wide)
		strangers := map[string]*approvalv1.Approval{
			"beyond the calls of the grant": beyond,
			"another agent":                 s.askAs(t, other, `{"n":5}`, nil, wide),
			"another tool":                  s.askAs(t, bot(), `{"n":6}`, func(c *approvalv1.BoundCall) { c.Call.Name = "payout" }, wide),
			"a tool with a similar name":    s.askAs(t, bot(), `{"n":7}`, func(c *approvalv1.BoundCall) { c.Call.Name = "payday" }, wide),
			"another server":                s.askAs(t, bot(), `{"n":8}`, func(c *approvalv1.BoundCall) { c.Call.Server = "pay2" }, wide),
			"no grant, for its arguments":   s.askAs(t, bot(), `{"n":9}`, nil),
			"other terms":                   s.askAs(t, bot(), `{"n":10}`, nil, wide, func(d *policyv1.Decision) { d.Approval.Quorum = 2 }),
		}
		s.approve(t, "ana", voted.GetId())
		for name, a := range map[string]*approvalv1.Approval{"the oldest": earlier, "a later one": later} {
			now := s.current(t, a.GetId())
			if now.GetState() != approved || now.GetGrantedBy() != voted.GetId() {
				t.Errorf("%s is not covered: %v", name, now)
			}
			got, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(now, "c"+a.GetId(), func(r *approvalv1.ClaimApprovalRequest) {
				r.Decision, r.DefinitionDigest = decision(wide), now.GetDefinitionDigest()
			}))
			if err != nil || got.GetClaimed() == nil || len(got.GetClaimed().GetVotes()) != 1 || got.GetClaimed().GetVotes()[0].GetSubject() != "ana" {
				t.Errorf("%s is not allowed by ana's vote: %v, %v", name, got, err)
			}
		}
		for name, a := range strangers {
			if now := s.current(t, a.GetId()); now.GetState() != pending || now.GetGrantedBy() != "" {
				t.Errorf("%s is covered: %v", name, now)
			}
		}
	})
}

// A grant does not cover pending calls after a denial, or after a vote that does not complete the quorum.
func TestGrant_CoversNoCallBeforeTheQuorum(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		two := func(d *policyv1.Decision) {
			grants(d)
			d.Approval.Quorum = 2
		}
		waits := s.askAs(t, bot(), `{"n":1}`, nil, two)
		voted := s.askAs(t, bot(), `{"n":2}`, nil, two)
		s.approve(t, "ana", voted.GetId())
		if now := s.current(t, waits.GetId()); now.GetState() != pending {
			t.Errorf("after one vote of two: %v", now)
		}
		one := s.askAs(t, bot(), `{"n":3}`, nil, grants)
		denied := s.askAs(t, bot(), `{"n":4}`, nil, grants)
		if _, err := s.vote(t, "ana", denied.GetId(), approvalv1.Verdict_VERDICT_DENY); err != nil {
			t.Fatal(err)
		}
		if now := s.current(t, one.GetId()); now.GetState() != pending {
			t.Errorf("after a denial: %v", now)
		}
	})
}

func (s *fixture) current(t *testing.T, id string) *approvalv1.Approval {
	t.Helper()
	resp, err := s.person(t, "operator").GetApproval(t.Context(), &approvalv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetApproval()
}
