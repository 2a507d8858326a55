package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.opentelemetry.io/otel/trace/noop"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

var errBoom = errors.New("boom")

func TestNew_FailsWhenADependencyIsMissing(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	whole := pipeline.Deps{Policy: w, Decisions: w.emptyCache(t), Limiter: w, Journal: (*fakeJournal)(w), Arguments: w.recorded(t), Approvals: w.approvalsClient(t), Log: slog.New(slog.DiscardHandler), Tracer: noop.NewTracerProvider().Tracer(""), Meters: w.meters(t)}
	if _, err := pipeline.New(whole); err != nil {
		t.Fatal(err)
	}
	for name, take := range map[string]func(*pipeline.Deps){
		"policy":  func(d *pipeline.Deps) { d.Policy = nil },
		"kept":    func(d *pipeline.Deps) { d.Decisions = nil },
		"limiter": func(d *pipeline.Deps) { d.Limiter = nil },
		"journal": func(d *pipeline.Deps) { d.Journal = nil },
		"waiter":  func(d *pipeline.Deps) { d.Approvals = nil },
		"tracer":  func(d *pipeline.Deps) { d.Tracer = nil },
		"meters":  func(d *pipeline.Deps) { d.Meters = nil },
		"log":     func(d *pipeline.Deps) { d.Log = nil },
	} {
		deps := whole
		take(&deps)
		if _, err := pipeline.New(deps); err == nil {
			t.Errorf("New accepts Deps without %s", name)
		}
	}
}

