package approval_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// completeCall approves and claims a call, and completes it with an outcome.
func (s *fixture) completeCall(t *testing.T, id, claim string, outcome approvalv1.CallOutcome, change ...func(*policyv1.Decision)) {
	t.Helper()
	s.approve(t, "ana", id)
	asked := claimRequest(s.get(t, id), claim, func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(change...) })
	if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), asked); err != nil || resp.GetClaimed() == nil {
		t.Fatal(resp, err)
	}
	if _, err := s.gateway().CompleteClaim(timeoutContext(t), &approvalv1.CompleteClaimRequest{ApprovalId: id, ClaimId: claim, Holder: "gw-1", Outcome: outcome}); err != nil {
		t.Fatal(err)
	}
}

// A person sees a view, and then another call to the tool runs. That changes only the comparison in the view, so the
// person's vote still counts.
func TestDecideApproval_AcceptsAViewWithAnOlderComparison(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		one, two := s.ask(t, `{"n":1}`).GetApproval().GetId(), s.ask(t, `{"n":2}`).GetApproval().GetId()
		shown := s.view(t, "ana", two)
		s.completeCall(t, one, "c1", approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		if now := s.view(t, "ana", two); now.GetPreviousApprovalId() != one || now.GetChangesTotal() != 1 {
			t.Errorf("the view is compared with %v", now)
		}
		resp, err := s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: two, Verdict: yes, ViewDigest: shown.GetDigest()})
		if err != nil || resp.GetApproval().GetState() != approved {
			t.Errorf("a vote on the older view: %v, %v", resp, err)
		}
	})
}

// A call has an unknown outcome. The view of an equal call warns of this until an operator has resolved the outcome.
func TestView_WarnsOfAnEqualCallWithUnknownOutcome(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		lost, other := s.ask(t, params).GetApproval().GetId(), s.ask(t, `{"n":1}`).GetApproval().GetId()
		s.completeCall(t, lost, "c1", approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN)
		again := s.ask(t, params).GetApproval().GetId()
		warns := func(id string) bool {
			return slices.ContainsFunc(s.view(t, "ana", id).GetWarnings(), func(w string) bool {
				return strings.Contains(w, lost) && strings.HasSuffix(w, "its outcome is not known: it may have run already.")
			})
		}
		if again == lost || !warns(again) || warns(other) || warns(lost) {
			t.Errorf("the view warns for an equal call: %v, for another call: %v, for the lost call: %v", warns(again), warns(other), warns(lost))
		}
		resolve := &approvalv1.ResolveOutcomeRequest{ApprovalId: lost, Resolution: approvalv1.Resolution_RESOLUTION_DONE, Comment: "seen at the server"}
		if _, err := s.person(t, "operator").ResolveOutcome(timeoutContext(t), resolve); err != nil {
			t.Fatal(err)
		}
		if warns(again) {
			t.Error("the view warns though the outcome is known")
		}
	})
}

// A view compares its call with the newest other call that ran or may have run. The view of an ended approval compares
// its call only with calls that were requested earlier.
func TestView_ComparesWithTheNewestCallThatMayHaveRun(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		var asked []string
		for n, outcome := range []approvalv1.CallOutcome{
			approvalv1.CallOutcome_CALL_OUTCOME_DONE, approvalv1.CallOutcome_CALL_OUTCOME_FAILED, approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN,
			approvalv1.CallOutcome_CALL_OUTCOME_NEVER_SENT,
		} {
			asked = append(asked, s.ask(t, fmt.Sprintf(`{"n":%d}`, n)).GetApproval().GetId())
			s.completeCall(t, asked[n], fmt.Sprint("c", n), outcome)
		}
		asked = append(asked, s.ask(t, `{"n":4}`).GetApproval().GetId())
		for n, want := range map[int]string{0: "", 1: asked[0], 4: asked[2]} {
			if got := s.view(t, "ana", asked[n]).GetPreviousApprovalId(); got != want {
				t.Errorf("call %d is compared with %q, want %q", n, got, want)
			}
		}
		resolve := &approvalv1.ResolveOutcomeRequest{ApprovalId: asked[2], Resolution: approvalv1.Resolution_RESOLUTION_FAILED, Comment: "without effect"}
		if _, err := s.person(t, "operator").ResolveOutcome(timeoutContext(t), resolve); err != nil {
			t.Fatal(err)
		}
		if got := s.view(t, "ana", asked[2]).GetPreviousApprovalId(); got != asked[1] {
			t.Errorf("the call that failed is compared with %q", got)
		}
	})
}
