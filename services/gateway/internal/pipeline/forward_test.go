package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case R2. If a call was sent, its reservation counts as used, regardless of the server's answer. The reservation is
// released only if the call was certainly not sent.
func TestForward_OnlyUnsentCallsAreGivenBack(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		err    error
		status int
		code   commonv1.Code
		text   string
		class  journal.ResultClass
		back   bool
	}{
		{"never sent", fmt.Errorf("x: %w", upstream.ErrNeverSent), 0, commonv1.Code_CODE_UPSTREAM_UNAVAILABLE, "Not executed: the server can't be reached.", journal.ResultNeverSent, true},
		{"out of time", fmt.Errorf("x: %w", upstream.ErrTimeout), 0, commonv1.Code_CODE_UPSTREAM_TIMEOUT, "Outcome unknown: the server reached a timeout of its own after 0s; whether the call ran is not known.", journal.ResultUnknown, false},
		{"no answer", fmt.Errorf("x: %w", upstream.ErrNoAnswer), 200, commonv1.Code_CODE_OUTCOME_UNKNOWN, "Outcome unknown: the server gave no usable answer; whether the call ran is not known.", journal.ResultUnknown, false},
		{"turned away", fmt.Errorf("x: %w", upstream.ErrNoAnswer), 429, commonv1.Code_CODE_OUTCOME_UNKNOWN, "Outcome unknown: the server answered with HTTP status 429; whether the call ran is not known.", journal.ResultUnknown, false},
		{"an error that says nothing", errBoom, 0, commonv1.Code_CODE_OUTCOME_UNKNOWN, "Outcome unknown: the server gave no usable answer; whether the call ran is not known.", journal.ResultUnknown, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newTestPipeline()
			w.decide = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY))
			w.answer = func(context.Context, upstream.Request) (upstream.Answer, error) {
				return upstream.Answer{Status: tt.status}, tt.err
			}
			got := w.pipeline(t).Do(t.Context(), w.call(t)).Refusal
			if got == nil || got.Code != tt.code || got.Text() != tt.text {
				t.Fatalf("%+v", got)
			}
			if outcome := w.recordsOf(journal.KindOutcome); len(outcome) != 1 || outcome[0].ResultClass != tt.class || outcome[0].DecisionID != got.ID ||
				outcome[0].UpstreamStatus != tt.status || outcome[0].Message != tt.text || strings.Contains(outcome[0].Message, "boom") {
				t.Errorf("outcome %+v", outcome)
			}
			if back := len(w.settled) > 0; back != tt.back {
				t.Fatalf("given back: %v, want %v", back, tt.back)
			}
			if tt.back && (w.settled[0].GetLeaseId() != "lease" || w.settled[0].GetSettlement() != ratelimitv1.Settlement_SETTLEMENT_NEVER_SENT) {
				t.Errorf("settled %v", w.settled[0])
			}
			if n := len(w.recordsOf(journal.KindRefusal)); n != 0 {
				t.Errorf("a call that has an intent has %d records of a refusal", n)
			}
		})
	}
}

func TestForward_ReservationIsReleasedWithoutAnIntent(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.decide = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_DENY))
	w.broken[journal.KindIntent] = errBoom
	w.pipeline(t).Do(t.Context(), w.call(t))
	if diff := cmp.Diff([]string{"decide", "reserve", "intent", "settle", "refusal"}, w.steps); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestForward_AnswerIsReturnedWhenItsOutcomeIsNotRecorded(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.broken[journal.KindOutcome] = errBoom
	if got := w.pipeline(t).Do(t.Context(), w.call(t)); got.Answer == nil || !got.Unrecorded {
		t.Errorf("%+v", got)
	}
}

func TestForward_OutcomesAreClassified(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]journal.ResultClass{
		`{"content":[]}`: journal.ResultOK, `{"isError":true,"content":[]}`: journal.ResultToolError, `{"isError":"true"}`: journal.ResultOK,
	} {
		w := newTestPipeline()
		w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) { return result(r, raw), nil }
		w.pipeline(t).Do(t.Context(), w.call(t))
		if got := w.recordsOf(journal.KindOutcome)[0].ResultClass; got != want {
			t.Errorf("%s is %s, want %s", raw, got, want)
		}
	}
}

