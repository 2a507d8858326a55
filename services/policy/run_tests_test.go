package policy_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/policy"
)

const testedDocument = `version: 1
server: demo
default: deny
tools:
  read: {action: allow}
tests:
  - name: reading
    call: {tool: read}
    want: {action: allow}
  - call: {tool: write}
    want: {action: allow}
`

// testedResults returns the expected results of the tests in testedDocument, which is in the file a.yaml.
func testedResults() []*policyv1.TestResult {
	return []*policyv1.TestResult{
		{Path: "a.yaml", Document: "a", Line: 7, Column: 5, Name: "reading", Passed: true},
		{
			Path: "a.yaml", Document: "a", Line: 10, Column: 5,
			Message: "tests[1]: the test fails: wanted the action allow, got deny. No rule matched; the default of document a denies",
		},
	}
}

// TestDocuments returns a result for each test. People in other tenants also get the results, because they sent the
// documents themselves.
func TestTestDocuments_ReturnsAResultForEachTest(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	for _, name := range []string{"viewer", "acme-viewer"} {
		client := policyv1.NewPolicyServiceClient(l.Person(t, name))
		resp, err := client.TestDocuments(t.Context(), &policyv1.TestDocumentsRequest{Documents: documentOf(testedDocument)})
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.GetFindings()) > 0 {
			t.Errorf("%s: %v", name, resp.GetFindings())
		}
		if diff := cmp.Diff(testedResults(), resp.GetResults(), protocmp.Transform(), protocmp.IgnoreFields(new(policyv1.TestResult), "message")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got := resp.GetResults()[1].GetMessage(); !strings.HasPrefix(got, "tests[1]: the test fails: wanted the action allow, got deny. ") {
			t.Errorf("%s: the message is %q", name, got)
		}
		broken, err := client.TestDocuments(t.Context(), &policyv1.TestDocumentsRequest{Documents: documentOf(strings.Replace(testedDocument, "allow}\ntests", "alow}\ntests", 1))})
		if err != nil || len(broken.GetResults()) > 0 || len(broken.GetFindings()) != 1 || broken.GetFindings()[0].GetLine() != 5 {
			t.Errorf("%s: documents that do not load: %v, %v", name, broken, err)
		}
	}
}

// Documents with approvers that do not exist can't be loaded. Only operators of the installation get the finding,
// because it reveals which tokens exist.
func TestTestDocuments_ChecksApproversForOperators(t *testing.T) {
	t.Parallel()
	l := accessFixture(t)
	text := "version: 1\ndefault: deny\ntools:\n  pay: {action: require_approval, approvers: [absent]}\n"
	for name, want := range map[string]int{"operator": 1, "viewer": 0, "acme-operator": 0} {
		resp, err := policyv1.NewPolicyServiceClient(l.Person(t, name)).TestDocuments(t.Context(), &policyv1.TestDocumentsRequest{Documents: documentOf(text)})
		if err != nil || len(resp.GetFindings()) != want {
			t.Errorf("%s: %v, %v; want %d findings", name, resp, err, want)
		}
	}
}

func TestRunTests_RunsOffline(t *testing.T) {
	t.Parallel()
	resp, err := policy.RunTests(t.Context(), nil, documentOf(testedDocument))
	if err != nil || len(resp.GetFindings()) > 0 {
		t.Fatalf("%v, %v", resp, err)
	}
	if diff := cmp.Diff(testedResults(), resp.GetResults(), protocmp.Transform(), protocmp.IgnoreFields(new(policyv1.TestResult), "message")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