// An allowed call has these steps, in this order: request the decision, reserve limits, record the intent, send the
// call, record the outcome.
func TestDo_AllowedCallRuns(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
		want := &policyv1.Call{Method: "tools/call", Server: "files", Name: "safe", ParamsJson: `{"name":"safe","arguments":{"path":"/srv"}}`}
		if got := r.GetCall(); got.String() != want.String() {
			t.Errorf("policy was asked about %v, want %v", got, want)
		}
		if authn.PrincipalOf(ctx).GetSubject() != "ana" {
			t.Error("policy did not get the principal")
		}
		return &policyv1.DecideCallResponse{Decision: limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)}, nil
	}
	ctx, span := startSpan(t)
	got := w.pipeline(t).Do(ctx, w.call(t))
	if got.Refusal != nil || got.Unrecorded || string(got.Answer.Raw) != `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}` {
		t.Fatalf("%+v", got)
	}
	if diff := cmp.Diff([]string{"decide", "reserve", "intent", "send", "outcome"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
	if string(w.sent[0].Body()) != safeCall || string(w.sent[0].ID()) != "7" || !strings.Contains(w.sent[0].TraceParent, span.TraceID().String()) {
		t.Errorf("sent %s, %+v", w.sent[0].Body(), w.sent[0])
	}
	base := journal.Record{
		TraceID: span.TraceID().String(), Principal: journal.Principal{Tenant: "acme", Subject: "ana", Agent: "dev", Owner: "olga", TokenID: "laptop"},
		Chain: []journal.Principal{{Tenant: "acme", Subject: "creator"}}, Session: "5e5510", Run: "run-1",
		Server: "files", Method: "tools/call", Tool: "safe", PolicyRevision: "rev", RequestBytes: int64(len(safeCall)),
	}
	intent, outcome := base, base
	intent.Kind, intent.Effect, intent.ArgumentsHMAC = journal.KindIntent, "allow", `hmac of {"path":"/srv"}`
	intent.Rule = journal.Rule{Document: "doc", Rule: "tools.safe"}
	intent.SessionKey, intent.ReservedAt = "run", time.Unix(1_800_000_000, 0)
	intent.Limits = []journal.Limit{{
		Document: "doc", Rule: "tools.safe", Bucket: "b", Kind: "sliding_window", Max: "10", WindowS: 60,
		Per: []string{"session"}, Cost: "1", OnError: "deny", Remaining: "9", SessionKey: "run",
	}}
	intent.LimitLeaseID, outcome.LimitLeaseID = "lease", "lease"
	outcome.Kind, outcome.ResultClass, outcome.UpstreamStatus, outcome.ResultBytes = journal.KindOutcome, journal.ResultOK, 200, int64(len(got.Answer.Raw))
	if diff := cmp.Diff([]journal.Record{intent, outcome}, w.records, cmpopts.IgnoreFields(journal.Record{}, "DecisionID", "LatencyMS")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if w.records[0].DecisionID == "" || w.records[0].DecisionID != w.records[1].DecisionID {
		t.Errorf("the two records are of %q and %q", w.records[0].DecisionID, w.records[1].DecisionID)
	}
}

func TestDo_CallWithoutLimitsReservesNothing(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	if got := w.pipeline(t).Do(t.Context(), w.call(t)); got.Refusal != nil {
		t.Fatalf("%+v", got.Refusal)
	}
	if diff := cmp.Diff([]string{"decide", "intent", "send", "outcome"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func hang[Req, Resp any](ctx context.Context, _ *Req) (*Resp, error) {
	<-ctx.Done()
	return nil, status.FromContextError(ctx.Err()).Err()
}

func with(change func(*policyv1.Decision)) func(*testPipeline) {
	return func(w *testPipeline) {
		d := limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY)
		change(d)
		w.decide = decides(d)
	}
}

// refusedCases contains situations in which a call must not be sent: a service fails, or its response is incomplete or
// not supported.
var refusedCases = []struct {
	name  string
	given func(*testPipeline)
	code  commonv1.Code
}{
	{"policy is away", func(w *testPipeline) {
		w.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			return nil, errBoom
		}
	}, commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"policy hangs", func(w *testPipeline) { w.decide = hang[policyv1.DecideCallRequest, policyv1.DecideCallResponse] }, commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"policy says nothing", func(w *testPipeline) { w.decide = decides(nil) }, commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"no effect", with(func(d *policyv1.Decision) { d.Effect = policyv1.Effect_EFFECT_UNSPECIFIED }), commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"an effect of the future", with(func(d *policyv1.Decision) { d.Effect = 99 }), commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"denied", with(func(d *policyv1.Decision) {
		d.Effect, d.Code = policyv1.Effect_EFFECT_DENY, commonv1.Code_CODE_DENIED_BY_RULE
	}), commonv1.Code_CODE_DENIED_BY_RULE},
	{"denied without a code", with(func(d *policyv1.Decision) { d.Effect = policyv1.Effect_EFFECT_DENY }), commonv1.Code_CODE_DENIED_BY_DEFAULT},
	{"hidden", with(func(d *policyv1.Decision) { d.Effect, d.Hidden = policyv1.Effect_EFFECT_DENY, true }), commonv1.Code_CODE_TOOL_UNKNOWN},
	{"hidden and allowed", with(func(d *policyv1.Decision) { d.Hidden = true }), commonv1.Code_CODE_TOOL_UNKNOWN},
	{"an approval", with(func(d *policyv1.Decision) { d.Effect = policyv1.Effect_EFFECT_REQUIRE_APPROVAL }), commonv1.Code_CODE_APPROVAL_UNAVAILABLE},
	{"a redaction", with(func(d *policyv1.Decision) { d.Redactions = []*policyv1.Redaction{{}} }), commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"a limit that must be renewed", with(func(d *policyv1.Decision) {
		d.Limits[0].Limit.Kind = ratelimitv1.LimitKind_LIMIT_KIND_CONCURRENCY
	}), commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"a limit that must be settled", with(func(d *policyv1.Decision) { d.Limits[0].Settle = "/total" }), commonv1.Code_CODE_POLICY_UNAVAILABLE},
	{"the limiter refuses", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.reserve = refuseReservation(&ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED, RetryAfter: durationpb.New(time.Second)})
	}, commonv1.Code_CODE_RATE_LIMITED},
	{"the limiter refuses without a code", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.reserve = refuseReservation(&ratelimitv1.Refusal{Limit: -7})
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the limiter refuses for a limit that there is not", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.reserve = refuseReservation(&ratelimitv1.Refusal{Code: commonv1.Code_CODE_RATE_LIMITED, Limit: 99})
	}, commonv1.Code_CODE_RATE_LIMITED},
	{"the limiter says nothing", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.reserve = func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
			return &ratelimitv1.ReserveLimitsResponse{}, nil
		}
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the limiter hangs", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.reserve = hang[ratelimitv1.ReserveLimitsRequest, ratelimitv1.ReserveLimitsResponse]
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"one of two limits may not go uncounted", func(w *testPipeline) {
		with(func(d *policyv1.Decision) {
			d.Limits = []*policyv1.RuleLimit{limit(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW), limit(policyv1.OnLimiterError_ON_LIMITER_ERROR_UNSPECIFIED)}
		})(w)
		w.reserve = failReservation(codes.Unavailable)
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the limiter can't count this kind", func(w *testPipeline) {
		w.decide, w.reserve = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW)), failReservation(codes.Unimplemented)
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the limiter is full", func(w *testPipeline) {
		w.decide, w.reserve = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW)), failReservation(codes.ResourceExhausted)
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the limiter takes the question for wrong", func(w *testPipeline) {
		w.decide, w.reserve = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW)), failReservation(codes.InvalidArgument)
	}, commonv1.Code_CODE_LIMITER_UNAVAILABLE},
	{"the intent can't be recorded", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.broken[journal.KindIntent] = errBoom
	}, commonv1.Code_CODE_AUDIT_UNAVAILABLE},
	{"X5 the caller has its share of the journal", func(w *testPipeline) {
		with(func(*policyv1.Decision) {})(w)
		w.broken[journal.KindIntent] = fmt.Errorf("x: %w", journal.ErrQuota)
	}, commonv1.Code_CODE_ABUSE_LIMITED},
}

func refuseReservation(r *ratelimitv1.Refusal) func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
	return func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		return &ratelimitv1.ReserveLimitsResponse{Result: &ratelimitv1.ReserveLimitsResponse_Refusal{Refusal: r}}, nil
	}
}

func failReservation(code codes.Code) func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
	return func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		return nil, status.Error(code, "x")
	}
}

