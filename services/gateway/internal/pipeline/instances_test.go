package pipeline_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	ratelimitv1 "github.com/sluice-mesh/sluice/gen/sluice/ratelimit/v1"
)

// setInstances makes the fake ratelimit service grant all reservations. The nth response contains the nth of the given
// instances. All further responses contain the last instance.
func (w *testPipeline) setInstances(instances ...string) {
	w.decide = decides(limited(policyv1.OnLimiterError_ON_LIMITER_ERROR_ALLOW))
	next := 0
	w.reserve = func(context.Context, *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
		resp := granted("9")
		resp.Instance = instances[min(next, len(instances)-1)]
		next++
		return resp, nil
	}
}

func TestLimits_TwoInstancesThatAnswerInTurnCountNothing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		instances []string
		passed    string // + for each allowed call, - for each refused one
	}{
		"one":                         {[]string{"a", "a", "a", "a"}, "++++"},
		"one that is restarted":       {[]string{"a", "b", "b", "b"}, "++++"},
		"one that is restarted often": {[]string{"a", "b", "c", "d"}, "++++"},
		"of an earlier version":       {[]string{"", "", "", ""}, "++++"},
		"two":                         {[]string{"a", "b", "a", "b"}, "++--"},
		"two, one of them seldom":     {[]string{"a", "b", "b", "a"}, "+++-"},
		"three":                       {[]string{"a", "b", "c", "a"}, "+++-"},
		"two, then one":               {[]string{"a", "b", "a", "a"}, "++--"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestPipeline()
				w.setInstances(tt.instances...)
				p := w.pipeline(t)
				var passed strings.Builder
				refused := 0
				for range tt.instances {
					got := p.Do(t.Context(), w.call(t))
					if got.Refusal == nil {
						passed.WriteByte('+')
						continue
					}
					passed.WriteByte('-')
					refused++
					if got.Refusal.Code != commonv1.Code_CODE_LIMITER_UNAVAILABLE || !strings.Contains(got.Refusal.Message, "two instances of the ratelimit role") {
						t.Errorf("refused as %+v", got.Refusal)
					}
				}
				if passed.String() != tt.passed || w.count("send") != len(tt.instances)-refused || len(w.settled) != refused {
					t.Errorf("%s passed, want %s; %d sent, %d given back", &passed, tt.passed, w.count("send"), len(w.settled))
				}
				if p.IsMiscounting() != (refused > 0) {
					t.Errorf("miscounting: %t", p.IsMiscounting())
				}
				time.Sleep(time.Minute)
				if got := p.Do(t.Context(), w.call(t)); got.Refusal != nil || p.IsMiscounting() {
					t.Errorf("a minute later, with the last one alone: %+v", got.Refusal)
				}
			})
		})
	}
}

// The gateway sends a request to an instance of the ratelimit service. The instance is replaced before its response
// arrives. The late response must not count as a response from a second instance.
func TestLimits_LateAnswerOfAnInstanceThatHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		w.setInstances("a")
		grant := w.reserve
		late := make(chan struct{})
		slow := true
		w.reserve = func(ctx context.Context, r *ratelimitv1.ReserveLimitsRequest) (*ratelimitv1.ReserveLimitsResponse, error) {
			if slow {
				slow = false
				<-late
			}
			return grant(ctx, r)
		}
		p := w.pipeline(t)
		do := func() {
			if got := p.Do(t.Context(), w.call(t)); got.Refusal != nil {
				t.Errorf("refused as %+v", got.Refusal)
			}
		}
		go do()
		synctest.Wait()
		do()
		time.Sleep(time.Millisecond)
		w.setInstances("b")
		do()
		time.Sleep(time.Millisecond)
		close(late)
		synctest.Wait()
		do()
		if p.IsMiscounting() {
			t.Error("a restart counts as two instances")
		}
	})
}
