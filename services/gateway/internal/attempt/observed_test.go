package attempt_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/attempt"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// observing returns a decision that allows a call and contains the given limits, which are only recorded (mode:
// observe).
func observing(limits ...*policyv1.RuleLimit) *policyv1.Decision {
	d := allow()
	d.Observed = &policyv1.Observation{Effect: allows, Rule: d.GetRule(), Limits: limits}
	return d
}

// observedLimit returns a limit that belongs to a rule in the policy document named "draft".
func observedLimit(name string) *policyv1.RuleLimit {
	l := limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	l.Rule = &policyv1.RuleRef{Document: "draft", Rule: name}
	return l
}

func would(effect, code, rule string) journal.Observed {
	out := journal.Observed{Effect: effect, Code: code}
	if rule != "" {
		out.Rule = journal.Rule{Document: "draft", Rule: rule}
	}
	return out
}

func TestReserveObserved_ReservesOnlyObservedLimitsWithTheirOwnKey(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limiter.grants("one")
	d := observing(observedLimit("slow"))
	d.Limits = []*policyv1.RuleLimit{limitOf(policyv1.SessionKey_SESSION_KEY_RUN)}
	client, a := f.client(t), decided(newAttempt(t, callText), d)
	a, refused := client.Reserve(t.Context(), a, a.ID)
	if refused != nil {
		t.Fatalf("refused as %+v", refused)
	}
	a = client.ReserveObserved(t.Context(), a)
	if a.Lease.GetId() != "lease 1" || a.ObservedLease.GetId() != "lease 2" || a.ObservedRefusal != nil || a.Observed() != (journal.Observed{}) {
		t.Errorf("leases %q and %q, %+v, %+v", a.Lease.GetId(), a.ObservedLease.GetId(), a.ObservedRefusal, a.Observed())
	}
	if own, observed := f.limiter.asks[0], f.limiter.asks[1]; own.GetIdempotencyKey() == observed.GetIdempotencyKey() || len(observed.GetLimits()) != 1 || len(observed.GetIdempotencyKey()) > 128 {
		t.Errorf("requested %v, then %v", own, observed)
	}
}

func TestReserveObserved_ReservesNothingWithoutObservedLimits(t *testing.T) {
	t.Parallel()
	denied := observing(observedLimit("slow"))
	denied.Observed.Effect = denies
	for name, d := range map[string]*policyv1.Decision{
		"nothing is observed": limited(limitOf(policyv1.SessionKey_SESSION_KEY_RUN)), "no limits": observing(), "it would be denied": denied, "no decision": nil,
	} {
		f := newFixture(t)
		a := f.client(t).ReserveObserved(t.Context(), decided(newAttempt(t, callText), d))
		if len(f.limiter.asks) > 0 || a.ObservedLease != nil || a.ObservedRefusal != nil {
			t.Errorf("%s: requested %v", name, f.limiter.asks)
		}
	}
}

