package policy_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

const (
	// slowTime is the limit of the time for the tests of documents in a request. tooSlow is the finding if they take
	// longer.
	slowTime = 100 * time.Millisecond
	tooSlow  = "the tests of all documents take longer than 100ms: "
	// testsEach is the number of tests in each of slowDocuments.
	testsEach = 300
)

// slowDocuments returns documents whose tests take much longer than slowTime to run.
func slowDocuments() (documents []*policyv1.Document) {
	numbers := strings.TrimSuffix(strings.Repeat("1,", 34), ",")
	for d := range 4 {
		var b strings.Builder
		fmt.Fprintf(&b, "version: 1\nname: d%d\nserver: \"*\"\ndefault: deny\nrules:\n", d)
		for i := range 8 {
			fmt.Fprintf(&b, "  - {name: r%d, match: {tool: [a]}, action: deny, when: 'args.l.exists(x, args.l.exists(y, x > y && y > %d))'}\n", i, 1000+i)
		}
		b.WriteString("tests:\n")
		for range testsEach {
			b.WriteString("  - {call: {tool: a, server: s, args: {l: [" + numbers + "]}}, want: {action: deny}}\n")
		}
		documents = append(documents, &policyv1.Document{Path: fmt.Sprintf("d%d.yaml", d), Text: b.String()})
	}
	return documents
}

// The service limits the time for running the tests in the documents of one request.
func TestLintDocuments_LimitsTheTimeOfTests(t *testing.T) {
	t.Parallel()
	client := policyv1.NewPolicyServiceClient(serve(t, options{tokens: append(records(), otherTenantTokens()...), draftTestsWithin: slowTime}).Person(t, "acme-viewer"))
	resp, err := client.LintDocuments(t.Context(), &policyv1.LintDocumentsRequest{Documents: slowDocuments()})
	if err != nil {
		t.Fatal(err)
	}
	if got := resp.GetFindings(); len(got) != 1 || !strings.Contains(got[0].GetMessage(), tooSlow) {
		t.Errorf("the findings are %v, want the limit of the time", got)
	}
	tested, err := client.TestDocuments(t.Context(), &policyv1.TestDocumentsRequest{Documents: slowDocuments()})
	if err != nil {
		t.Fatal(err)
	}
	if got := tested.GetFindings(); len(got) != 1 || !strings.Contains(got[0].GetMessage(), tooSlow) || len(tested.GetResults()) == 0 || len(tested.GetResults()) == 4*testsEach {
		t.Errorf("%d results with the findings %v, want some results and the limit of the time", len(tested.GetResults()), got)
	}
}
