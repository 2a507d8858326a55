package approval_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// Case A3. A vote is refused if the voter made the call, is in none of the groups in the approval terms, belongs to
// another tenant, or did not see the current view.
func TestDecideApproval_RefusesAVoterWhoMayNotDecide(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		finance := func(d *policyv1.Decision) { d.Approval.Quorum, d.Approval.Approvers = 2, []string{"finance"} }
		id := s.ask(t, params, finance).GetApproval().GetId()
		for token, reason := range map[string]string{"bot-approver": "SELF_APPROVAL", "operator": "NOT_AN_APPROVER", "approver": "NOT_AN_APPROVER", "ben-2": "NOT_AN_APPROVER"} {
			_, err := s.vote(t, token, id, yes)
			wantError(t, err, codes.PermissionDenied, reason)
		}
		_, err := s.person(t, "acme-operator").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: no})
		wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
		_, err = s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: yes})
		wantError(t, err, codes.FailedPrecondition, "VIEW_NOT_SHOWN")
		_, err = s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: yes, ViewDigest: make([]byte, 32)})
		wantError(t, err, codes.Aborted, "VIEW_CHANGED")
		for range 2 {
			if a, err := s.vote(t, "ana", id, yes); err != nil || a.GetState() != pending || a.GetVotesMissing() != 1 {
				t.Fatal(a, err)
			}
		}
		if a, err := s.vote(t, "ben", id, yes); err != nil || a.GetState() != approved {
			t.Fatal(a, err)
		}
		_, err = s.vote(t, "ana", id, no)
		wantError(t, err, codes.AlreadyExists, "ALREADY_VOTED")
	})
}

func TestDecideApproval_LetsOwnersDecideIfConfigured(t *testing.T) {
	for _, may := range []bool{false, true} {
		t.Run(fmt.Sprint(may), func(t *testing.T) {
			forEachStore(t, func(c *approval.Config) { c.OwnerMayApprove = may }, func(t *testing.T, s *fixture) {
				olga := rpctest.Record("olga", "default", authv1.TokenRole_TOKEN_ROLE_OPERATOR)
				if err := s.tokens.Replace(append(people(), olga)); err != nil {
					t.Fatal(err)
				}
				_, err := s.vote(t, "olga", s.ask(t, params).GetApproval().GetId(), yes)
				if may {
					wantError(t, err, codes.OK, "")
				} else {
					wantError(t, err, codes.PermissionDenied, "OWNER_APPROVAL")
				}
			})
		})
	}
}

func TestDecideApproval_ReturnsTheFirstVoteWhenRepeated(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		id := s.ask(t, params, func(d *policyv1.Decision) { d.Approval.Quorum = 2 }).GetApproval().GetId()
		cast := func(comment string) *approvalv1.DecideApprovalResponse {
			t.Helper()
			resp, err := s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{
				ApprovalId: id, Verdict: yes, Comment: comment, ViewDigest: s.view(t, "operator", id).GetDigest(),
			})
			if err != nil {
				t.Fatal(err)
			}
			return resp
		}
		first, again := cast("once"), cast("twice")
		if v := first.GetVote(); v.GetSubject() != "ana" || v.GetVerdict() != yes || v.GetComment() != "once" || !v.GetTime().IsValid() {
			t.Errorf("the first vote is %v", v)
		}
		if diff := cmp.Diff(first, again, protocmp.Transform()); diff != "" {
			t.Errorf("cast again (-first +again):\n%s", diff)
		}
	})
}

