package approval_test

import (
	"encoding/hex"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice/fakeslack"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

// stepUp returns a change to terms that require an authentication.
func stepUp(age time.Duration, acr ...string) func(*policyv1.Decision) {
	return func(d *policyv1.Decision) {
		d.Approval.ApproveWith = &policyv1.StepUp{MaxAge: durationpb.New(age), AcrValues: acr}
	}
}

// session returns the session of a person with the role approver. at is the time of the authentication, or zero.
func session(name, subject string, at time.Time, acr string) *identityv1.TokenRecord {
	r := rpctest.Record(name, "default", authv1.TokenRole_TOKEN_ROLE_APPROVER)
	r.Token.Configured, r.Token.Subject, r.Token.Issuer, r.Token.Acr = false, subject, "corp", acr
	r.Token.Created, r.Token.Expires = timestamppb.New(time.Now()), timestamppb.New(time.Now().Add(12*time.Hour))
	if !at.IsZero() {
		r.Token.AuthTime = timestamppb.New(at)
	}
	return r
}

// A vote to approve needs a session that satisfies the terms. The refusal contains the parameters of a sign-in. A
// person who signs in again can vote on an approval that was requested before, and anybody who may vote can deny the
// call.
func TestDecideApproval_NeedsTheAuthenticationOfTheTerms(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		terms := stepUp(5*time.Minute, "phr", "phrh")
		id := s.ask(t, params, terms).GetApproval().GetId()
		now := time.Now()
		created := session("created", "zoe", now, "phr") // the times of a token that is no session don't count
		created.Token.Issuer, created.Token.Created = "", timestamppb.New(now.Add(-time.Hour))
		if err := s.tokens.Replace(slices.Concat(people(), []*identityv1.TokenRecord{
			created, session("old", "carl", now.Add(-time.Hour), "phr"), session("weak", "carl", now, "pwd"), session("silent", "carl", time.Time{}, ""), session("fresh", "carl", now, "phr"),
		})); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"max_age": "300", "acr_values": "phr phrh", "role": "approver"}
		for _, token := range []string{"ana", "created", "old", "weak", "silent"} {
			_, err := s.vote(t, token, id, yes)
			wantError(t, err, codes.FailedPrecondition, "STEP_UP_REQUIRED")
			if diff := cmp.Diff(want, rpc.Facts(err)); diff != "" {
				t.Errorf("%s: the facts (-want +got):\n%s", token, diff)
			}
		}
		if got := s.ask(t, params, terms).GetApproval(); got.GetState() != pending || len(got.GetVotes()) != 0 {
			t.Fatalf("after the refused votes the approval is %v", got)
		}
		a, err := s.vote(t, "fresh", id, yes)
		if err != nil || a.GetState() != approved || a.GetTerms().GetApproveWith().GetMaxAge().AsDuration() != 5*time.Minute || a.GetVotes()[0].GetAcr() != "phr" || a.GetVotes()[0].GetAuthTime() == nil {
			t.Fatalf("%v, %v", a, err)
		}
		a = s.ask(t, params, terms).GetApproval()
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c", func(r *approvalv1.ClaimApprovalRequest) { r.Decision = decision(terms) })); err != nil || resp.GetClaimed() == nil {
			t.Errorf("claimed: %v, %v", resp, err)
		}
		other := s.ask(t, `{"name":"refund","arguments":{"sum":2}}`, terms).GetApproval().GetId()
		if a, err := s.vote(t, "old", other, no); err != nil || a.GetState() != denied {
			t.Errorf("a refusal: %v, %v", a, err)
		}
	})
}

// The terms change after a vote without an authentication, so that they require one. The vote no longer counts.
func TestDecideApproval_VotesBeforeAStepUpDoNotCount(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		id := s.ask(t, params).GetApproval().GetId()
		s.approve(t, "ana", id)
		if a := s.ask(t, params, stepUp(time.Hour)).GetApproval(); a.GetState() != pending || len(a.GetVotes()) != 0 || a.GetTerms().GetApproveWith() == nil {
			t.Errorf("the approval is %v", a)
		}
		_, err := s.vote(t, "ana", id, yes)
		wantError(t, err, codes.FailedPrecondition, "STEP_UP_REQUIRED")
	})
}

// A grant of an approval without an authentication does not cover a call that requires one.
func TestRequestApproval_AGrantDoesNotReplaceAStepUp(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		granted := func(d *policyv1.Decision) {
			d.Approval.Grant = &policyv1.Grant{Calls: 9, Within: durationpb.New(time.Hour)}
		}
		s.approve(t, "ana", s.ask(t, params, granted).GetApproval().GetId())
		const other = `{"name":"refund","arguments":{"sum":2}}`
		if a := s.ask(t, other, granted).GetApproval(); a.GetState() != approved {
			t.Fatalf("the grant does not cover the same terms: %v", a)
		}
		if a := s.ask(t, `{"name":"refund","arguments":{"sum":3}}`, granted, stepUp(time.Hour)).GetApproval(); a.GetState() != pending {
			t.Errorf("the approval is %v", a)
		}
	})
}

