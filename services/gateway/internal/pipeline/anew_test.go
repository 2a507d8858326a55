package pipeline_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// errStale is what the approval service says of a decision that is not of this moment.
var errStale = &rpc.Error{Code: codes.FailedPrecondition, Reason: "DECISION_STALE"}

// signing is a policy role that signs, and notes what it was asked to.
func (w *world) signing() (uses *[]*policyv1.Attest) {
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

// Policy is asked again, a few times, where its decision is not of this moment by the
// time that the approval service has it.
func TestPolicyIsAskedAnewForADecisionOfThisMoment(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		asks, claims int // of them are told that the decision is stale
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
			w := approving()
			uses := w.signing()
			answer, asked := asks(in(approved)), 0
			w.people.asked = func() (*approvalv1.RequestApprovalResponse, error) {
				if asked++; asked <= tt.asks {
					return nil, errStale
				}
				return answer()
			}
			then, claimed, names := w.people.claimed, 0, make(map[string]bool)
			w.people.claimed = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
				names[r.GetClaimId()] = true
				if r.GetSignedDecision().GetStatement()[0] != byte(len(*uses)) {
					t.Error("it claims by a decision of before")
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

// What nobody is asked about is signed by nobody.
func TestAnAllowedCallIsNotSigned(t *testing.T) {
	t.Parallel()
	w := newWorld()
	uses := w.signing()
	if got := w.do(t); got.Refusal != nil || len(*uses) != 0 || w.count("decide") != 1 {
		t.Errorf("%+v, signed for %v, %v", got.Refusal, *uses, w.steps)
	}
}

// The last word is policy's: a call that it allowed and that has an approval is not sent
// where, asked again, it says something else.
func TestA4AnAllowedCallIsJudgedAgainAtItsApproval(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(*policyv1.Decision){
		"it denies": func(d *policyv1.Decision) {
			d.Effect, d.Code = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE
		},
		"it asks": func(d *policyv1.Decision) {
			d.Effect, d.Approval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL, &policyv1.ApprovalTerms{Quorum: 1}
		},
		"it hides":                    func(d *policyv1.Decision) { d.Hidden = true },
		"it wants a strict schema":    func(d *policyv1.Decision) { d.StrictSchema = true },
		"it wants something redacted": func(d *policyv1.Decision) { d.Redactions = []*policyv1.Redaction{{}} },
		"its limit is new to it":      func(d *policyv1.Decision) { d.Limits[0].Settle = "new" },
	} {
		for when, claimed := range map[string]func(*world){
			"before it is claimed": nil,
			"the claim is late":    func(w *world) { w.claimsStale(1, nil) },
			"the claim is refused": func(w *world) {
				w.claimsStale(1, refusesClaim(&approvalv1.Refusal{Code: commonv1.Code_CODE_APPROVAL_USED, LeaseUnused: true}))
			},
			"the claim is not answered": func(w *world) { w.claimsStale(99, nil) },
		} {
			if name == "it asks" && when == "the claim is late" {
				continue // people have approved that
			}
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				w, p := ticketed(t, allowed())
				n, last := 0, 1
				if claimed != nil {
					claimed(w)
					last = 2
				}
				w.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
					d := allowed()
					if n++; n > last {
						then(d)
					}
					return &policyv1.DecideCallResponse{Decision: d}, nil
				}
				got := p.Do(t.Context(), w.asking(t))
				p.Wait(t.Context())
				if got.Refusal == nil || w.count("send") != 0 || claimed == nil && w.count("take") != 0 {
					t.Errorf("%+v, %v", got.Refusal, w.steps)
				}
				if open := len(w.of(journal.KindClaim)) - len(w.of(journal.KindSettled)); open != 0 {
					t.Errorf("%d claims are left open", open)
				}
			})
		}
	}
}

// claimsStale tells so many claims that their decision is not of this moment, and answers
// the next ones by then, or as before.
func (w *world) claimsStale(n int, then func(*approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error)) {
	if then == nil {
		then = w.people.claimed
	}
	w.people.claimed = func(r *approvalv1.ClaimApprovalRequest) (*approvalv1.ClaimApprovalResponse, error) {
		if n--; n >= 0 {
			return nil, errStale
		}
		return then(r)
	}
}
