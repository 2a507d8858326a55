package approval_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

const (
	secretURI  = "https://ana:pass-1@host/plan?key=secret-2#secret-3"
	readSecret = `{"uri":"` + secretURI + `"}`
)

// reads makes the call read a resource.
func reads(uri string) func(*approvalv1.BoundCall) {
	return func(c *approvalv1.BoundCall) {
		c.Call.Method, c.Call.Name, c.Call.DefinitionDigest = "resources/read", uri, nil
	}
}

// X9: a URI may contain a secret. An approver sees it where arguments are shown, and it is shown nowhere else.
func TestX9AURIIsListedWithoutItsSecrets(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		a := s.askAs(t, bot(), readSecret, reads(secretURI))
		resp, err := s.person(t, "viewer").ListApprovals(soon(t), &approvalv1.ListApprovalsRequest{Filter: &approvalv1.ApprovalFilter{Name: secretURI}})
		if err != nil || len(resp.GetApprovals()) != 1 {
			t.Fatalf("found by the whole URI: %v, %v", resp, err)
		}
		v := s.view(t, "ana", a.GetId())
		if !strings.Contains(v.GetParams(), secretURI) {
			t.Errorf("the approver sees %s", v.GetParams())
		}
		if facts := viewtext.Facts(v); !strings.Contains(facts, "pay resources/read https://host/plan\n") || !strings.Contains(facts, "The name above is cut") || strings.Contains(facts, "catalog") {
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

// A URI that differs only in a secret needs another approval. The approval is found by the whole URI when the server
// changes.
func TestA1URIsThatAreShownAlikeAreBoundWhole(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		a := s.askAs(t, bot(), readSecret, reads(secretURI))
		other := strings.Replace(secretURI, "secret-2", "secret-4", 1)
		b := s.askAs(t, bot(), strings.Replace(readSecret, secretURI, other, 1), reads(other))
		if a.GetName() != b.GetName() || a.GetId() == b.GetId() {
			t.Errorf("%v\n%v", a, b)
		}
		s.askAs(t, bot(), readSecret, func(c *approvalv1.BoundCall) {
			reads(secretURI)(c)
			otherServer(c)
		})
		if got := s.get(t, a.GetId()); got.GetState() != cancelled {
			t.Errorf("what waits for the server as it was: %v", got)
		}
		if got := s.get(t, b.GetId()); got.GetState() != pending {
			t.Errorf("another one: %v", got)
		}
	})
}

// A prompt is not compared with calls of a tool of the same name.
func TestMethodsAreNotComparedWithEachOther(t *testing.T) {
	each(t, nil, func(t *testing.T, s *site) {
		s.made(t, s.ask(t, `{"n":1}`).GetApproval().GetId(), "c1", approvalv1.CallOutcome_CALL_OUTCOME_DONE)
		a := s.askAs(t, bot(), `{"n":2}`, func(c *approvalv1.BoundCall) { c.Call.Method, c.Call.DefinitionDigest = "prompts/get", nil })
		v := s.view(t, "ana", a.GetId())
		if v.GetPreviousApprovalId() != "" || slices.ContainsFunc(v.GetWarnings(), func(w string) bool { return strings.Contains(w, "tool") }) {
			t.Errorf("people are shown %v", v)
		}
	})
}