// Case A4. A claim is refused if the approver has lost the token, the group or the role since voting.
func TestClaimApproval_ChecksThatVotersMayStillDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		now  func() []*identityv1.TokenRecord
		want approvalv1.ApprovalState
	}{
		"is still there": {people, approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED},
		"has no token": {func() (out []*identityv1.TokenRecord) {
			for _, r := range people() {
				if r.GetToken().GetName() != "ana" {
					out = append(out, r)
				}
			}
			return out
		}, pending},
		"has left the group": {func() []*identityv1.TokenRecord {
			out := people()
			for _, r := range out {
				if r.GetToken().GetName() == "ana" {
					r.Token.Groups = []string{"sales"}
				}
			}
			return out
		}, pending},
		"only reads now": {func() []*identityv1.TokenRecord {
			out := people()
			for _, r := range out {
				if r.GetToken().GetName() == "ana" {
					r.Token.Role = authv1.TokenRole_TOKEN_ROLE_VIEWER
				}
			}
			return out
		}, pending},
	} {
		t.Run(name, func(t *testing.T) {
			forEachStore(t, nil, func(t *testing.T, s *fixture) {
				finance := func(d *policyv1.Decision) { d.Approval.Approvers = []string{"finance"} }
				id := s.ask(t, params, finance).GetApproval().GetId()
				s.approve(t, "ana", id)
				if err := s.tokens.Replace(tt.now()); err != nil {
					t.Fatal(err)
				}
				a := s.ask(t, params, finance).GetApproval()
				_, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c", func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(finance) }))
				wantError(t, err, codes.OK, "")
				if got := s.ask(t, params, finance).GetApproval(); got.GetState() != tt.want {
					t.Errorf("the approval is %v, %q", got.GetState(), got.GetReason())
				}
			})
		})
	}
}

// While the service does not know the current tokens, it refuses claims, and approvals do not change.
func TestClaimApproval_FailsWhileTokensAreUnknown(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	s := serve(t, cfg)
	id := s.ask(t, params).GetApproval().GetId()
	s.approve(t, "ana", id)
	a := s.ask(t, params).GetApproval()
	s.tokens.Confirm()
	<-time.After(1100 * time.Millisecond)
	_, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c"))
	wantError(t, err, codes.Unavailable, "TOKENS_STALE")
	if got := s.ask(t, params).GetApproval(); got.GetState() != approved {
		t.Errorf("the approval is %v", got)
	}
}

// Case A3. Two tokens of one subject have different owners. The vote of the claiming token's owner does not count, even
// if the approval was requested with the other token.
func TestClaimApproval_IgnoresTheVoteOfTheClaimersOwner(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		id := s.ask(t, params).GetApproval().GetId() // requested by bot, whose owner is olga
		s.approve(t, "ana", id)
		hers := bot()
		hers.Owner = "ana"
		a := s.ask(t, params).GetApproval()
		resp, err := s.gateway().ClaimApproval(onBehalfOf(t, hers), claimRequest(a, "c1"))
		if err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_PENDING {
			t.Errorf("an agent of ana claims on ana's vote: %v, %v", resp, err)
		}
		s.approve(t, "ben", id)
		a = s.ask(t, params).GetApproval()
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, hers), claimRequest(a, "c2")); err != nil || resp.GetClaimed() == nil {
			t.Errorf("an agent of ana claims on ben's vote: %v, %v", resp, err)
		}
	})
}

// An administrator acts for a user. The administrator's vote does not count for these calls, even if owners may approve
// the calls of their agents, and even if the approval was requested before the gateway knew the actor.
func TestClaimApproval_IgnoresTheVoteOfTheActor(t *testing.T) {
	for _, may := range []bool{false, true} {
		t.Run(fmt.Sprint(may), func(t *testing.T) {
			forEachStore(t, func(c *approval.Config) { c.OwnerMayApprove = may }, func(t *testing.T, s *fixture) {
				id := s.ask(t, params).GetApproval().GetId()
				s.approve(t, "ana", id)
				acting := bot()
				acting.Actor = "ana"
				a := s.ask(t, params).GetApproval()
				resp, err := s.gateway().ClaimApproval(onBehalfOf(t, acting), claimRequest(a, "c1"))
				if err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_PENDING {
					t.Errorf("ana acts, and claims on her own vote: %v, %v", resp, err)
				}
				s.approve(t, "ben", id)
				a = s.ask(t, params).GetApproval()
				if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, acting), claimRequest(a, "c2")); err != nil || resp.GetClaimed() == nil {
					t.Errorf("ana acts, and claims on ben's vote: %v, %v", resp, err)
				}
			})
		})
	}
}
