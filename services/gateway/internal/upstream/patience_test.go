package upstream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A server's clock stands still while it waits, however often at a time, also where it began to
// before the call; and what it may wait is bounded.
func TestPatience(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do   func(p *upstream.Patience, begin func())
		ends time.Duration // after begin
	}{
		"it never waits": {func(_ *upstream.Patience, begin func()) { begin() }, time.Minute},
		"it waits once": {func(p *upstream.Patience, begin func()) {
			begin()
			time.Sleep(30 * time.Second)
			resume := p.Pause()
			time.Sleep(10 * time.Minute)
			resume()
		}, 11 * time.Minute},
		"twice at a time": {func(p *upstream.Patience, begin func()) {
			begin()
			first := p.Pause()
			time.Sleep(time.Minute)
			second := p.Pause()
			time.Sleep(time.Minute)
			first()
			time.Sleep(time.Minute)
			second()
		}, 4 * time.Minute},
		"before the call is sent": {func(p *upstream.Patience, begin func()) {
			resume := p.Pause()
			time.Sleep(time.Hour)
			begin()
			time.Sleep(5 * time.Minute)
			resume()
		}, 6 * time.Minute},
		"without end": {func(p *upstream.Patience, begin func()) {
			begin()
			p.Pause()
		}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var p upstream.Patience
				var ctx context.Context
				var begun time.Time
				tt.do(&p, func() {
					var end context.CancelCauseFunc
					ctx, end = context.WithCancelCause(t.Context())
					t.Cleanup(p.Begin(time.Minute, end))
					begun = time.Now()
				})
				<-ctx.Done()
				if took := time.Since(begun); took != tt.ends || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
					t.Errorf("it ended after %v, %v", took, context.Cause(ctx))
				}
			})
		})
	}
	var none *upstream.Patience
	none.Pause()()
	if none.Paused() != 0 {
		t.Error("none has waited")
	}
}
