package pipeline_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// errStale is the error that the approval service returns if the decision in a request is outdated.
var errStale = &rpc.Error{Code: codes.FailedPrecondition, Reason: "DECISION_STALE"}

// recordAttestations makes the fake policy service sign decisions. It returns a list to which each request for a
// signature is appended.
func (w *testPipeline) recordAttestations() (uses *[]*policyv1.Attest) {
	uses, then := new([]*policyv1.Attest), w.decide
	w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
		resp, err := then(ctx, r)
		if r.GetAttest() == nil || err != nil {
			return resp, err
		}
		*uses = append(*uses, r.GetAttest())
		return &policyv1.DecideCallResponse{Decision: resp.GetDecision(), SignedDecision: &policyv1.SignedDecision{Statement: []byte{byte(len(*uses))}}}, nil
	}
	return uses
}

// If a decision is too old when it reaches the approval service, the gateway requests a new decision from the policy
// service. It does this only a limited number of times.
func TestApproval_RequestHasAFreshDecision(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asks, claims int // the numbers of requests that are answered with DECISION_STALE
		code         commonv1.Code
		uses         int
	}{
		"both at once":              {0, 0, 0, 2},
		"the question is late":      {2, 0, 0, 4},
		"the claim is late":         {0, 2, 0, 4},
		"the question always is":    {99, 0, commonv1.Code_CODE_APPROVAL_UNAVAILABLE, 3},
		"the claim always is":       {0, 99, commonv1.Code_CODE_APPROVAL_UNAVAILABLE, 4},
		"each is late and then not": {1, 1, 0, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newApprovalPipeline()
			uses := w.recordAttestations()
			answer, asked := answerStates(approvalIn(approved)), 0
			w.approvals.answerRequest = func() (*approvalv1.RequestApprovalResponse, error) {
				if asked++; asked <= tt.asks {
					return nil, errStale
				}
				return answer()
			}
			then, claimed, names := w.approvals.answerClaim, 0, make(map[string]bool)
			w.approvals.answerClaim = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
				names[r.GetClaimId()] = true
				if r.GetSignedDecision().GetStatement()[0] != byte(len(*uses)) {
					t.Error("the claim has an old decision")
				}
				if claimed++; claimed <= tt.claims {
					return nil, errStale
				}
				return then(r)
			}
			got := w.do(t, func(c *attempt.Call) { c.Identity = "http x" })
			if codeOf(got.Refusal) != tt.code || w.count("send") == 1 != (tt.code == 0) || len(*uses) != tt.uses || len(names) > 1 {
				t.Errorf("%+v; signed for %v; claims %v", got.Refusal, *uses, names)
			}
			for n, use := range *uses {
				claims := n >= asked
				if use.GetServerIdentity() != "http x" || claims != (use.GetApprovalId() == "a-1") || claims != (use.GetAttempt() == 1) {
					t.Errorf("use %d of %d is %v", n+1, len(*uses), use)
				}
			}
		})
	}
}

// The policy service signs decisions only for approval requests.
func TestDo_AllowedCallIsNotAttested(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	uses := w.recordAttestations()
	if got := w.do(t); got.Refusal != nil || len(*uses) != 0 || w.count("decide") != 1 {
		t.Errorf("%+v, signed for %v, %v", got.Refusal, *uses, w.steps)
	}
}