// If a call has limits that are only recorded, its record states what would have happened if they were enforced. If the
// limiter is unavailable, the effect depends on the rules, as it does for enforced limits.
func TestReserveObserved_RecordStatesTheEffectOfTheLimits(t *testing.T) {
	t.Parallel()
	exceeds := func(code commonv1.Code, limit int32) func() (*ratelimitv1.ReserveLimitsResponse, error) {
		return func() (*ratelimitv1.ReserveLimitsResponse, error) {
			return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: &ratelimitv1.Refusal{Code: code, Limit: limit}}}, nil
		}
	}
	fails := func(code codes.Code) func() (*ratelimitv1.ReserveLimitsResponse, error) {
		return func() (*ratelimitv1.ReserveLimitsResponse, error) { return nil, status.Error(code, "x") }
	}
	open, settles := observedLimit("open"), observedLimit("settles")
	open.OnError, settles.Settle = policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW, "/total"
	for name, tt := range map[string]struct {
		reserve func() (*ratelimitv1.ReserveLimitsResponse, error)
		limits  []*policyv1.RuleLimit
		want    journal.Observed
	}{
		"exceeded":                     {exceeds(commonv1.Code_CODE_RATE_LIMITED, 1), []*policyv1.RuleLimit{open, observedLimit("slow")}, would("would_limit", "rate_limited", "slow")},
		"a budget":                     {exceeds(commonv1.Code_CODE_BUDGET_EXCEEDED, 0), []*policyv1.RuleLimit{observedLimit("slow")}, would("would_limit", "budget_exceeded", "slow")},
		"a loop":                       {exceeds(commonv1.Code_CODE_LOOP_DETECTED, 0), []*policyv1.RuleLimit{observedLimit("slow")}, would("would_limit", "loop_detected", "slow")},
		"no reason":                    {exceeds(0, 0), []*policyv1.RuleLimit{observedLimit("slow")}, would("would_deny", "limiter_unavailable", "slow")},
		"the limiter is unavailable":   {fails(codes.Unavailable), []*policyv1.RuleLimit{open, observedLimit("slow")}, would("would_deny", "limiter_unavailable", "slow")},
		"unavailable, the rule allows": {fails(codes.Unavailable), []*policyv1.RuleLimit{open}, journal.Observed{}},
		"the limiter is full":          {fails(codes.ResourceExhausted), []*policyv1.RuleLimit{open}, would("would_deny", "limiter_unavailable", "open")},
		"not supported":                {nil, []*policyv1.RuleLimit{open, settles}, would("would_deny", "policy_unavailable", "settles")},
	} {
		f := newFixture(t)
		f.limiter.reserve = tt.reserve
		a := f.client(t).ReserveObserved(t.Context(), decided(newAttempt(t, callText), observing(tt.limits...)))
		if a.Observed() != tt.want || a.ObservedLease != nil {
			t.Errorf("%s: %+v, want %+v", name, a.Observed(), tt.want)
		}
	}
}

// The limiter does not respond to the reservation of the enforced limits, and their rules allow the call in this case.
// The gateway does not call the limiter a second time to reserve the limits that are only recorded.
func TestReserveObserved_DoesNotAskAnUnavailableLimiterAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limiter.reserve = func() (*ratelimitv1.ReserveLimitsResponse, error) { return nil, status.Error(codes.Unavailable, "x") }
	d, own := observing(observedLimit("slow")), limitOf(policyv1.SessionKey_SESSION_KEY_RUN)
	own.OnError = policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW
	d.Limits = []*policyv1.RuleLimit{own}
	client, a := f.client(t), decided(newAttempt(t, callText), d)
	a, refused := client.Reserve(t.Context(), a, a.ID)
	if refused != nil {
		t.Fatalf("refused as %+v", refused)
	}
	a = client.ReserveObserved(t.Context(), a)
	if want := would("would_deny", "limiter_unavailable", "slow"); a.Observed() != want || len(f.limiter.asks) != 1 {
		t.Errorf("%+v after %d requests, want %+v", a.Observed(), len(f.limiter.asks), want)
	}
}

// Two instances of the limiter respond alternately. The reservation of the limits that are only recorded is released,
// and the record states that the call would have been refused.
func TestReserveObserved_ReleasesAMiscountedReservation(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.limiter.grants("a", "b", "a")
	client, a := f.client(t), decided(newAttempt(t, callText), observing(observedLimit("slow")))
	for i, want := range []journal.Observed{{}, {}, would("would_deny", "limiter_unavailable", "slow")} {
		got := client.ReserveObserved(t.Context(), a)
		if got.Observed() != want || (got.ObservedLease == nil) != (want != journal.Observed{}) {
			t.Errorf("reservation %d: %+v, %v, want %+v", i+1, got.Observed(), got.ObservedLease, want)
		}
	}
	if len(f.limiter.settled) != 1 || f.limiter.settled[0].GetLeaseId() != fmt.Sprint("lease ", 3) {
		t.Errorf("released: %v", f.limiter.settled)
	}
}

