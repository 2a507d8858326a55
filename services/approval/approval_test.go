package approval_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"
	tracenoop "go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/approval"
	"github.com/sluice-mesh/sluice/services/approval/internal/notice"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/rpc/rpctest"
)

const (
	pending   = approvalv1.ApprovalState_APPROVAL_STATE_PENDING
	approved  = approvalv1.ApprovalState_APPROVAL_STATE_APPROVED
	claimed   = approvalv1.ApprovalState_APPROVAL_STATE_CLAIMED
	done      = approvalv1.ApprovalState_APPROVAL_STATE_DONE
	denied    = approvalv1.ApprovalState_APPROVAL_STATE_DENIED
	cancelled = approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED

	yes = approvalv1.Verdict_VERDICT_APPROVE
	no  = approvalv1.Verdict_VERDICT_DENY
)

func TestService_ImplementsEveryMethodForItsCallers(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
	s := serve(t, cfg)
	s.CheckCallers(t, "sluice.approval.v1", "sluice.approval.v1.ApprovalService.RequestApproval", "sluice.approval.v1.ApprovalService.GetApproval",
		"sluice.approval.v1.ApprovalService.ListApprovals", "sluice.approval.v1.ApprovalService.WatchApprovals", "sluice.approval.v1.ApprovalService.DecideApproval",
		"sluice.approval.v1.ApprovalService.ClaimApproval", "sluice.approval.v1.ApprovalService.RenewClaim", "sluice.approval.v1.ApprovalService.ReleaseClaim",
		"sluice.approval.v1.ApprovalService.CompleteClaim", "sluice.approval.v1.ApprovalService.ResolveOutcome", "sluice.approval.v1.ApprovalService.CancelApproval")
	s.CheckHealth(t, "approval")
}

// A person approves a call. The requester claims the approved call once, and receives exactly the call that the person
// approved. A request with the same JSON in a different format counts as the same call.
func TestClaimApproval_ClaimsAnApprovedCallOnce(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		asked := s.ask(t, `{"name":"refund","arguments":{"sum":12.50},"_meta":{"progressToken":7,"dev.sluice/run":"r"}}`)
		if !asked.GetOpened() || asked.GetApproval().GetState() != pending || asked.GetApproval().GetCode() != commonv1.Code_CODE_APPROVAL_PENDING {
			t.Fatalf("asked: %v", asked)
		}
		id := asked.GetApproval().GetId()
		if again := s.ask(t, `{"arguments":{"sum":125e-1},"name":"refund"}`); again.GetOpened() || again.GetApproval().GetId() != id {
			t.Errorf("the same call in another spelling has another approval: %v", again)
		}
		if shown := s.view(t, "ana", id); !strings.Contains(shown.GetParams(), `"sum": 12.50`) || shown.GetSubject() != "bot" || shown.GetOwner() != "olga" {
			t.Errorf("people see %v", shown)
		}
		s.approve(t, "ana", id)
		a := s.ask(t, params).GetApproval()
		if a.GetState() != approved || a.GetVotes()[0].GetSubject() != "ana" {
			t.Fatalf("after the vote: %v", a)
		}
		resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1"))
		if err != nil || resp.GetClaimed().GetBound().GetCall().GetParamsJson() != params {
			t.Fatalf("claimed: %v, %v", resp, err)
		}
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c2")); err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_USED || !resp.GetRefusal().GetLeaseUnused() {
			t.Errorf("claimed again: %v, %v", resp, err)
		}
		if renewed, err := s.gateway().RenewClaim(timeoutContext(t), &approvalv1.RenewClaimRequest{ApprovalId: id, ClaimId: "c1", Holder: "gw-1", Lease: durationpb.New(time.Hour)}); err != nil || time.Until(renewed.GetLeaseExpires().AsTime()) < 50*time.Minute {
			t.Errorf("renewed: %v, %v", renewed, err)
		}
		told, err := s.gateway().CompleteClaim(timeoutContext(t), &approvalv1.CompleteClaimRequest{ApprovalId: id, ClaimId: "c1", Holder: "gw-1", Outcome: approvalv1.CallOutcome_CALL_OUTCOME_DONE})
		if err != nil || !told.GetCompleted() || told.GetApproval().GetState() != done {
			t.Errorf("completed: %v, %v", told, err)
		}
		if next := s.ask(t, params); !next.GetOpened() || next.GetApproval().GetId() == id {
			t.Errorf("the same call, later: %v", next)
		}
		history, err := s.person(t, "viewer").GetApproval(timeoutContext(t), &approvalv1.GetApprovalRequest{ApprovalId: id})
		if err != nil || len(history.GetHistory()) != 4 || history.GetView() != nil {
			t.Errorf("the history is %v, %v", history, err)
		}
	})
}

