package approval_test

import (
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

func selfConfirm(d *policyv1.Decision) { d.Approval.SelfConfirm = true }

// answered asks again with the word of whoever sits at the agent.
func (s *site) answered(t *testing.T, verdict approvalv1.Verdict, change ...func(*policyv1.Decision)) (*approvalv1.RequestResponse, error) {
	t.Helper()
	return s.gateway().Request(as(t, bot()), &approvalv1.RequestRequest{
		Bound: bound(params), DecisionId: "d", Decision: decision(change...),
		SelfConfirmed: verdict == approvalv1.Verdict_VERDICT_APPROVE, SelfDeclined: verdict == approvalv1.Verdict_VERDICT_DENY,
	})
}

// Whoever sits at the agent may confirm where the terms say so, and is shown what
// there is to confirm.
func TestACallIsConfirmedAtTheAgent(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		waits := s.ask(t, params, selfConfirm).GetApproval()
		seen, err := s.gateway().Get(as(t, bot()), &approvalv1.GetRequest{ApprovalId: waits.GetId(), View: true})
		if err != nil || seen.GetView().GetParams() == "" {
			t.Errorf("shown %v, %v", seen.GetView(), err)
		}
		resp, err := s.answered(t, approvalv1.Verdict_VERDICT_APPROVE, selfConfirm)
		a := resp.GetAsked().GetApproval()
		if err != nil || a.GetId() != waits.GetId() || a.GetState() != approved || a.GetVotes()[0].GetChannel() != approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION {
			t.Errorf("confirmed: %v, %v", resp, err)
		}
	})
}

// A denial at the agent is one like any other: it ends the approval, and holds for
// the cool-down.
func TestACallIsDeclinedAtTheAgent(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		s.ask(t, params, selfConfirm)
		resp, err := s.answered(t, approvalv1.Verdict_VERDICT_DENY, selfConfirm)
		if a := resp.GetAsked().GetApproval(); err != nil || a.GetState() != denied || a.GetReason() != "declined at the agent" {
			t.Fatalf("declined: %v, %v", resp, err)
		}
		again, err := s.answered(t, approvalv1.Verdict_VERDICT_UNSPECIFIED, selfConfirm)
		if err != nil || again.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_DENIED || again.GetRefusal().GetRetryAfter() == nil {
			t.Errorf("asked again: %v, %v", again, err)
		}
	})
}

// What others have approved in the same moment does not run against the word of
// whoever sits at the agent.
func TestADeclinedCallThatOthersApproveDoesNotRun(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		a := s.ask(t, params, selfConfirm).GetApproval()
		s.approve(t, "ana", a.GetId())
		resp, err := s.answered(t, approvalv1.Verdict_VERDICT_DENY, selfConfirm)
		if a := resp.GetAsked().GetApproval(); err != nil || a.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED {
			t.Errorf("declined: %v, %v", resp, err)
		}
	})
}

// A3: terms that do not say so let nobody confirm a call of its own.
func TestA3NobodyConfirmsUnlessTheTermsSaySo(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		four := func(d *policyv1.Decision) { d.Approval.SelfConfirm, d.Approval.Quorum = true, 2 }
		for name, change := range map[string]func(*policyv1.Decision){"terms that do not": func(*policyv1.Decision) {}, "four eyes": four} {
			for _, verdict := range []approvalv1.Verdict{approvalv1.Verdict_VERDICT_APPROVE, approvalv1.Verdict_VERDICT_DENY} {
				if resp, err := s.answered(t, verdict, change); err == nil {
					t.Errorf("%s: %v", name, resp)
				} else {
					wanted(t, err, codes.InvalidArgument, "CONFIRMATION_REFUSED")
				}
			}
		}
		_, err := s.gateway().Request(as(t, bot()), &approvalv1.RequestRequest{
			Bound: bound(params), DecisionId: "d", Decision: decision(selfConfirm), SelfConfirmed: true, SelfDeclined: true,
		})
		wanted(t, err, codes.InvalidArgument, "CONFIRMATION_REFUSED")
	})
}
