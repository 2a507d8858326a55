package approval_test

import (
	"bytes"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
)

// askAs requests an approval for a call that the test changes, and fails the test if there is none.
func (s *site) askAs(t *testing.T, who *identityv1.Principal, text string, change func(*approvalv1.BoundCall), terms ...func(*policyv1.Decision)) *approvalv1.Approval {
	t.Helper()
	call := bound(text)
	call.Call.DefinitionDigest = bytes.Repeat([]byte{1}, 32)
	if change != nil {
		change(call)
	}
	resp, err := s.gateway().RequestApproval(as(t, who), &approvalv1.RequestApprovalRequest{Bound: call, Decision: decision(terms...), DecisionId: "d1"})
	if err != nil || resp.GetAsked() == nil {
		t.Fatalf("ask: %v, %v", resp, err)
	}
	return resp.GetAsked().GetApproval()
}

// get returns the current approval.
func (s *site) get(t *testing.T, id string) *approvalv1.Approval {
	t.Helper()
	resp, err := s.person(t, "viewer").GetApproval(soon(t), &approvalv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetApproval()
}

func otherDefinition(c *approvalv1.BoundCall) { c.Call.DefinitionDigest = bytes.Repeat([]byte{2}, 32) }
func otherServer(c *approvalv1.BoundCall)     { c.ServerIdentity = "http http://elsewhere/mcp" }

// A4: an approval of a tool that has changed is cancelled as soon as the same call is requested with the new tool,
// however its JSON is written.
func TestA4AChangeOfTheToolVoidsWhatWaits(t *testing.T) {
	const spelled = `{ "arguments":{"sum":125e-1}, "name":"refund" }`
	for name, change := range map[string]func(*approvalv1.BoundCall){"its definition": otherDefinition, "its server": otherServer} {
		t.Run(name, func(t *testing.T) {
			each(t, func(c *approval.Config) { c.MaxPending = 1 }, func(t *testing.T, s *site) {
				was := s.askAs(t, bot(), params, nil)
				w := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{ApprovalId: was.GetId()})
				next(t, w)
				is := s.askAs(t, bot(), spelled, change)
				if is.GetId() == was.GetId() || is.GetState() != pending {
					t.Errorf("requested for the new tool: %v", is)
				}
				if m := next(t, w).GetApproval(); m.GetState() != cancelled || m.GetCode() != commonv1.Code_CODE_TOOL_CHANGED {
					t.Errorf("for the old tool a watcher gets %v", m)
				}
				s.approve(t, "ana", is.GetId())
				s.askAs(t, bot(), params, nil)
				if got := s.get(t, is.GetId()); got.GetState() != cancelled || got.GetCode() != commonv1.Code_CODE_TOOL_CHANGED {
					t.Errorf("approved, and the tool changed back: %v", got)
				}
			})
		})
	}
}

// Other calls, calls of other callers, and the grant are not cancelled.
func TestA4NothingElseIsVoid(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		other := bot()
		other.Agent = "other"
		name := func(c *approvalv1.BoundCall) { c.Call.Name = "pay" }
		method := func(c *approvalv1.BoundCall) { c.Call.Method = "prompts/get" }
		first := s.askAs(t, bot(), `{"n":1}`, nil, grants)
		s.approve(t, "ana", first.GetId())
		kept := map[string]*approvalv1.Approval{
			"another argument": s.askAs(t, bot(), `{"n":3}`, nil), "another caller": s.askAs(t, other, `{"n":1}`, nil),
			"another tool": s.askAs(t, bot(), `{"n":1}`, name), "another method": s.askAs(t, bot(), `{"n":1}`, method),
		}
		if is := s.askAs(t, bot(), `{"n":1}`, otherDefinition, grants); is.GetState() != pending {
			t.Errorf("the grant covers another definition: %v", is)
		}
		if was := s.get(t, first.GetId()); was.GetState() != cancelled || was.GetGrant().GetExpires() == nil {
			t.Errorf("what carried the grant: %v", was)
		}
		for what, a := range kept {
			if got := s.get(t, a.GetId()); got.GetState() != pending {
				t.Errorf("%s: %v", what, got)
			}
		}
		if more := s.askAs(t, bot(), `{"n":4}`, nil, grants); more.GetState() != approved || more.GetGrantedBy() != first.GetId() {
			t.Errorf("the grant, for the old tool: %v", more)
		}
	})
}
