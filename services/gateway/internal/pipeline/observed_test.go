package pipeline_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// observeLimit adds a limit to a decision. The limit belongs to the rule "slow" in the document "draft" and is only
// recorded (mode: observe).
func observeLimit(d *policyv1.Decision) *policyv1.Decision {
	l := limit(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)
	l.Rule, l.Limit.Bucket = &policyv1.RuleRef{Document: "draft", Rule: "slow"}, "observed"
	d.Observed = &policyv1.Observation{Effect: policyv1.Effect_EFFECT_ALLOW, Rule: d.GetRule(), Limits: []*policyv1.RuleLimit{l}}
	return d
}

// observeDenial adds a denial to a decision. The denial comes from the rule "no" in the document "draft" and is only
// recorded (mode: observe).
func observeDenial(d *policyv1.Decision) *policyv1.Decision {
	d.Observed = &policyv1.Observation{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_RULE, Rule: &policyv1.RuleRef{Document: "draft", Rule: "no"}}
	return d
}

// leaseByBucket makes the fake limiter grant leases. The id of each lease contains the first bucket in the request.
func (w *testPipeline) leaseByBucket() {
	w.reserve = func(_ context.Context, r *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Lease{Lease: &ratelimitv1.Lease{Id: "lease of " + r.GetLimits()[0].GetBucket()}}}, nil
	}
}

// exceedObserved makes the fake limiter refuse reservations for the limit that is only recorded (mode: observe). The
// fake limiter grants other reservations.
func (w *testPipeline) exceedObserved() {
	w.leaseByBucket()
	grant := w.reserve
	w.reserve = func(ctx context.Context, r *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		if r.GetLimits()[0].GetBucket() != "observed" {
			return grant(ctx, r)
		}
		return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: &ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED}}}, nil
	}
}

var (
	wouldDeny  = journal.Observed{Effect: "would_deny", Code: "denied_by_rule", Rule: journal.Rule{Document: "draft", Rule: "no"}}
	wouldLimit = journal.Observed{Effect: "would_limit", Code: "rate_limited", Rule: journal.Rule{Document: "draft", Rule: "slow"}}
)

func TestDo_ObservedLimitRefusesNothing(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(observeLimit(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)))
	w.exceedObserved()
	if got := w.pipeline(t).Do(t.Context(), w.call(t)); got.Refusal != nil {
		t.Fatalf("refused as %+v", got.Refusal)
	}
	if diff := cmp.Diff([]string{"decide", "reserve", "reserve", "intent", "send", "outcome"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	intent := w.recordsOf(journal.KindIntent)[0]
	if intent.Observed != wouldLimit || intent.LimitLeaseID != "lease of b" || len(intent.Limits) != 1 {
		t.Errorf("recorded is %+v", intent)
	}
}

func TestDo_ObservedDenialReservesNothing(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(observeDenial(allow()))
	w.pipeline(t).Do(t.Context(), w.call(t))
	if diff := cmp.Diff([]string{"decide", "intent", "send", "outcome"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if intent := w.recordsOf(journal.KindIntent)[0]; intent.Observed != wouldDeny || intent.Effect != "allow" {
		t.Errorf("recorded is %+v", intent)
	}
}

// If a call exceeds an enforced limit, no limits that are only recorded (mode: observe) are reserved for it.
func TestDo_RefusedCallReservesNoObservedLimits(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(observeLimit(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)))
	w.reserve = func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: &ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED}}}, nil
	}
	got := w.pipeline(t).Do(t.Context(), w.call(t))
	if codeOf(got.Refusal) != commonv1.Code_CODE_RATE_LIMITED || w.count("reserve") != 1 {
		t.Errorf("%+v, %v", got.Refusal, w.steps)
	}
	if refusals := w.recordsOf(journal.KindRefusal); len(refusals) != 1 || refusals[0].Observed != (journal.Observed{}) {
		t.Errorf("recorded is %+v", refusals)
	}
}

// The policy denies a call, but a rule that is only recorded (mode: observe) would allow it. The call's record says so.
func TestDo_RefusalRecordsWhatWouldHaveHappened(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(&policyv1.Decision{
		Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_DEFAULT,
		Observed: &policyv1.Observation{Effect: policyv1.Effect_EFFECT_ALLOW, Rule: &policyv1.RuleRef{Document: "draft", Rule: "yes"}},
	})
	got := w.pipeline(t).Do(t.Context(), w.call(t))
	want := journal.Observed{Effect: "would_allow", Rule: journal.Rule{Document: "draft", Rule: "yes"}}
	if refusals := w.recordsOf(journal.KindRefusal); codeOf(got.Refusal) != commonv1.Code_CODE_DENIED_BY_DEFAULT || len(refusals) != 1 || refusals[0].Observed != want {
		t.Errorf("%+v, recorded is %+v", got.Refusal, refusals)
	}
}