func TestRequestApproval_RefusesADeniedCallDuringTheCoolDown(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.CoolDown = 2 * time.Second }, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		resp, err := s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: a.GetId(), Verdict: no, Comment: "too much"})
		if err != nil || resp.GetApproval().GetState() != denied {
			t.Fatal(resp, err)
		}
		again, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d2"})
		r := again.GetRefusal()
		if err != nil || r.GetCode() != commonv1.Code_CODE_APPROVAL_DENIED || r.GetMessage() != "too much" || r.GetRetryAfter().AsDuration() <= 0 || r.GetRetryAfter().AsDuration() > 2*time.Second {
			t.Fatalf("asked again: %v, %v", again, err)
		}
		for name, said := range map[string]*approvalv1.Approval{"the vote's answer": resp.GetApproval(), "the refusal": r.GetApproval(), "the list": s.get(t, a.GetId())} {
			if until := said.GetDeniedUntil().AsTime(); !until.Equal(said.GetEnded().AsTime().Add(2 * time.Second)) {
				t.Errorf("%s says that it is denied until %s; it ended at %s", name, until, said.GetEnded().AsTime())
			}
		}
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1")); err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_APPROVAL_DENIED {
			t.Errorf("claimed: %v, %v", resp, err)
		}
		<-time.After(r.GetRetryAfter().AsDuration())
		if later := s.ask(t, params); !later.GetOpened() {
			t.Errorf("after the cool-down: %v", later)
		}
	})
}

// A person denies a call. During the cool-down, the call stays denied if only its _meta or its non-essential params
// change. A call with other arguments opens a new approval, and so does the same call by another caller.
func TestRequestApproval_RefusesADeniedCallWithOtherMeta(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		const first = `{"name":"refund","arguments":{"sum":12.50},"_meta":{"x":1}}`
		a := s.ask(t, first).GetApproval()
		if _, err := s.person(t, "ana").DecideApproval(timeoutContext(t), &approvalv1.DecideApprovalRequest{ApprovalId: a.GetId(), Verdict: no}); err != nil {
			t.Fatal(err)
		}
		for _, again := range []string{
			first, params, `{"name":"refund","arguments":{"sum":125e-1},"_meta":{"x":2}}`, `{"name":"refund","arguments":{"sum":12.5},"_meta":{"y":{}}}`,
			`{"name":"refund","arguments":{"sum":12.5},"_meta":[]}`, `{"name":"refund","arguments":{"sum":12.5},"zzz":0}`,
		} {
			resp, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), &approvalv1.RequestApprovalRequest{Bound: bound(again), Decision: decision(), DecisionId: "d2"})
			if r := resp.GetRefusal(); err != nil || r.GetCode() != commonv1.Code_CODE_APPROVAL_DENIED || r.GetApproval().GetId() != a.GetId() || r.GetRetryAfter().AsDuration() <= 0 {
				t.Errorf("%s: %v, %v", again, resp, err)
			}
		}
		if other := s.ask(t, `{"name":"refund","arguments":{"sum":12.51},"_meta":{"x":1}}`); !other.GetOpened() {
			t.Errorf("other arguments: %v", other)
		}
		child := &identityv1.Principal{Tenant: "default", Subject: "child", Role: authv1.TokenRole_TOKEN_ROLE_AGENT}
		resp, err := s.gateway().RequestApproval(onBehalfOf(t, child), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d3"})
		if err != nil || !resp.GetAsked().GetOpened() {
			t.Errorf("another caller: %v, %v", resp, err)
		}
	})
}

