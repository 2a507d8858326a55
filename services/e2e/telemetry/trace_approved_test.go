package telemetry_test

import (
	"maps"
	"slices"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const voteSpan = "approval vote"

// approveOnlyPending approves the only pending approval with a comment, and returns its id.
func approveOnlyPending(t *testing.T, people approvalv1.ApprovalServiceClient) (id string) {
	t.Helper()
	list, err := people.ListApprovals(stack.TimeoutContext(t), new(approvalv1.ListApprovalsRequest))
	if err != nil || len(list.GetApprovals()) != 1 {
		t.Fatal(list, err)
	}
	id = list.GetApprovals()[0].GetId()
	shown, err := people.GetApproval(stack.TimeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = people.DecideApproval(stack.TimeoutContext(t), &approvalv1.DecideApprovalRequest{
		ApprovalId: id, Verdict: approvalv1.Verdict_VERDICT_APPROVE, Comment: "fine by me", ViewDigest: shown.GetView().GetDigest(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// awaitSpan waits for a span with this name, kind and attributes.
func awaitSpan(t *testing.T, c *stack.Collector, name string, kind tracev1.Span_SpanKind, attributes map[string]string) stack.Span {
	t.Helper()
	is := func(s stack.Span) bool {
		for key, want := range attributes {
			if s.Attributes[key] != want {
				return false
			}
		}
		return s.Name == name && s.Kind == kind
	}
	eventually.Holds(t, "the span "+name+" arrives", func() bool { return slices.ContainsFunc(c.Spans(""), is) })
	return c.Spans("")[slices.IndexFunc(c.Spans(""), is)]
}

// A call is refused with the approval's id, a person votes, and the caller repeats the call. The vote and the repeated
// call each have their own trace. Both traces contain the approval's id, as the trace of the refused call does, and
// link to that trace.
func TestTrace_ApprovedCallLinksToItsTicket(t *testing.T) {
	t.Parallel()
	c := stack.NewCollector(t)
	a := rawmesh.StartDistributed(t, rawmesh.PayPolicy, telemetryConfig(c, "sample: 1")+"\napprovals: {hold: 0s}", fastSpanExport)
	cl := a.Connect(t)
	if code := cl.Call("pay", `{"sum":1.5}`).Decision(t).Code; code != "approval_pending" {
		t.Fatalf("the ticket is %s", code)
	}
	id := approveOnlyPending(t, approvalv1.NewApprovalServiceClient(a.DialWithToken(t, authv1.Role_ROLE_APPROVAL, stack.OperatorToken)))
	if resp := cl.Call("pay", `{"sum":1.5}`); resp.IsError(t) {
		t.Fatalf("the retry: %s", resp.Body)
	}
	ticket := awaitSpan(t, c, "tools/call pay", serverSpan, map[string]string{"sluice.approval.id": id, "sluice.decision.code": "approval_pending"})
	vote := awaitSpan(t, c, voteSpan, innerSpan, map[string]string{"sluice.approval.id": id})
	retry := awaitSpan(t, c, "tools/call pay", serverSpan, map[string]string{"sluice.approval.id": id, "sluice.decision.effect": "allow"})
	want := map[string]string{"sluice.approval.id": id, "sluice.approval.verdict": "approve", "sluice.approval.state": "approved"}
	if !maps.Equal(vote.Attributes, want) {
		t.Errorf("the attributes of the vote are %v, want %v", vote.Attributes, want)
	}
	for _, s := range []stack.Span{vote, retry} {
		if s.Trace == ticket.Trace || s.Parent != "" || !slices.Equal(s.Links, []string{ticket.Trace}) {
			t.Errorf("%s is in trace %s with the parent %q and the links %v, want a root span with a link to the ticket's trace %s", s.Name, s.Trace, s.Parent, s.Links, ticket.Trace)
		}
	}
}
