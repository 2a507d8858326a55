package safetext_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
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
	if diff := cmp.Diff(want, safetext.Facts(v)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The description says whose connections to servers the call can use.
func TestFacts_NamesThePerson(t *testing.T) {
	t.Parallel()
	v := &approvalv1.View{Server: "pay", Name: "refund", Subject: "bot", Agent: "dev", Owner: "olga", Person: "olga"}
	if got := safetext.Facts(v); !strings.Contains(got, "asked by       bot, agent dev, which works for olga, with the connections of olga\n") {
		t.Errorf("%s", got)
	}
}

// The description of a call to a method other than tools/call contains the method, and no category or risk.
func TestFacts_OtherMethods(t *testing.T) {
	t.Parallel()
	v := &approvalv1.View{Server: "files", Name: "note://plan", Method: "resources/read", Subject: "bot"}
	want := `call           files resources/read note://plan
asked by       bot
rule           the default
who decides    an operator or approver
`
	if diff := cmp.Diff(want, safetext.Facts(v)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestFacts_NumberOfChangedArguments(t *testing.T) {
	t.Parallel()
	for want, n := range map[string]int{"no argument differs": 0, "1 argument differs": 1, "2 arguments differ": 2} {
		v := &approvalv1.View{PreviousApprovalId: "a-1", ChangesTotal: int32(n), Changes: make([]*approvalv1.ArgumentChange, n)}
		if got := safetext.Facts(v); !strings.Contains(got, " "+want+"\n") {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestApprovers(t *testing.T) {
	t.Parallel()
	for want, terms := range map[string]*policyv1.ApprovalTerms{
		"an operator or approver":                             {Quorum: 1},
		"3 operators or approvers":                            {Quorum: 3},
		"an operator or approver of a, b":                     {Quorum: 1, Approvers: []string{"a", "b"}},
		"an operator or approver, or the person at the agent": {Quorum: 1, SelfConfirm: true},
		"2 operators or approvers of a, signed in at most 5m ago with acr phr or phrh": {
			Quorum: 2, Approvers: []string{"a"}, ApproveWith: &policyv1.StepUp{MaxAge: durationpb.New(5 * time.Minute), AcrValues: []string{"phr", "phrh"}},
		},
		"an operator or approver, signed in with acr phr": {Quorum: 1, ApproveWith: &policyv1.StepUp{AcrValues: []string{"phr"}}},
	} {
		if got := safetext.Approvers(terms); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestShortDuration(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"1m": time.Minute, "5m": 5 * time.Minute, "1m30s": 90 * time.Second, "10m": 10 * time.Minute, "1h": time.Hour, "10h": 10 * time.Hour, "1h30m": 90 * time.Minute,
		"24h": 24 * time.Hour, "1h0m30s": time.Hour + 30*time.Second, "20s": 20 * time.Second, "20m20s": 20*time.Minute + 20*time.Second,
	} {
		if got := safetext.ShortDuration(d); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// The machine-readable form contains the authentication that approvers need, and the one that a voter had.
func TestOf_ContainsTheAuthentication(t *testing.T) {
	t.Parallel()
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	got := safetext.ApprovalOf(&approvalv1.Approval{
		Terms: &policyv1.ApprovalTerms{Quorum: 1, ApproveWith: &policyv1.StepUp{MaxAge: durationpb.New(5 * time.Minute), AcrValues: []string{"phr"}}},
		Votes: []*approvalv1.Vote{{Subject: "ana", AuthTime: timestamppb.New(at), Acr: "phr"}},
	})
	want := safetext.Approval{
		State: "unspecified", Quorum: 1, ApproveWith: &safetext.StepUp{MaxAge: 300, ACR: []string{"phr"}},
		Votes: []safetext.Vote{{Subject: "ana", Verdict: "unspecified", AuthTime: at, ACR: "phr"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The machine-readable form also contains the grant of an approval, and whether the person who uses the agent may
// confirm the call.
func TestOf_ContainsGrantAndConfirmation(t *testing.T) {
	t.Parallel()
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	got := safetext.ApprovalOf(&approvalv1.Approval{
		Terms: &policyv1.ApprovalTerms{Quorum: 1, SelfConfirm: true, Grant: &policyv1.Grant{Calls: 3, Within: durationpb.New(time.Hour)}},
		Grant: &approvalv1.GrantRecord{Calls: 3, Used: 2, Expires: timestamppb.New(until)}, GrantedBy: "a-1",
		Votes: []*approvalv1.Vote{{Subject: "bot", Verdict: approvalv1.Verdict_VERDICT_APPROVE, Channel: approvalv1.VoteChannel_VOTE_CHANNEL_ELICITATION}, {Subject: "ana"}},
	})
	want := safetext.Approval{
		State: "unspecified", Quorum: 1, SelfConfirm: true, GrantedBy: "a-1",
		Grant: &safetext.Grant{Calls: 3, Used: 2, Within: 3600, Expires: until},
		Votes: []safetext.Vote{{Subject: "bot", Verdict: "approve", Channel: "elicitation"}, {Subject: "ana", Verdict: "unspecified"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
