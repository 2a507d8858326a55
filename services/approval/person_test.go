package approval_test

import (
	"bytes"
	"testing"

	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

// botOf returns the agent bot as it uses the connections of a person. All these agents have the same subject and agent.
func botOf(person string) *identityv1.Principal {
	p := bot()
	p.Owner, p.Person = person, person
	return p
}

// inMesh returns an agent of the mesh that botOf(person) has created.
func inMesh(person string) *identityv1.Principal {
	p := botOf(person)
	p.Subject, p.Agent, p.Chain = "agent:default/1", "script", []*identityv1.Principal{botOf(person)}
	return p
}

// sameDefinition sets the digest of the definition of the tool in the calls of askAs.
func sameDefinition(r *approvalv1.ClaimApprovalRequest) {
	r.DefinitionDigest = bytes.Repeat([]byte{1}, 32)
}

// A call that was approved for the account of one person can't be made with the account of another person, nor without
// one, even if the callers have the same subject and agent. The other callers can't see or cancel the approval.
func TestPerson_ApprovalIsNotForTheAccountOfAnother(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		for name, of := range map[string]func(person string) *identityv1.Principal{"an agent": botOf, "an agent of the mesh": inMesh} {
			a := s.askAs(t, of("olga"), params, nil)
			s.approve(t, "ana", a.GetId())
			for _, person := range []string{"piet", ""} {
				_, err := s.gateway().ClaimApproval(onBehalfOf(t, of(person)), claimRequest(a, "c", sameDefinition))
				wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
				_, err = s.gateway().GetApproval(onBehalfOf(t, of(person)), &approvalv1.GetApprovalRequest{ApprovalId: a.GetId()})
				wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
				_, err = s.gateway().CancelApproval(onBehalfOf(t, of(person)), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "x"})
				wantError(t, err, codes.NotFound, "APPROVAL_UNKNOWN")
				list, err := s.gateway().ListApprovals(onBehalfOf(t, of(person)), &approvalv1.ListApprovalsRequest{})
				if err != nil || len(list.GetApprovals()) != 0 {
					t.Errorf("%s: the person %q sees %v, %v", name, person, list, err)
				}
				if other := s.askAs(t, of(person), params, nil); other.GetId() == a.GetId() || other.GetState() != pending {
					t.Errorf("%s: the call with the account of %q has the approval %v", name, person, other)
				}
			}
			if v := s.view(t, "operator", a.GetId()); v.GetPerson() != "olga" {
				t.Errorf("%s: approvers see the person %q", name, v.GetPerson())
			}
			if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, of("olga")), claimRequest(a, "c", sameDefinition)); err != nil || resp.GetClaimed() == nil {
				t.Errorf("%s: the person's own call: %v, %v", name, resp, err)
			}
		}
	})
}

// A grant for calls with the account of one person covers no calls with the account of another person, neither pending
// nor later ones.
func TestPerson_GrantIsNotForTheAccountOfAnother(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		waiting := s.askAs(t, botOf("piet"), `{"n":1}`, nil, grants)
		first := s.askAs(t, botOf("olga"), `{"n":2}`, nil, grants)
		s.approve(t, "ana", first.GetId())
		got, err := s.gateway().GetApproval(onBehalfOf(t, botOf("piet")), &approvalv1.GetApprovalRequest{ApprovalId: waiting.GetId()})
		if err != nil || got.GetApproval().GetState() != pending {
			t.Errorf("another person's pending call: %v, %v", got, err)
		}
		for _, person := range []string{"piet", ""} {
			if a := s.askAs(t, botOf(person), `{"n":3}`, nil, grants); a.GetState() != pending || a.GetGrantedBy() != "" {
				t.Errorf("the call with the account of %q is covered: %v", person, a)
			}
		}
		if a := s.askAs(t, botOf("olga"), `{"n":4}`, nil, grants); a.GetState() != approved || a.GetGrantedBy() != first.GetId() {
			t.Errorf("the person's own call: %v", a)
		}
	})
}

// A denial of a call with the account of one person does not refuse the same call with the account of another person.
func TestPerson_DenialIsNotForTheAccountOfAnother(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 100 }, func(t *testing.T, s *fixture) {
		a := s.askAs(t, botOf("olga"), params, nil)
		if _, err := s.vote(t, "ana", a.GetId(), approvalv1.Verdict_VERDICT_DENY); err != nil {
			t.Fatal(err)
		}
		if other := s.askAs(t, botOf("piet"), params, nil); other.GetState() != pending {
			t.Errorf("another person's call: %v", other)
		}
		again := bound(params)
		again.Call.DefinitionDigest = bytes.Repeat([]byte{1}, 32)
		resp, err := s.gateway().RequestApproval(onBehalfOf(t, botOf("olga")), &approvalv1.RequestApprovalRequest{Bound: again, Decision: decision(), DecisionId: "d1"})
		if err != nil || resp.GetRefusal() == nil {
			t.Errorf("the person's own call: %v, %v", resp, err)
		}
	})
}