// The timeout of a call is the one that the policy sets. If the policy sets none, it is the timeout configured for the
// server.
func TestForward_ServerGetsItsTimeout(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy *durationpb.Duration
		want   time.Duration
	}{
		"the server's own": {nil, time.Minute},
		"policy's":         {durationpb.New(time.Second), time.Second},
		"none at all":      {durationpb.New(0), 0},
		"less than none":   {durationpb.New(-time.Hour), 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				d := allow()
				d.Timeout = tt.policy
				w.decide = decides(d)
				begin := time.Now()
				w.answer = func(ctx context.Context, _ upstream.Request) (upstream.Answer, error) {
					if until, set := ctx.Deadline(); !set || max(0, until.Sub(begin)) != tt.want {
						t.Errorf("its deadline is %v, %v", until, set)
					}
					<-ctx.Done()
					if why := context.Cause(ctx); !errors.Is(why, context.DeadlineExceeded) {
						t.Errorf("the cause of the timeout is %v", why)
					}
					return upstream.Answer{}, upstream.ErrTimeout
				}
				w.pipeline(t).Do(t.Context(), w.call(t))
				if took := time.Since(begin); took != tt.want {
					t.Errorf("it got %v, want %v", took, tt.want)
				}
			})
		})
	}
}

// The Leave function of the request makes the call stop waiting for the server's answer. Its argument is the cause.
func TestForward_DisconnectedCallEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		w.answer = func(ctx context.Context, r upstream.Request) (upstream.Answer, error) {
			r.Leave(upstream.ErrCancelled)
			if synctest.Wait(); !errors.Is(context.Cause(ctx), upstream.ErrCancelled) {
				t.Errorf("the cause is %v", context.Cause(ctx))
			}
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		begin := time.Now()
		w.pipeline(t).Do(t.Context(), w.call(t))
		if took := time.Since(begin); took != 0 {
			t.Errorf("the wait took %v", took)
		}
	})
}

// Stop cancels the calls that were already sent to servers. Their outcomes are recorded.
func TestStop_CancelsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		w.answer = func(ctx context.Context, _ upstream.Request) (upstream.Answer, error) {
			<-ctx.Done()
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
		}
		p := w.pipeline(t)
		time.AfterFunc(time.Second, p.Stop)
		begin := time.Now()
		got := p.Do(t.Context(), w.call(t))
		if took := time.Since(begin); took != time.Second || got.Refusal.Code != commonv1.Code_CODE_OUTCOME_UNKNOWN || len(w.recordsOf(journal.KindOutcome)) != 1 {
			t.Errorf("after %v %+v, %v", took, got.Refusal, w.steps)
		}
	})
}

// Concurrent calls are independent: each caller receives its own answer, and each call has its own intent and outcome.
func TestDo_ConcurrentCallsAreIndependent(t *testing.T) {
	t.Parallel()
	w := newTestPipeline()
	w.answer = func(_ context.Context, r upstream.Request) (upstream.Answer, error) {
		return result(r, `{"echo":`+string(r.ID())+`}`), nil
	}
	p := w.pipeline(t)
	done := make(chan bool, 100)
	for i := range cap(done) {
		go func() {
			call := w.call(t)
			call.Message = parse(t, strings.Replace(safeCall, `"id":7`, fmt.Sprintf(`"id":%d`, i), 1))
			got := p.Do(t.Context(), call)
			done <- got.Answer != nil && string(got.Answer.Raw) == fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{"echo":%d}}`, i, i)
		}()
	}
	for range cap(done) {
		if !<-done {
			t.Error("a caller got another's answer")
		}
	}
	intents, outcomes := w.recordsOf(journal.KindIntent), w.recordsOf(journal.KindOutcome)
	ids := func(records []journal.Record) []string {
		var out []string
		for _, r := range records {
			out = append(out, r.DecisionID)
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	if got := ids(intents); len(got) != 100 || !slices.Equal(got, ids(outcomes)) {
		t.Errorf("%d intents of %d calls, and outcomes of others", len(intents), len(got))
	}
}
