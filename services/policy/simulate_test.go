package policy_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const draftPolicy = `version: 1
name: draft
server: files
default: deny
tools:
  other: {action: allow}
  read: {action: allow}
rules:
  - {name: writes, match: {tool: write}, when: args.path == "/b", action: allow}
`

// The call is evaluated with the documents in the request and with the mesh's catalog. The definition of the tool named
// read has not been accepted, so calls to it are denied.
func TestSimulateCall_DecidesByTheDocumentsOfTheRequest(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(accessFixture(t).Person(t, "viewer"))
	for _, tt := range []struct{ tool, params, want, rule string }{
		{"other", "", "allow ", "draft/tools.other"},
		{"list", "", "deny denied_by_default", "/"},
		{"write", `{"arguments":{"path":"/b"}}`, "allow ", "draft/writes"},
		{"write", `{"arguments":{"path":"/a"}}`, "deny denied_by_default", "/"},
		{"read", "", "deny tool_changed", "/"},
	} {
		resp, err := client.SimulateCall(t.Context(), &policyv1.SimulateCallRequest{
			Documents: documentOf(draftPolicy), Call: &policyv1.Call{Server: "files", Name: tt.tool, ParamsJson: tt.params}, Subject: ana(),
		})
		if err != nil {
			t.Fatal(err)
		}
		d := resp.GetExplanation().GetDecision()
		got, rule := enum.Name(d.GetEffect())+" "+enum.NameOrEmpty(d.GetCode()), d.GetRule().GetDocument()+"/"+d.GetRule().GetRule()
		if got != tt.want || rule != tt.rule || resp.GetExplanation().GetWhy() == "" || len(resp.GetFindings()) > 0 {
			t.Errorf("%s %s: %q by %s, want %q by %s: %v", tt.tool, tt.params, got, rule, tt.want, tt.rule, resp)
		}
	}
}

func TestSimulateCall_ReturnsFindingsIfTheDocumentsDoNotLoad(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(serve(t, options{}).Person(t, "viewer"))
	failing := strings.Replace(testedDocument, "want: {action: allow}\n  - call", "want: {action: deny}\n  - call", 1)
	for _, text := range []string{strings.Replace(draftPolicy, "name: draft", "naem: draft", 1), failing} {
		resp, err := client.SimulateCall(t.Context(), &policyv1.SimulateCallRequest{Documents: documentOf(text), Call: call("read"), Subject: ana()})
		if err != nil || resp.GetExplanation() != nil || len(resp.GetFindings()) == 0 || resp.GetFindings()[0].GetLine() == 0 {
			t.Errorf("%v, %v; want findings", resp, err)
		}
	}
}

func TestSimulateCall_StopsCount(t *testing.T) {
	t.Parallel()
	f := newStopFixture(t, options{})
	f.stop(f.operator, &policyv1.StopSelector{All: true})
	resp, err := f.operator.SimulateCall(t.Context(), &policyv1.SimulateCallRequest{
		Documents: documentOf("version: 1\ndefault: allow\n"), Call: call("read"), Subject: ana(),
	})
	if err != nil || resp.GetExplanation().GetDecision().GetCode() != commonv1.Code_CODE_STOPPED {
		t.Errorf("%v, %v; want the stop", resp, err)
	}
}

// SimulateCall is refused to people in other tenants. Otherwise they could find out what the catalog contains by
// sending documents of their own.
func TestSimulateCall_IsRefusedToPeopleOfOtherTenants(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	req := &policyv1.SimulateCallRequest{Documents: documentOf(draftPolicy), Call: call("read"), Subject: rpctest.Principal("acme", "bob")}
	for _, name := range []string{"acme-operator", "acme-viewer"} {
		_, err := policyv1.NewPolicyServiceClient(l.Person(t, name)).SimulateCall(t.Context(), req)
		rpctest.WantStatus(t, err, codes.PermissionDenied, "TENANT_REFUSED")
	}
	nested := ana()
	behind := rpctest.Principal("default", "eve")
	behind.Chain = []*identityv1.Principal{ana()}
	nested.Chain = []*identityv1.Principal{behind}
	req.Subject = nested
	_, err := policyv1.NewPolicyServiceClient(l.Person(t, "viewer")).SimulateCall(t.Context(), req)
	rpctest.WantStatus(t, err, codes.InvalidArgument, "CHAIN_NESTED")
}

// The service stops running the tests in the documents of one request after five seconds in total.
func TestSimulateCall_LimitsTheTimeOfTests(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(serve(t, options{draftTestsWithin: slowTime}).Person(t, "viewer"))
	resp, err := client.SimulateCall(t.Context(), &policyv1.SimulateCallRequest{Documents: slowDocuments(), Call: call("read"), Subject: ana()})
	if err != nil || len(resp.GetFindings()) != 1 || !strings.Contains(resp.GetFindings()[0].GetMessage(), tooSlow) {
		t.Errorf("%v, %v; want the limit of the time", resp, err)
	}
}
