package viewtext_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

func TestFacts(t *testing.T) {
	t.Parallel()
	v := &approvalv1.View{
		Server: "pay", Name: "refund", Method: "tools/call", ServerIdentity: "http http://pay/mcp", Subject: "bot", Agent: "dev", Owner: "olga",
		Chain: []string{"carl", "dan"}, Rule: &policyv1.RuleRef{Document: "pay", Rule: "tools.refund"}, Message: "money moves",
		Terms: &policyv1.ApprovalTerms{Quorum: 2, Approvers: []string{"finance"}}, DecideBefore: timestamppb.New(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)),
		Warnings: []string{"Take care."}, PreviousApprovalId: "a-1", ChangesTotal: 2, Redacted: []string{"/arguments/key"},
		Changes: []*approvalv1.ArgumentChange{{Path: "/arguments/sum", Before: "1", After: "2", Cut: true}},
	}
	want := `call           pay refund
server         http http://pay/mcp
asked by       bot, agent dev, which works for olga
on behalf of   carl, for dan
class          not known
rule           pay/tools.refund
why            money moves
who decides    2 operators or approvers of finance
decide before  2030-01-02T03:04:05Z
careful        Take care.
since a-1      2 arguments differ, of which the first 1 are
  /arguments/sum 2, was 1 (cut here)
redacted       /arguments/key
`
	if diff := cmp.Diff(want, viewtext.Facts(v)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