func TestRequestApproval_RefusesACallOverMaxPending(t *testing.T) {
	forEachStore(t, func(c *approval.Config) { c.MaxPending = 2 }, func(t *testing.T, s *fixture) {
		for i := range 2 {
			s.ask(t, fmt.Sprintf(`{"n":%d}`, i))
		}
		child := &identityv1.Principal{Tenant: "default", Subject: "child", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, Chain: []*identityv1.Principal{bot()}}
		for _, who := range []*identityv1.Principal{bot(), child} {
			resp, err := s.gateway().RequestApproval(onBehalfOf(t, who), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d"})
			if err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_TOO_MANY_PENDING {
				t.Errorf("%s: %v, %v", who.GetSubject(), resp, err)
			}
		}
		other := bot()
		other.Subject = "other"
		if resp, err := s.gateway().RequestApproval(onBehalfOf(t, other), &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d"}); err != nil || !resp.GetAsked().GetOpened() {
			t.Errorf("another caller: %v, %v", resp, err)
		}
	})
}

func TestRequestApproval_RefusesAnInvalidRequest(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		for name, tt := range map[string]struct {
			req    *approvalv1.RequestApprovalRequest
			reason string
		}{
			"no approval is required": {&approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}}, "APPROVAL_NOT_ASKED"},
			"confirmed without terms": {&approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), SelfVote: &approvalv1.SelfVote{ApprovalId: "a-1", Verdict: approvalv1.Verdict_VERDICT_APPROVE}}, "CONFIRMATION_REFUSED"},
			"a key twice":             {&approvalv1.RequestApprovalRequest{Bound: bound(`{"a":1,"\u0061":2}`), Decision: decision()}, "JSON_INVALID"},
		} {
			tt.req.DecisionId = "d"
			_, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), tt.req)
			if wantError(t, err, codes.InvalidArgument, tt.reason); t.Failed() {
				t.Fatal(name)
			}
		}
	})
}

func TestResolveOutcome_SettlesAnUnknownOutcome(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.approve(t, "ana", a.GetId())
		claim := claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) { r.Lease = durationpb.New(time.Second) })
		if resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claim); err != nil || resp.GetClaimed() == nil {
			t.Fatal(resp, err)
		}
		_, err := s.person(t, "operator").CancelApproval(timeoutContext(t), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "x"})
		wantError(t, err, codes.FailedPrecondition, "APPROVAL_RUNNING")
		<-time.After(1100 * time.Millisecond)
		_, err = s.gateway().ReleaseClaim(timeoutContext(t), &approvalv1.ReleaseClaimRequest{ApprovalId: a.GetId(), ClaimId: "c1", Holder: "gw-1", Reason: "x"})
		wantError(t, err, codes.FailedPrecondition, "LEASE_ENDED")
		resolve := &approvalv1.ResolveOutcomeRequest{ApprovalId: a.GetId(), Resolution: approvalv1.Resolution_RESOLUTION_DONE, Comment: "seen at the server"}
		for range 2 {
			if resp, err := s.person(t, "operator").ResolveOutcome(timeoutContext(t), resolve); err != nil || resp.GetApproval().GetState() != done {
				t.Error(resp, err)
			}
		}
		b := s.ask(t, `{"n":1}`).GetApproval()
		if resp, err := s.gateway().CancelApproval(onBehalfOf(t, bot()), &approvalv1.CancelApprovalRequest{ApprovalId: b.GetId(), Reason: "no need"}); err != nil || resp.GetApproval().GetState() != cancelled {
			t.Error(resp, err)
		}
	})
}

// Case A2.
func TestClaimApproval_OneOf200ConcurrentClaimsSucceeds(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.approve(t, "ana", a.GetId())
		a = s.ask(t, params).GetApproval()
		var sent atomic.Int64
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				ctx, claim := onBehalfOf(t, bot()), claimRequest(a, fmt.Sprint("c", i))
				resp, err := s.gateway().ClaimApproval(ctx, claim)
				for status.Code(err) == codes.Unavailable && ctx.Err() == nil { // the store may be slow on a busy machine; a claim is idempotent
					resp, err = s.gateway().ClaimApproval(ctx, claim)
				}
				if err != nil {
					t.Error(err)
				}
				if resp.GetClaimed() != nil {
					sent.Add(1)
				}
			})
		}
		wg.Wait()
		if sent.Load() != 1 {
			t.Errorf("%d callers may send the call, want 1", sent.Load())
		}
	})
}

// A service that opens the data directory of a closed service has the closed service's approvals. While a service is
// open, a second service can't open the same directory.
func TestService_HasItsApprovalsAfterARestart(t *testing.T) {
	t.Parallel()
	cfg := approval.DefaultConfig()
	cfg.Data = t.TempDir()
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
	a := s.ask(t, params).GetApproval()
	s.approve(t, "ana", a.GetId())
	if _, err := approval.New(t.Context(), cfg, policy.deps(approval.Deps{Tokens: tokens, Meter: noop.Meter{}, Tracer: tracenoop.Tracer{}, Log: discard()})); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := serve(t, cfg)
	if got := second.ask(t, params).GetApproval(); got.GetId() != a.GetId() || got.GetState() != approved {
		t.Errorf("after a restart: %v", got)
	}
}