func TestDo_RefusesWhenAServiceIsUnavailable(t *testing.T) {
	t.Parallel()
	for _, tt := range refusedCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				tt.given(w)
				begin := time.Now()
				got := w.pipeline(t).Do(t.Context(), w.call(t))
				if got.Refusal == nil || got.Answer != nil || got.Refusal.Code != tt.code {
					t.Fatalf("got %+v, want %s", got, enum.NameOrEmpty(tt.code))
				}
				if took := time.Since(begin); took > 2*time.Second {
					t.Errorf("it took %v", took)
				}
				records := w.recordsOf(journal.KindRefusal)
				if len(records) != 1 || records[0].Code != enum.NameOrEmpty(tt.code) || records[0].DecisionID != got.Refusal.ID || got.Refusal.ID == "" {
					t.Errorf("records %+v", records)
				}
				if w.count("send") != 0 || len(w.recordsOf(journal.KindIntent)) != 0 {
					t.Errorf("steps %v", w.steps)
				}
			})
		})
	}
}

func TestDo_UnrecordedRefusalIsARefusal(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(nil)
	w.broken[journal.KindRefusal] = errBoom
	if got := w.pipeline(t).Do(t.Context(), w.call(t)); got.Refusal == nil || w.count("send") != 0 {
		t.Errorf("%+v", got)
	}
}

// If the token of a call's caller may have been revoked, the call is refused, and no service receives a request.
func TestDo_StaleTokenIsRefused(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	call := w.call(t)
	call.Stale = true
	if got := w.pipeline(t).Do(t.Context(), call); got.Refusal == nil || got.Refusal.Code != commonv1.Code_CODE_POLICY_UNAVAILABLE {
		t.Errorf("%+v", got)
	}
	if diff := cmp.Diff([]string{"refusal"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// A call to a hidden tool receives the same answer as a call to a missing tool. Only the journal's record shows the
// difference.
func TestDo_HiddenToolLooksMissingExceptInItsRecord(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	with(func(d *policyv1.Decision) {
		d.Effect, d.Hidden, d.Message = policyv1.Effect_EFFECT_DENY, true, "because it is secret"
	})(w)
	got := w.pipeline(t).Do(t.Context(), w.call(t)).Refusal
	if got.Rule != nil || got.Message != "" || got.Code != commonv1.Code_CODE_TOOL_UNKNOWN {
		t.Errorf("the caller gets %+v", got)
	}
	if rec := w.recordsOf(journal.KindRefusal)[0]; !rec.Hidden || rec.Rule.Rule != "tools.safe" {
		t.Errorf("the record says %+v", rec)
	}
}

// While the ratelimit service is unavailable, a call is allowed if all its limits are configured to allow that.
func TestLimits_MayAllowCallsUncounted(t *testing.T) {
	t.Parallel()
	for name, reserve := range map[string]func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error){
		"the limiter is away": failReservation(codes.Unavailable),
		"the limiter hangs":   hang[ratelimitv1.ReserveLimitsRequest, ratelimitv1.ReserveLimitsResponse],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				w.decide, w.reserve = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW)), reserve
				if got := w.pipeline(t).Do(t.Context(), w.call(t)); got.Refusal != nil || w.count("send") != 1 {
					t.Errorf("%+v", got)
				}
			})
		})
	}
}

// Case R2. If the caller disconnects, neither the call nor its reservation is cancelled. Otherwise callers could evade
// a limit by disconnecting.
func TestDo_DisconnectChangesNothing(t *testing.T) {
	t.Parallel()
	for name, given := range map[string]func(*testPipeline, context.CancelFunc){
		"before anything": func(_ *testPipeline, cancel context.CancelFunc) { cancel() },
		"while policy decides": func(w *testPipeline, cancel context.CancelFunc) {
			decide := w.decide
			w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
				cancel()
				return decide(ctx, r)
			}
		},
		"while the server works": func(w *testPipeline, cancel context.CancelFunc) {
			answer := w.answer
			w.answer = func(ctx context.Context, r upstream.Request) (upstream.Answer, error) {
				cancel()
				return answer(ctx, r)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTestPipeline()
			answer := w.answer
			w.decide = func(ctx context.Context, _ *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
				return &policyv1.DecideCallResponse{Decision: limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW)}, ctx.Err()
			}
			w.reserve = func(ctx context.Context, _ *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
				return granted("1"), ctx.Err()
			}
			w.answer = func(ctx context.Context, r upstream.Request) (upstream.Answer, error) {
				if err := ctx.Err(); err != nil {
					return upstream.Answer{}, err
				}
				return answer(ctx, r)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			given(w, cancel)
			got := w.pipeline(t).Do(ctx, w.call(t))
			if got.Refusal != nil {
				t.Errorf("refused as %s", enum.NameOrEmpty(got.Refusal.Code))
			}
			if diff := cmp.Diff([]string{"decide", "reserve", "intent", "send", "outcome"}, w.steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if intents := w.recordsOf(journal.KindIntent); len(intents) != 1 || intents[0].ReservedAt.IsZero() {
				t.Errorf("the call was not counted: %+v", intents)
			}
		})
	}
}
