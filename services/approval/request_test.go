package approval_test

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

// A second request for the same call returns the pending approval, even if the same call has run before, under earlier
// approvals.
func TestRequestApproval_ReturnsThePendingApproval(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		for n := range 2 {
			s.completeCall(t, s.ask(t, params).GetApproval().GetId(), fmt.Sprint("c", n), approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		}
		first, second := s.ask(t, params), s.ask(t, params)
		if !first.GetOpened() || second.GetOpened() || first.GetApproval().GetId() != second.GetApproval().GetId() {
			t.Errorf("asked twice: %v and %v", first, second)
		}
	})
}

// The outcome of an idempotent call is unknown. Until the time to execute ends, a request for the call returns the same
// approval. A later request opens a new approval.
func TestRequestApproval_OpensAgainAfterTheTimeToExecute(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		idempotent := func(d *policyv1.Decision) { d.Idempotent = true }
		short := func(d *policyv1.Decision) { d.Approval.ExecuteWithin = durationpb.New(3 * time.Second) }
		long := s.ask(t, `{"n":1}`, idempotent).GetApproval().GetId()
		s.completeCall(t, long, "c1", approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN)
		if again := s.ask(t, `{"n":1}`, idempotent); again.GetOpened() || again.GetApproval().GetId() != long {
			t.Errorf("requested again within the time to execute: %v", again)
		}
		lost := s.ask(t, `{"n":2}`, idempotent, short).GetApproval().GetId()
		s.completeCall(t, lost, "c2", approvalv1.CallOutcome_CALL_OUTCOME_UNKNOWN, short)
		<-time.After(3 * time.Second)
		if again := s.ask(t, `{"n":2}`, idempotent, short); !again.GetOpened() || again.GetApproval().GetState() != pending {
			t.Errorf("requested again after the time to execute: %v", again)
		}
		if was := s.get(t, lost); was.GetState() != approvalv1.ApprovalState_APPROVAL_STATE_OUTCOME_UNKNOWN {
			t.Errorf("the first approval is %v, want outcome_unknown", was)
		}
	})
}

// The limit of pending calls applies to one principal, which is identified by tenant, subject and agent. All sessions
// of a principal share the limit.
func TestRequestApproval_CountsPendingCallsByPrincipal(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 1 }, func(t *testing.T, s *fixture) {
		s.ask(t, params)
		for name, tt := range map[string]struct {
			change func(*identityv1.Principal)
			full   bool
		}{
			"the same":        {func(*identityv1.Principal) {}, true},
			"another session": {func(p *identityv1.Principal) { p.Session = "s2" }, true},
			"another tenant":  {func(p *identityv1.Principal) { p.Tenant = "acme" }, false},
			"another subject": {func(p *identityv1.Principal) { p.Subject = "bot2" }, false},
			"another agent":   {func(p *identityv1.Principal) { p.Agent = "prod" }, false},
		} {
			who := bot()
			tt.change(who)
			resp, err := s.gateway().RequestApproval(onBehalfOf(t, who), &approvalv1.RequestApprovalRequest{Bound: bound(`{"n":1}`), Decision: decision(), DecisionId: "d"})
			if full := resp.GetRefusal().GetCode() == commonv1.Code_CODE_TOO_MANY_PENDING; err != nil || full != tt.full || resp.GetAsked().GetOpened() == tt.full {
				t.Errorf("%s: %v, %v", name, resp, err)
			}
		}
	})
}
