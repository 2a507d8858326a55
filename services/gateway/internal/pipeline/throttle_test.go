package pipeline_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case R11. After 1,000 refusals in a minute, a principal causes at most 200 requests to the policy service per second,
// no matter how many requests the principal sends. The principal's allowed calls are delayed slightly. Other
// principals' calls are not delayed.
func TestThrottle_DelaysAfterManyRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		denyAllExceptBen(w)
		var asked atomic.Int64
		decide := w.decide
		w.decide = func(ctx context.Context, r *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			asked.Add(1)
			return decide(ctx, r)
		}
		p := w.pipeline(t)
		stop := run(t, p)
		defer stop()
		ctx, end := context.WithCancel(t.Context())
		var flood sync.WaitGroup
		for range 500 {
			flood.Go(func() {
				for ctx.Err() == nil {
					p.Do(ctx, w.call(t))
					if asked.Load() > 50_000 { // without the throttle, the bubble's clock would never advance
						t.Error("policy requests are not limited")
						return
					}
				}
			})
		}
		time.Sleep(10 * time.Second)
		if n := asked.Load(); n > recordedOneByOne+500+10*200+1 {
			t.Errorf("policy was asked %d times in 10 s", n)
		}
		begin := time.Now()
		allowed := w.call(t)
		allowed.Server = "open"
		if got := p.Do(t.Context(), allowed); got.Refusal != nil || time.Since(begin) > 3*time.Second {
			t.Errorf("an allowed call: %+v, after %v", got.Refusal, time.Since(begin))
		}
		begin = time.Now()
		other := w.call(t)
		other.Principal = caller("ben")
		if p.Do(t.Context(), other); time.Since(begin) > 0 {
			t.Errorf("another principal waited for %v", time.Since(begin))
		}
		end()
		flood.Wait()
	})
}

// Case R11. A caller disconnects while its call waits for a slot. The call is not evaluated, and the refusal is
// counted.
func TestThrottle_DisconnectedCallIsNotJudged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestPipeline()
		denyAllExceptBen(w)
		p := w.pipeline(t)
		stop := run(t, p)
		for range recordedOneByOne + 1 {
			p.Do(t.Context(), w.call(t))
		}
		p.Do(t.Context(), w.call(t)) // its slot stays in use for refusalDelay
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		w.decide = func(context.Context, *policyv1.DecideCallRequest) (*policyv1.DecideCallResponse, error) {
			t.Error("policy was asked")
			return nil, context.Canceled
		}
		if got := p.Do(gone, w.call(t)).Refusal; got == nil || got.Code != commonv1.Code_CODE_ABUSE_LIMITED || got.ID == "" {
			t.Errorf("got %+v", got)
		}
		stop()
		if n := countRefusals(t, w.recordsOf(journal.KindRefusal), nil); n != recordedOneByOne+3 {
			t.Errorf("%d refusals are on record", n)
		}
	})
}
