package approval_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice/fakeslack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// secret is the signing key of a webhook: 34 bytes in base64.
const secret = "whsec_YSBrZXkgb2YgdGhpcnR5LXR3byBieXRlcywgbm8gbGVzcw=="

// run runs the service's background work until the test ends.
func (s *fixture) run(t *testing.T) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background()) //nolint:usetesting // it is cancelled in the clean-up
	ended := make(chan error, 1)
	go func() { ended <- s.svc.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// press presses a button and returns the answer to the user.
func press(t *testing.T, fake *fakeslack.Server, user, action, value string) string {
	t.Helper()
	before := len(fake.Ephemerals())
	fake.Press(user, fakeslack.Channel, action, value)
	eventually.Holds(t, "the press of "+user+" is answered", func() bool { return len(fake.Ephemerals()) > before })
	return fake.Ephemerals()[before].Text
}

// Case A3. The configuration maps a Slack user to a subject. When the user presses a button, the vote has the subject
// of the mapping and the rights of the subject's tokens. The vote counts for the view that the message showed.
func TestSlackButton_VotesAsTheMappedSubject(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	cfg.Notices.Slack = &notice.Slack{
		Target: notice.Target{Name: "slack", Tenant: "default"}, AppToken: fakeslack.AppToken, BotToken: fakeslack.BotToken, Channel: fakeslack.Channel, API: fake.API(),
		People: map[string]string{"UANA": "ana", "UBEN": "ben", "UBOT": "bot", "UVIEWER": "viewer", "UOPERATOR": "operator", "UACME": "acme-operator", "UGONE": "gone"},
	}
	s := serve(t, cfg)
	s.run(t)
	finance := func(d *policyv1.Decision) { d.Approval.Quorum, d.Approval.Approvers = 2, []string{"finance"} }
	id := s.ask(t, params, finance).GetApproval().GetId()
	eventually.Holds(t, "the message is posted", func() bool { return len(fake.Messages()) == 1 && fake.Connected() })
	m := fake.Messages()[0]
	value := m.Button("approve")
	for user, want := range map[string]string{
		"UNOBODY": "no subject of Sluice", "UBOT": "or a principal in its chain", "UVIEWER": "neither an operator nor an approver", "UGONE": "neither an operator nor an approver",
		"UACME": "neither an operator nor an approver", "UOPERATOR": "in none of them",
	} {
		for _, action := range []string{"approve", "deny"} {
			if got := press(t, fake, user, action, value); !strings.HasPrefix(got, "Nothing was decided: ") || !strings.Contains(got, want) {
				t.Errorf("%s, %s: %s", user, action, got)
			}
		}
	}
	if got := press(t, fake, "UANA", "approve", id+" "+strings.Repeat("00", 32)); !strings.Contains(got, "the view has changed") {
		t.Errorf("a vote on another view: %s", got)
	}
	if got := s.ask(t, params, finance).GetApproval(); got.GetState() != pending || len(got.GetVotes()) != 0 {
		t.Fatalf("after the refused votes the approval is %v", got)
	}
	if got := press(t, fake, "UANA", "approve", value); got != "Your vote counts: 1 more must agree." {
		t.Errorf("the first of two votes: %s", got)
	}
	if got := press(t, fake, "UBEN", "approve", value); got != "Your vote counts: the call is approved." {
		t.Errorf("the second of two votes: %s", got)
	}
	a := s.ask(t, params, finance).GetApproval()
	for _, v := range a.GetVotes() {
		if v.GetChannel() != approvalv1.VoteChannel_VOTE_CHANNEL_SLACK || v.GetGroups()[0] != "finance" {
			t.Errorf("a vote: %v", v)
		}
	}
	if a.GetState() != approved || len(a.GetVotes()) != 2 {
		t.Fatalf("after both votes the approval is %v", a)
	}
	if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(finance) })); err != nil || resp.GetClaimed() == nil {
		t.Errorf("claimed: %v, %v", resp, err)
	}
	eventually.Holds(t, "the message has lost its buttons", func() bool { return fake.Messages()[0].Button("approve") == "" })
}

// A service closes before it has sent a notice. The next service on the same store sends the notice.
func TestNotice_IsSentAfterARestart(t *testing.T) {
	t.Parallel()
	told := make(chan string, 10)
	endpoint := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { told <- r.Header.Get("webhook-id") }))
	t.Cleanup(endpoint.Close)
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	cfg.Notices.Webhooks = []notice.Webhook{{
		Target: notice.Target{Name: "hook"}, URL: endpoint.URL,
		Secret: config.Secret(secret),
	}}
	tokens, err := authn.NewTokens(people())
	if err != nil {
		t.Fatal(err)
	}
	policy := newFakePolicy(t)
	first, err := approval.New(t.Context(), cfg, policy.deps(approval.Deps{Tokens: tokens, Meter: noop.Meter{}, Tracer: tracenoop.Tracer{}, Log: discard()}))
	if err != nil {
		t.Fatal(err)
	}
	s := &fixture{Server: rpctest.Serve(t, authv1.Role_ROLE_APPROVAL, first, rpctest.Options{Tokens: tokens}), svc: first, tokens: tokens, policy: policy, calls: new(sync.Map)}
	policy.start(t, first)
	id := s.ask(t, params).GetApproval().GetId()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	serve(t, cfg).run(t)
	select {
	case got := <-told:
		if got != id+"-1-hook" {
			t.Errorf("sent %s", got)
		}
	case <-timeoutContext(t).Done():
		t.Error("no notice was sent")
	}
}