// A call that is never sent releases all its limits: those that are enforced and those that are only recorded (mode:
// observe).
func TestDo_UnsentCallReleasesObservedLimits(t *testing.T) {
	t.Parallel()
	unsent := func(w *testPipeline) {
		w.answer = func(context.Context, upstream.Request) (upstream.Answer, error) {
			return upstream.Answer{}, upstream.ErrNeverSent
		}
	}
	unrecorded := func(w *testPipeline) { w.broken[journal.KindIntent] = errBoom }
	for name, tt := range map[string]struct {
		fail     func(*testPipeline)
		approval bool
	}{
		"the server is unavailable": {unsent, false}, "the intent is not recorded": {unrecorded, false},
		"an approved call, the server is unavailable": {unsent, true}, "an approved call, the intent is not recorded": {unrecorded, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newApprovalPipeline()
				w.approvals.answerRequest = answerStates(approvalIn(approved))
				w.leaseByBucket()
				d := observeLimit(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY))
				if tt.approval {
					d.Effect, d.Approval = policyv1.Effect_EFFECT_REQUIRE_APPROVAL, &policyv1.ApprovalTerms{Quorum: 1}
				}
				w.decide = decides(d)
				tt.fail(w)
				p := w.pipeline(t)
				if got := p.Do(t.Context(), w.newApprovalCall(t)); got.Refusal == nil {
					t.Fatal("the call is not refused")
				}
				p.Wait(t.Context())
				var released []string
				for _, r := range w.settled {
					released = append(released, r.GetLeaseId())
				}
				slices.Sort(released)
				want := []string{"lease of b", "lease of observed"}
				if tt.approval { // the fake approval service names no lease when a claim is released
					want = want[1:]
				}
				if diff := cmp.Diff(want, released); diff != "" {
					t.Errorf("released (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A call that was sent does not release the limits that are only recorded (mode: observe).
func TestDo_SentCallKeepsObservedLimits(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(observeLimit(allow()))
	w.leaseByBucket()
	w.answer = func(context.Context, upstream.Request) (upstream.Answer, error) {
		return upstream.Answer{}, upstream.ErrNoAnswer
	}
	w.pipeline(t).Do(t.Context(), w.call(t))
	if w.count("reserve") != 1 || len(w.settled) != 0 {
		t.Errorf("%v, released: %v", w.steps, w.settled)
	}
}

// The span and a metric say what would have happened if the whole policy were enforced. This applies to calls that ran
// and to calls that were refused.
func TestDo_ReportsTheObservedEffect(t *testing.T) {
	t.Parallel()
	reader := sdkmetric.NewManualReader()
	w := newTestPipeline()
	w.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test")
	p := w.pipeline(t)
	denied := &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_DENIED_BY_DEFAULT}
	for _, tt := range []struct {
		decision *policyv1.Decision
		want     map[string]string
	}{
		{allow(), map[string]string{}},
		{observeDenial(allow()), map[string]string{"sluice.observed.effect": "would_deny", "sluice.observed.code": "denied_by_rule", "sluice.observed.rule": "draft/no"}},
		{observeDenial(denied), map[string]string{"sluice.observed.effect": "would_deny", "sluice.observed.code": "denied_by_rule", "sluice.observed.rule": "draft/no"}},
	} {
		w.decide = decides(tt.decision)
		recorder := tracetest.NewSpanRecorder()
		ctx, span := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder)).Tracer("").Start(t.Context(), "x")
		p.Do(ctx, w.call(t))
		span.End()
		got := make(map[string]string)
		for _, s := range recorder.Ended() {
			for _, a := range s.Attributes() {
				if _, ok := tt.want[string(a.Key)]; ok || a.Key == "sluice.observed.effect" {
					got[string(a.Key)] = a.Value.String()
				}
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("the span has (-want +got):\n%s", diff)
		}
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if m.Name != "sluice.decisions.observed" {
			continue
		}
		points := m.Data.(metricdata.Sum[int64]).DataPoints //nolint:forcetypeassert // it is a counter
		if len(points) != 1 || points[0].Value != 2 {
			t.Errorf("counted: %+v", points)
		}
		return
	}
	t.Error("nothing is counted")
}