func TestObserved_DiffersInEffectOrCode(t *testing.T) {
	t.Parallel()
	draft := &policyv1.RuleRef{Document: "draft", Rule: "r"}
	byRule, byDefault, approval := commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_APPROVAL_REQUIRED
	decision := func(effect policyv1.Effect, code commonv1.Code) *policyv1.Decision {
		return &policyv1.Decision{Effect: effect, Code: code, Rule: &policyv1.RuleRef{Document: "doc", Rule: "own"}}
	}
	for name, tt := range map[string]struct {
		decision *policyv1.Decision
		observed *policyv1.Observation
		want     journal.Observed
	}{
		"nothing is observed":                {decision(denies, byRule), nil, journal.Observed{}},
		"allowed, would be denied":           {decision(allows, 0), &policyv1.Observation{Effect: denies, Code: byRule, Rule: draft}, would("would_deny", "denied_by_rule", "r")},
		"allowed, would be denied otherwise": {decision(allows, 0), &policyv1.Observation{Effect: denies, Code: byDefault}, would("would_deny", "denied_by_default", "")},
		"allowed, would need approval":       {decision(allows, 0), &policyv1.Observation{Effect: asks, Code: approval, Rule: draft}, would("would_require_approval", "approval_required", "r")},
		"allowed, by another rule":           {decision(allows, 0), &policyv1.Observation{Effect: allows, Rule: draft}, journal.Observed{}},
		"denied, would be allowed":           {decision(denies, byDefault), &policyv1.Observation{Effect: allows, Rule: draft}, would("would_allow", "", "r")},
		"denied, for another reason":         {decision(denies, byDefault), &policyv1.Observation{Effect: denies, Code: byRule, Rule: draft}, would("would_deny", "denied_by_rule", "r")},
		"denied, by another rule":            {decision(denies, byRule), &policyv1.Observation{Effect: denies, Code: byRule, Rule: draft}, journal.Observed{}},
		"needs approval, would be denied":    {decision(asks, approval), &policyv1.Observation{Effect: denies, Code: byRule, Rule: draft}, would("would_deny", "denied_by_rule", "r")},
		"needs approval, by another rule":    {decision(asks, approval), &policyv1.Observation{Effect: asks, Code: approval, Rule: draft}, journal.Observed{}},
		"an unknown effect":                  {decision(allows, 0), &policyv1.Observation{Effect: 99, Rule: draft}, would("would_deny", "", "r")},
		"no effect":                          {decision(allows, 0), &policyv1.Observation{}, would("would_deny", "", "")},
	} {
		if tt.decision.Observed = tt.observed; decided(newAttempt(t, callText), tt.decision).Observed() != tt.want {
			t.Errorf("%s: %+v, want %+v", name, decided(newAttempt(t, callText), tt.decision).Observed(), tt.want)
		}
	}
	if got := decided(newAttempt(t, callText), nil).Observed(); got != (journal.Observed{}) {
		t.Errorf("without a decision: %+v", got)
	}
}

func TestRecords_ContainTheObservedDecision(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	d := allow()
	d.Observed = &policyv1.Observation{Effect: denies, Code: commonv1.Code_CODE_DENIED_BY_RULE, Rule: &policyv1.RuleRef{Document: "draft", Rule: "r"}}
	client, a := f.client(t), decided(newAttempt(t, callText), d)
	if err := client.RecordIntent(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	client.WriteRefusal(t.Context(), client.RefusalRecord(t.Context(), a, a.Denied(commonv1.Code_CODE_RATE_LIMITED)))
	records := append(f.journal.Records(journal.KindIntent), f.journal.Records(journal.KindRefusal)...)
	if len(records) != 2 {
		t.Fatalf("records: %+v", records)
	}
	for _, r := range records {
		if diff := cmp.Diff(would("would_deny", "denied_by_rule", "r"), r.Observed); diff != "" {
			t.Errorf("%s (-want +got):\n%s", r.Kind, diff)
		}
	}
}

// Every effect that a record can contain is one of the values in the API contract.
func TestObserved_EffectsAreInTheContract(t *testing.T) {
	t.Parallel()
	draft := &policyv1.Observation{Effect: allows}
	exceeded := decided(newAttempt(t, callText), allow())
	exceeded.Decision.Observed, exceeded.ObservedRefusal = draft, exceeded.Denied(commonv1.Code_CODE_RATE_LIMITED)
	attempts := []attempt.Attempt{exceeded}
	for _, effect := range []policyv1.Effect{allows, denies, asks} {
		d := &policyv1.Decision{Observed: &policyv1.Observation{Effect: effect}}
		attempts = append(attempts, decided(newAttempt(t, callText), d))
	}
	seen := make(map[string]bool)
	for _, a := range attempts {
		would := a.Observed()
		if journal.ToProto(&journal.Record{Observed: would}).GetObserved().GetEffect() == 0 {
			t.Errorf("the contract has no effect %q", would.Effect)
		}
		seen[would.Effect] = true
	}
	if len(seen) != 4 {
		t.Errorf("the effects are %v, want 4", seen)
	}
}