// The person who uses the agent can't confirm a call that requires an authentication.
func TestSelfVote_IsRefusedIfTheTermsNeedAnAuthentication(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		id := s.ask(t, params, selfConfirm, stepUp(time.Hour)).GetApproval().GetId()
		_, err := s.selfVote(t, id, approvalv1.Verdict_VERDICT_APPROVE, selfConfirm, stepUp(time.Hour))
		wantError(t, err, codes.InvalidArgument, "CONFIRMATION_REFUSED")
		resp, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{
			Bound: bound(params), Decision: decision(selfConfirm, stepUp(time.Hour)), DecisionId: "d1", CanConfirm: true,
		})
		if err != nil || resp.GetAsked().GetConfirm() {
			t.Errorf("the person at the agent is asked: %v, %v", resp, err)
		}
	})
}

// The message in Slack has commands instead of buttons. A press of a button of an older message is refused, even if the
// person has a session that satisfies the terms.
func TestSlackButton_DoesNotReplaceAStepUp(t *testing.T) {
	t.Parallel()
	fake := fakeslack.Start(t)
	cfg := approvalConfig(t)
	cfg.Notices.Slack = &notice.Slack{
		Target: notice.Target{Name: "slack", Tenant: "default"}, AppToken: fakeslack.AppToken, BotToken: fakeslack.BotToken, Channel: fakeslack.Channel, API: fake.API(),
		People: map[string]string{"UCARL": "carl"},
	}
	s := serve(t, cfg)
	s.run(t)
	if err := s.tokens.Replace(append(people(), session("fresh", "carl", time.Now(), "phr"))); err != nil {
		t.Fatal(err)
	}
	s.ask(t, params)
	eventually.Holds(t, "the message is posted", func() bool { return len(fake.Messages()) == 1 && fake.Connected() })
	id := s.ask(t, params, stepUp(time.Hour)).GetApproval().GetId()
	eventually.Holds(t, "people are asked again", func() bool { return len(fake.Messages()) == 2 })
	if fake.Messages()[1].Button("approve") != "" || fake.Messages()[1].Button("deny") != "" {
		t.Errorf("the message has buttons: %v", fake.Messages()[1])
	}
	value := id + " " + hex.EncodeToString(s.view(t, "operator", id).GetDigest())
	if got := press(t, fake, "UCARL", "approve", value); !strings.HasPrefix(got, "Nothing was decided: approving this call needs a person who has signed in at most 1h ago") || !strings.Contains(got, "sluice approvals approve "+id) {
		t.Errorf("a press: %s", got)
	}
	if got := press(t, fake, "UCARL", "deny", value); got != "Your vote counts: the call is denied." {
		t.Errorf("a refusal: %s", got)
	}
}

// A session satisfies the terms until its authentication is too old, also if the approval was requested before.
func TestDecideApproval_StepUpEndsWithTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		policy := newFakePolicy(t)
		fresh := session("fresh", "carl", time.Now(), "")
		tokens, err := authn.NewTokens(append(people(), fresh))
		if err != nil {
			t.Fatal(err)
		}
		svc := newService(t, approvalConfig(t), policy.deps(approval.Deps{
			Tokens: tokens, Meter: sdkmetric.NewMeterProvider().Meter("test"), Tracer: noop.NewTracerProvider().Tracer("test"), Log: slog.New(slog.DiscardHandler),
		}))
		policy.start(t, svc)
		voter, err := tokens.Lookup(rpctest.Secret("fresh"))
		if err != nil {
			t.Fatal(err)
		}
		person := authn.WithCaller(t.Context(), &authn.Caller{Person: voter})
		terms := func(d *policyv1.Decision) { d.Approval.Quorum = 3; stepUp(5 * time.Minute)(d) }
		ask := func(text string) string {
			req := &approvalv1.RequestApprovalRequest{Bound: bound(text), Decision: decision(terms), DecisionId: "d1"}
			req.SignedDecision = policy.sign(t, bot(), req.GetBound().GetCall(), req.GetDecision(), func(s *policyv1.DecisionStatement) { s.ServerIdentity = req.GetBound().GetServerIdentity() })
			resp, err := svc.RequestApproval(authn.WithCaller(t.Context(), &authn.Caller{Role: authv1.Role_ROLE_GATEWAY, Principal: bot()}), req)
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetAsked().GetApproval().GetId()
		}
		vote := func(id string) error {
			seen, err := svc.GetApproval(person, &approvalv1.GetApprovalRequest{ApprovalId: id, View: true})
			if err != nil {
				t.Fatal(err)
			}
			_, err = svc.DecideApproval(person, &approvalv1.DecideApprovalRequest{ApprovalId: id, Verdict: yes, ViewDigest: seen.GetView().GetDigest()})
			return err
		}
		first, second := ask(`{"name":"refund","arguments":{"sum":1}}`), ask(`{"name":"refund","arguments":{"sum":2}}`)
		time.Sleep(5 * time.Minute)
		if err := vote(first); err != nil {
			t.Errorf("after 5 minutes: %v", err)
		}
		time.Sleep(time.Second)
		wantError(t, vote(second), codes.FailedPrecondition, "STEP_UP_REQUIRED")
		if err := vote(first); err != nil {
			t.Errorf("the vote that was cast before, once more: %v", err)
		}
	})
}
