package cli

import (
	"bytes"
	"strings"
	"testing"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

// If a list has more pages, the command prints a note on standard error.
func TestApprovalsList_SaysThatThereAreMorePages(t *testing.T) {
	t.Parallel()
	for _, output := range []string{"table", "json"} {
		for _, token := range []string{"more", ""} {
			var out, stderr bytes.Buffer
			resp := &approvalv1.ListApprovalsResponse{Approvals: []*approvalv1.Approval{{Id: "a-1"}}, NextPageToken: token}
			if err := (&tool{self: "sluice", out: &out, errOut: &stderr, output: output}).printApprovals(resp); err != nil {
				t.Fatal(err)
			}
			if told := strings.Contains(stderr.String(), "older approvals are not listed"); told != (token != "") || !strings.Contains(out.String(), "a-1") || strings.Contains(out.String(), "older") {
				t.Errorf("%s with the next page %q: stderr %q, stdout %q", output, token, stderr.String(), out.String())
			}
		}
	}
}

func TestApprovalID_PrefixMustMatchOneApproval(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		found []string
		want  string
		err   string
	}{
		"one":  {[]string{"1d217f99-a"}, "1d217f99-a", ""},
		"none": {nil, "", "no approval has an id that begins with \"1d217f99\": `sluice approvals list --all` prints the ids"},
		"two":  {[]string{"1d217f99-a", "1d217f99-b"}, "", "2 approvals have an id that begins with \"1d217f99\": give more characters of the id; `sluice approvals list --all` prints the ids"},
	} {
		got, err := (&tool{self: "sluice"}).onlyID(tt.found, "1d217f99")
		if got != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
