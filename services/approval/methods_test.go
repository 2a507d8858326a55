package approval_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

const (
	secretURI  = "https://ana:pass-1@host/plan?key=secret-2#secret-3"
	readSecret = `{"uri":"` + secretURI + `"}`
)

func readResource(uri string) func(*approvalv1.BoundCall) {
	return func(c *approvalv1.BoundCall) {
		c.Call.Method, c.Call.Name, c.Call.DefinitionDigest = "resources/read", uri, nil
	}
}

// Case X9. The URI of a resource contains a secret. Only the arguments in the view show the secret.
func TestListApprovals_HidesSecretsInURIs(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.askAs(t, bot(), readSecret, readResource(secretURI))
		resp, err := s.person(t, "viewer").ListApprovals(timeoutContext(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{Name: secretURI}})
		if err != nil || len(resp.GetApprovals()) != 1 {
			t.Fatalf("a list filtered by the whole URI has %v, %v", resp, err)
		}
		v := s.view(t, "ana", a.GetId())
		if !strings.Contains(v.GetParams(), secretURI) {
			t.Errorf("the approver sees %s", v.GetParams())
		}
		if facts := safetext.Facts(v); !strings.Contains(facts, "pay resources/read https://host/plan\n") || !strings.Contains(facts, "The name above is cut") || strings.Contains(facts, "catalog") {
			t.Errorf("the facts are\n%s", facts)
		}
		v.Params = ""
		for _, text := range []string{prototext.Format(resp.GetApprovals()[0]), prototext.Format(a), prototext.Format(v)} {
			for _, secret := range []string{"pass-1", "secret-2", "secret-3"} {
				if strings.Contains(text, secret) {
					t.Errorf("%s is in\n%s", secret, text)
				}
			}
		}
	})
}

// Case A1. Calls with URIs that differ only in a secret need separate approvals. If the server changes, a request
// cancels only the approval with the same URI.
func TestRequestApproval_BindsTheWholeURI(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.askAs(t, bot(), readSecret, readResource(secretURI))
		other := strings.Replace(secretURI, "secret-2", "secret-4", 1)
		b := s.askAs(t, bot(), strings.Replace(readSecret, secretURI, other, 1), readResource(other))
		if a.GetName() != b.GetName() || a.GetId() == b.GetId() {
			t.Errorf("%v\n%v", a, b)
		}
		s.askAs(t, bot(), readSecret, func(c *approvalv1.BoundCall) {
			readResource(secretURI)(c)
			otherServer(c)
		})
		if got := s.get(t, a.GetId()); got.GetState() != cancelled {
			t.Errorf("the approval for the old server is %v", got)
		}
		if got := s.get(t, b.GetId()); got.GetState() != pending {
			t.Errorf("the approval with the other URI is %v", got)
		}
	})
}

// A tool and a prompt have the same name. The view of a call to the prompt is not compared with a call to the tool.
func TestView_ComparesOnlyCallsOfTheSameMethod(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		s.completeCall(t, s.ask(t, `{"n":1}`).GetApproval().GetId(), "c1", approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		a := s.askAs(t, bot(), `{"n":2}`, func(c *approvalv1.BoundCall) { c.Call.Method, c.Call.DefinitionDigest = "prompts/get", nil })
		v := s.view(t, "ana", a.GetId())
		if v.GetPreviousApprovalId() != "" || slices.ContainsFunc(v.GetWarnings(), func(w string) bool { return strings.Contains(w, "tool") }) {
			t.Errorf("the view is %v", v)
		}
	})
}
