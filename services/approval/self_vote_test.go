package approval_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func selfConfirm(d *policyv1.Decision) { d.Approval.SelfConfirm = true }

// selfVote sends the vote of the person who uses the agent. The parameter shown is the id of the approval that the
// agent's form showed to the person.
func (s *fixture) selfVote(t *testing.T, shown string, verdict approvalv1.Verdict, change ...func(*policyv1.Decision)) (*approvalv1.RequestApprovalResponse, error) {
	t.Helper()
	return s.gateway().RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{
		Bound: bound(params), DecisionId: "d", Decision: decision(change...), SelfVote: &approvalv1.SelfVote{ApprovalId: shown, Verdict: verdict},
	})
}

// The approval terms of a call allow the person who uses the agent to approve it. The agent reads the view that its
// form shows, and the person's vote approves the call.
func TestSelfVote_ApprovesACallWithSelfConfirm(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		waits := s.ask(t, params, selfConfirm).GetApproval()
		seen, err := s.gateway().GetApproval(onBehalfOf(t, bot()), &approvalv1.GetApprovalRequest{ApprovalId: waits.GetId(), View: true})
		if err != nil || seen.GetView().GetParams() == "" {
			t.Errorf("shown %v, %v", seen.GetView(), err)
		}
		resp, err := s.selfVote(t, waits.GetId(), approvalv1.Verdict_VERDICT_APPROVE, selfConfirm)
		a := resp.GetAsked().GetApproval()
		if err != nil || a.GetId() != waits.GetId() || a.GetState() != approved || a.GetVotes()[0].GetChannel() != approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION {
			t.Errorf("confirmed: %v, %v", resp, err)
		}
	})
}

// The person who uses the agent denies a call. The approval ends, and the call stays denied for the cool-down.
func TestSelfVote_DeniesACall(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		waits := s.ask(t, params, selfConfirm).GetApproval()
		resp, err := s.selfVote(t, waits.GetId(), approvalv1.Verdict_VERDICT_DENY, selfConfirm)
		if a := resp.GetAsked().GetApproval(); err != nil || a.GetState() != denied || a.GetReason() != "declined at the agent" {
			t.Fatalf("declined: %v, %v", resp, err)
		}
		again, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), DecisionId: "d", Decision: decision(selfConfirm)})
		if err != nil || again.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_DENIED || again.GetRefusal().GetRetryAfter() == nil {
			t.Errorf("asked again: %v, %v", again, err)
		}
	})
}

// An approver approves a call, and then the person who uses the agent denies it. The denial cancels the approval.
func TestSelfVote_DenialCancelsAnApprovedCall(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params, selfConfirm).GetApproval()
		s.approve(t, "ana", a.GetId())
		resp, err := s.selfVote(t, a.GetId(), approvalv1.Verdict_VERDICT_DENY, selfConfirm)
		if a := resp.GetAsked().GetApproval(); err != nil || a.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED {
			t.Errorf("declined: %v, %v", resp, err)
		}
	})
}

// Case A3. A vote by the person who uses the agent is refused if the approval terms have no self_confirm, if the terms
// have a quorum of 2, or if the vote does not contain the id of an approval of the same call.
func TestSelfVote_IsRefusedUnlessTheTermsAllowIt(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		four := func(d *policyv1.Decision) { d.Approval.SelfConfirm, d.Approval.Quorum = true, 2 }
		for name, change := range map[string]func(*policyv1.Decision){"terms without self_confirm": func(*policyv1.Decision) {}, "a quorum of 2": four} {
			for _, verdict := range []approvalv1.Verdict{approvalv1.Verdict_VERDICT_APPROVE, approvalv1.Verdict_VERDICT_DENY} {
				if resp, err := s.selfVote(t, "a-1", verdict, change); err == nil {
					t.Errorf("%s: %v", name, resp)
				} else {
					wantError(t, err, codes.InvalidArgument, "CONFIRMATION_REFUSED")
				}
			}
		}
		_, err := s.selfVote(t, "a-1", approvalv1.Verdict_VERDICT_UNSPECIFIED, selfConfirm)
		wantError(t, err, codes.InvalidArgument, "INVALID_REQUEST")
		for shown, reason := range map[string]string{"": "INVALID_REQUEST", "a-1": "APPROVAL_UNKNOWN", s.ask(t, `{"other":1}`, selfConfirm).GetApproval().GetId(): "APPROVAL_UNKNOWN"} {
			code := codes.NotFound
			if shown == "" {
				code = codes.InvalidArgument
			}
			_, err := s.selfVote(t, shown, approvalv1.Verdict_VERDICT_APPROVE, selfConfirm)
			wantError(t, err, code, reason)
		}
	})
}

// Case A3. A vote by the person who uses the agent counts only for the approval that the agent's form showed. If the
// vote is sent again after the call has run, it changes nothing and opens no approval.
func TestSelfVote_CountsOnlyForTheShownApproval(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		for _, verdict := range []approvalv1.Verdict{approvalv1.Verdict_VERDICT_APPROVE, approvalv1.Verdict_VERDICT_DENY} {
			shown := s.ask(t, params, selfConfirm).GetApproval()
			resp, err := s.selfVote(t, shown.GetId(), approvalv1.Verdict_VERDICT_APPROVE, selfConfirm)
			if err != nil {
				t.Fatal(err)
			}
			asNow := func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(selfConfirm) }
			if claimed, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(resp.GetAsked().GetApproval(), "c", asNow)); err != nil || claimed.GetClaimed() == nil {
				t.Fatalf("claim: %v, %v", claimed, err)
			}
			if _, err := s.gateway().CompleteClaim(timeoutContext(t), &approvalv1.CompleteClaimRequest{
				ApprovalId: shown.GetId(), ClaimId: "c", Holder: "gw-1", Outcome: approvalv1.CallOutcome_CALL_OUTCOME_DONE,
			}); err != nil {
				t.Fatal(err)
			}
			again, err := s.selfVote(t, shown.GetId(), verdict, selfConfirm)
			if a := again.GetAsked().GetApproval(); err != nil || a.GetId() != shown.GetId() || a.GetState() != done || again.GetAsked().GetOpened() {
				t.Errorf("%v again: %v, %v", verdict, again, err)
			}
		}
	})
}

// Case A3. The approval terms change after the agent's form was shown. If the person who uses the agent then votes to
// approve, nothing changes: the new terms and the other votes stay. A vote to deny cancels the approval.
func TestSelfVote_OnOldTermsApprovesNothing(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		four := func(d *policyv1.Decision) { d.Approval.Quorum = 2 }
		s.ask(t, params, selfConfirm)
		a := s.ask(t, params, four).GetApproval()
		s.approve(t, "ana", a.GetId())
		resp, err := s.selfVote(t, a.GetId(), approvalv1.Verdict_VERDICT_APPROVE, selfConfirm)
		if is := resp.GetAsked().GetApproval(); err != nil || is.GetState() != pending || is.GetTerms().GetSelfConfirm() || is.GetVotesMissing() != 1 || len(is.GetVotes()) != 1 {
			t.Errorf("confirmed: %v, %v", resp, err)
		}
		resp, err = s.selfVote(t, a.GetId(), approvalv1.Verdict_VERDICT_DENY, selfConfirm)
		if is := resp.GetAsked().GetApproval(); err != nil || is.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED {
			t.Errorf("declined: %v, %v", resp, err)
		}
	})
}
