package approval_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
)

// votes returns the attributes of the votes' spans, in the order in which the spans ended.
func (s *fixture) votes(t *testing.T) (out []map[string]string) {
	t.Helper()
	for _, span := range s.spans.Ended() {
		if span.Name() != "approval vote" {
			t.Errorf("a span is called %q", span.Name())
		}
		says := make(map[string]string)
		for _, a := range span.Attributes() {
			says[string(a.Key)] = a.Value.String()
		}
		out = append(out, says)
	}
	return out
}

// Each vote has a span, regardless of the channel through which it was cast. The span contains the verdict and either
// the new state or the error. It contains no string that a person wrote.
func TestTrace_HasASpanForEachVote(t *testing.T) {
	t.Parallel()
	s := serveOnDisk(t)
	first := s.ask(t, params, selfConfirm).GetApproval()
	if first.GetTraceParent() != "" {
		t.Errorf("requested without a trace, the approval has the traceparent %q", first.GetTraceParent())
	}
	if _, err := s.selfVote(t, first.GetId(), yes, selfConfirm); err != nil {
		t.Fatal(err)
	}
	second := s.ask(t, `{"n":2}`).GetApproval()
	for _, code := range []codes.Code{codes.OK, codes.FailedPrecondition} {
		token := map[codes.Code]string{codes.OK: "ana", codes.FailedPrecondition: "ben"}[code]
		_, err := s.person(t, token).DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: second.GetId(), Verdict: no, Comment: "canary"})
		wantError(t, err, code, map[codes.Code]string{codes.FailedPrecondition: "NOT_PENDING"}[code])
	}
	want := []map[string]string{
		{"sluice.approval.id": first.GetId(), "sluice.approval.verdict": "approve", "sluice.approval.state": "approved"},
		{"sluice.approval.id": second.GetId(), "sluice.approval.verdict": "deny", "sluice.approval.state": "denied"},
		{"sluice.approval.verdict": "deny", "error.type": "NOT_PENDING"},
	}
	if diff := cmp.Diff(want, s.votes(t)); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
}