func TestNew_RefusesAnInvalidConfiguration(t *testing.T) {
	t.Parallel()
	good := approval.DefaultConfig()
	good.Data = t.TempDir()
	deps := newFakePolicy(t).deps(approval.Deps{Tokens: new(authn.Tokens), Meter: noop.Meter{}, Tracer: tracenoop.Tracer{}, Log: discard()})
	for name, tt := range map[string]struct {
		change func(*approval.Config, *approval.Deps)
		want   string
	}{
		"no tokens":  {func(_ *approval.Config, d *approval.Deps) { d.Tokens = nil }, "required"},
		"no policy":  {func(_ *approval.Config, d *approval.Deps) { d.Policy = nil }, "required"},
		"no keys":    {func(_ *approval.Config, d *approval.Deps) { d.Verifier = nil }, "required"},
		"no meter":   {func(_ *approval.Config, d *approval.Deps) { d.Meter = nil }, "required"},
		"no tracer":  {func(_ *approval.Config, d *approval.Deps) { d.Tracer = nil }, "required"},
		"no log":     {func(_ *approval.Config, d *approval.Deps) { d.Log = nil }, "required"},
		"no time":    {func(c *approval.Config, _ *approval.Deps) { c.Execute = 0 }, "positive"},
		"no pending": {func(c *approval.Config, _ *approval.Deps) { c.MaxPending = 0 }, "max_pending must be at least 1"},
		"no asking":  {func(c *approval.Config, _ *approval.Deps) { c.MaxAsked = 0 }, "max_asked must be at least 1"},
		"no window":  {func(c *approval.Config, _ *approval.Deps) { c.AskedWindow = 25 * time.Hour }, "in a window of 1s to 24h"},
		"no folder":  {func(c *approval.Config, _ *approval.Deps) { c.Data = "" }, "a store"},
		"no store":   {func(c *approval.Config, _ *approval.Deps) { c.Source = "mysql://x" }, "no store is called"},
		"no webhook": {func(c *approval.Config, _ *approval.Deps) { c.Notices.Webhooks = make([]notice.Webhook, 1) }, "notices"},
	} {
		cfg, d := good, deps
		tt.change(&cfg, &d)
		if _, err := approval.New(t.Context(), cfg, d); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A call is approved, but the policy service denies it when the caller claims it. The requester can ask for a new
// approval immediately, because only a denial by a person has a cool-down.
func TestRequestApproval_OpensAgainAfterADenialByPolicy(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		s.approve(t, "ana", a.GetId())
		a = s.ask(t, params).GetApproval()
		resp, err := s.gateway().ClaimApproval(onBehalfOf(t, bot()), claimRequest(a, "c1", func(r *approvalv1.ClaimApprovalRequest) {
			r.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE}
		}))
		if err != nil || resp.GetRefusal().GetCode() != commonv1.Code_CODE_DENIED_BY_RULE {
			t.Fatal(resp, err)
		}
		if next := s.ask(t, params); !next.GetOpened() || next.GetApproval().GetState() != pending {
			t.Errorf("asked again: %v", next)
		}
	})
}

// An approval ends, and a later request contains its id. The service returns the ended approval and does not open a new
// one, because no caller would wait for a new approval.
func TestRequestApproval_OpensNothingForACallWhoseApprovalHasEnded(t *testing.T) {
	forEachStore(t, nil, func(t *testing.T, s *fixture) {
		a := s.ask(t, params).GetApproval()
		if _, err := s.gateway().CancelApproval(onBehalfOf(t, bot()), &approvalv1.CancelApprovalRequest{ApprovalId: a.GetId(), Reason: "the agent has ended"}); err != nil {
			t.Fatal(err)
		}
		again := &approvalv1.RequestApprovalRequest{Bound: bound(params), Decision: decision(), DecisionId: "d2", ApprovalId: a.GetId()}
		resp, err := s.gateway().RequestApproval(onBehalfOf(t, bot()), again)
		if asked := resp.GetAsked(); err != nil || asked.GetOpened() || asked.GetApproval().GetId() != a.GetId() || asked.GetApproval().GetState() != cancelled {
			t.Fatalf("%v, %v", resp, err)
		}
		if next := s.ask(t, params); !next.GetOpened() { // a new call
			t.Errorf("asked again: %v", next)
		}
		other := rpctest.Principal("default", "other")
		if resp, err := s.gateway().RequestApproval(onBehalfOf(t, other), again); status.Code(err) != codes.NotFound {
			t.Errorf("another caller that names the approval gets %v, %v", resp, err)
		}
	})
}
