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

// askAs requests an approval for a call that the function change modifies. If the request is refused, askAs fails the
// test.
func (s *fixture) askAs(t *testing.T, who *identityv1.Principal, text string, change func(*approvalv1.BoundCall), terms ...func(*policyv1.Decision)) *approvalv1.Approval {
	t.Helper()
	call := bound(text)
	call.Call.DefinitionDigest = bytes.Repeat([]byte{1}, 32)
	if change != nil {
		change(call)
	}
	return s.requestAgain(t, who, &approvalv1.RequestApprovalRequest{Bound: call, Decision: decision(terms...), DecisionId: "d1"}).GetApproval()
}

func (s *fixture) get(t *testing.T, id string) *approvalv1.Approval {
	t.Helper()
	resp, err := s.person(t, "viewer").GetApproval(timeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetApproval()
}

func otherDefinition(c *approvalv1.BoundCall) { c.Call.DefinitionDigest = bytes.Repeat([]byte{2}, 32) }
func otherServer(c *approvalv1.BoundCall)     { c.ServerIdentity = "http http://elsewhere/mcp" }

// Case A4. A tool or its server changes, and the caller requests the same call again with differently formatted JSON.
// The request cancels the approval for the old tool.
func TestRequestApproval_CancelsApprovalsOfAChangedTool(t *testing.T) {
	const spelled = `{ "arguments":{"sum":125e-1}, "name":"refund" }`
	for name, change := range map[string]func(*approvalv1.BoundCall){"its definition": otherDefinition, "its server": otherServer} {
		t.Run(name, func(t *testing.T) {
			forEachStore(t, func(c *approval.Config) { c.MaxPending = 1 }, func(t *testing.T, s *fixture) {
				was := s.askAs(t, bot(), params, nil)
				w := s.watch(t, "viewer", &approvalv1.WatchApprovalsRequest{ApprovalId: was.GetId()})
				next(t, w)
				is := s.askAs(t, bot(), spelled, change)
				if is.GetId() == was.GetId() || is.GetState() != pending {
					t.Errorf("the approval for the new tool is %v", is)
				}
				if m := next(t, w).GetApproval(); m.GetState() != cancelled || m.GetCode() != commonv1.Code_CODE_TOOL_CHANGED {
					t.Errorf("a watch of the approval for the old tool sends %v", m)
				}
				s.approve(t, "ana", is.GetId())
				s.askAs(t, bot(), params, nil)
				if got := s.get(t, is.GetId()); got.GetState() != cancelled || got.GetCode() != commonv1.Code_CODE_TOOL_CHANGED {
					t.Errorf("after the tool changed back, the approval for the new tool is %v", got)
				}
			})
		})
	}
}

// Case A4. A tool changes, and the caller requests a call again. The request does not cancel approvals of other calls
// or other callers, and it does not end grants.
func TestRequestApproval_CancelsNoOtherApprovalWhenAToolChanges(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
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
			t.Errorf("a call of the changed tool is not pending, so the grant covers it: %v", is)
		}
		if was := s.get(t, first.GetId()); was.GetState() != cancelled || was.GetGrant().GetExpires() == nil {
			t.Errorf("the approval with the grant is %v", was)
		}
		for what, a := range kept {
			if got := s.get(t, a.GetId()); got.GetState() != pending {
				t.Errorf("%s: %v", what, got)
			}
		}
		if more := s.askAs(t, bot(), `{"n":4}`, nil, grants); more.GetState() != approved || more.GetGrantedBy() != first.GetId() {
			t.Errorf("a call of the old tool is not covered by the grant: %v", more)
		}
	})
}
