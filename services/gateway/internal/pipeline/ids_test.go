package pipeline_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// claimBrokenCall accepts a claim and returns a stored call whose params are invalid.
func claimBrokenCall(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
	return &approvalv1.ClaimApprovalResponse{Result: &approvalv1.ClaimApprovalResponse_Claimed{Claimed: &approvalv1.Claimed{
		Approval: approvalIn(approved), Bound: &approvalv1.BoundCall{Call: &policyv1.Call{ParamsJson: `{"name":`}},
	}}}, nil
}

func denyDecision() *policyv1.Decision {
	d := allow()
	d.Effect, d.Code, d.Message = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE, "not any more"
	return d
}

// Each claim is recorded with a new id. If the claim fails and the call is therefore refused, the refusal has the id of
// the claim.
func TestDo_RefusalHasTheIDOfItsLostClaim(t *testing.T) {
	t.Parallel()
	used := refuseClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, LeaseUnused: true})
	for name, claimed := range map[string]func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error){
		"it is refused": used, "what is stored is broken": claimBrokenCall,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.answerRequest, w.approvals.answerClaim = answerStates(approvalIn(approved)), claimed
				got := w.do(t)
				claims, settled := w.recordsOf(journal.KindClaim), w.recordsOf(journal.KindSettled)
				if got.Refusal == nil || len(claims) != 1 || len(settled) != 1 || got.Refusal.ID != claims[0].DecisionID || settled[0].DecisionID != claims[0].DecisionID {
					t.Errorf("%+v\nclaims %+v\nsettled %+v", got.Refusal, claims, settled)
				}
			})
		})
	}
}

// The policy denies a call that has an approval. The approval is cancelled even if the gateway cannot read the
// definition of the called tool.
func TestDo_DenialNeedsNoList(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := newPendingCall(t, denyDecision())
		c := w.newApprovalCall(t)
		c.Tools = definitionFunc(func(context.Context, bool) ([]byte, error) { return nil, errBoom })
		got := p.Do(t.Context(), c)
		if got.Refusal.Text() != "Denied by policy: not any more" || w.count("cancel") != 1 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// The gateway cannot check the tool definition of an approved call, because the policy service does not accept the
// server's list. The refusal says that the policy service, and not the server, is the cause.
func TestApproval_UnreportedListIsNotTheServersFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest = answerStates(approvalIn(approved))
		got := w.do(t, func(c *attempt.Call) {
			c.Tools = definitionFunc(func(_ context.Context, now bool) ([]byte, error) {
				if now {
					return nil, toolreport.ErrNotReported
				}
				return []byte("definition"), nil
			})
		})
		if codeOf(got.Refusal) != commonv1.Code_CODE_POLICY_UNAVAILABLE || w.count("send") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
	})
}

// A stored call that cannot be parsed is not sent, and its claim is released.
func TestApproval_BrokenStoredCallIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newApprovalPipeline()
		w.approvals.answerRequest, w.approvals.answerClaim = answerStates(approvalIn(approved)), claimBrokenCall
		got := w.do(t, func(c *attempt.Call) { c.Client = "x" })
		if codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_UNAVAILABLE || w.count("send") != 0 || len(w.approvals.released) != 1 {
			t.Errorf("%+v, %v, given back %v", got.Refusal, w.steps, w.approvals.released)
		}
	})
}

// After the person who uses the agent has answered the form, the policy service evaluates the call again. If that
// person has declined, the call is refused and recorded with the policy service's last decision.
func TestConfirm_RefusalHasTheLastDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newConfirmPipeline()
		asking := w.decide
		w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			resp, err := asking(ctx, r)
			if w.count("get") > 0 { // the call has been shown to the user
				resp = proto.CloneOf(resp)
				resp.Decision.PolicyRevision = "later"
			}
			return resp, err
		}
		var shown []string
		got := w.do(t, func(c *attempt.Call) { c.Confirm = answerForm(attempt.Declined, time.Second, &shown) })
		if refusals := w.recordsOf(journal.KindRefusal); codeOf(got.Refusal) != commonv1.Code_CODE_APPROVAL_DENIED || len(refusals) != 1 || refusals[0].PolicyRevision != "later" {
			t.Errorf("%+v, recorded %+v", got.Refusal, refusals)
		}
	})
}

// Case A4. The gateway requests a signed decision, but the policy service's response contains no decision. The call is
// refused, even if it was approved and the policy would allow it later.
func TestDo_MissingDecisionIsARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, p := newPendingCall(t, nil)
		asks := allow()
		asks.Effect, asks.Approval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL, &policyv1.ApprovalTerms{Quorum: 1}
		w.decide = func(_ context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			switch {
			case r.GetAttest() == nil:
				return &policyv1.DecideCallResponse{Decision: asks}, nil
			case r.GetAttest().GetApprovalId() == "":
				return &policyv1.DecideCallResponse{}, nil
			default:
				return &policyv1.DecideCallResponse{Decision: allow()}, nil
			}
		}
		got := p.Do(t.Context(), w.newApprovalCall(t))
		if codeOf(got.Refusal) != commonv1.Code_CODE_POLICY_UNAVAILABLE || w.count("claim") != 0 || w.count("send") != 0 {
			t.Errorf("%+v, %v", got.Refusal, w.steps)
		}
		if records := w.recordsOf(journal.KindRefusal); len(records) != 1 || records[0].Effect != "deny" {
			t.Errorf("on record are %+v", records)
		}
	})
}
