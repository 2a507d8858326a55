package policy_test

import (
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
	"github.com/sluice-mesh/sluice/services/policy"
)

func TestLint(t *testing.T) {
	t.Parallel()
	viewer := policyv1.NewPolicyServiceClient(serve(t, options{}).Person(t, "viewer"))
	tests := []struct {
		name      string
		documents []*policyv1.Document
		want      []*policyv1.Finding
	}{
		{name: "a document that loads", documents: []*policyv1.Document{{Path: "a.yaml", Text: document}}},
		{
			name: "documents that do not load, each with its places",
			documents: []*policyv1.Document{
				{Path: "a.yaml", Text: "version: 1\ndefault: deny\ntools:\n  read: {action: alow}\n"},
				{Path: "b.yaml", Text: "version: 2\ndefualt: deny\n"},
			},
			want: []*policyv1.Finding{
				{Path: "a.yaml", Line: 4, Column: 18}, {Path: "b.yaml", Line: 1, Column: 10}, {Path: "b.yaml", Line: 2, Column: 1},
			},
		},
		{
			name:      "two documents of one name",
			documents: []*policyv1.Document{{Path: "a.yaml", Text: document}, {Path: "b.yaml", Text: document}},
			want:      []*policyv1.Finding{{Path: "b.yaml", Line: 2, Column: 7}},
		},
		{
			name:      "a document without content",
			documents: []*policyv1.Document{{Path: "a.yaml"}},
			want:      []*policyv1.Finding{{Path: "a.yaml", Line: 1, Column: 1}},
		},
		{
			name:      "a document that contains a control character",
			documents: []*policyv1.Document{{Path: "a.yaml", Text: "version: 1\n \x01"}},
			want:      []*policyv1.Finding{{Path: "a.yaml", Line: 2, Column: 2}},
		},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			resp, err := viewer.LintDocuments(t.Context(), &policyv1.LintDocumentsRequest{Documents: c.documents})
			if err != nil {
				t.Fatal(err)
			}
			findings := withoutUnlisted(resp.GetFindings())
			positions := protocmp.FilterField(new(policyv1.Finding), "message", cmp.Ignore())
			fixes := protocmp.FilterField(new(policyv1.Finding), "suggestion", cmp.Ignore())
			for _, f := range c.want {
				f.Severity, f.Check = policyv1.Severity_SEVERITY_ERROR, "load"
			}
			if diff := cmp.Diff(c.want, findings, protocmp.Transform(), positions, fixes); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for _, f := range findings {
				if f.GetMessage() == "" {
					t.Errorf("%v has no message", f)
				}
			}
		})
	}
	_, err := viewer.LintDocuments(t.Context(), new(policyv1.LintDocumentsRequest))
	rpctest.WantStatus(t, err, codes.InvalidArgument, "INVALID_REQUEST")
}

// withoutUnlisted returns the findings except for those that say that a server has not been listed yet. It returns nil
// if there are no other findings.
func withoutUnlisted(all []*policyv1.Finding) (out []*policyv1.Finding) {
	for _, f := range all {
		if f.GetCheck() != "not-listed" {
			out = append(out, f)
		}
	}
	return out
}

func TestReadDocuments_FailsForAMissingFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "none.yaml")
	want := "the policy " + missing + " does not exist: name a file or a folder with policy documents"
	if _, err := policy.ReadDocuments([]string{missing}); err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}
