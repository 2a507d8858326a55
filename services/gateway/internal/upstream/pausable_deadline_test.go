package upstream_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The time during which a server waits for the client does not count, even if several of the server's requests overlap
// or a request began before the call. The waiting time has its own limit.
func TestPausableDeadline_StopsWhileTheServerWaits(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		do   func(p *upstream.PausableDeadline, begin func())
		ends time.Duration // the time since Begin
	}{
		"it never waits": {func(_ *upstream.PausableDeadline, begin func()) { begin() }, time.Minute},
		"it waits once": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			time.Sleep(30 * time.Second)
			resume := p.Pause()
			time.Sleep(10 * time.Minute)
			resume()
		}, 11 * time.Minute},
		"twice at a time": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			first := p.Pause()
			time.Sleep(time.Minute)
			second := p.Pause()
			time.Sleep(time.Minute)
			first()
			time.Sleep(time.Minute)
			second()
		}, 4 * time.Minute},
		"before the call is sent": {func(p *upstream.PausableDeadline, begin func()) {
			resume := p.Pause()
			time.Sleep(time.Hour)
			begin()
			time.Sleep(5 * time.Minute)
			resume()
		}, 6 * time.Minute},
		"it makes progress": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			time.Sleep(50 * time.Second)
			p.Progressed()
			time.Sleep(50 * time.Second)
			p.Progressed()
		}, 160 * time.Second},
		"it makes progress, and waits": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			time.Sleep(50 * time.Second)
			resume := p.Pause()
			time.Sleep(10 * time.Minute)
			p.Progressed()
			resume()
		}, 11*time.Minute + 50*time.Second},
		"it makes progress without end": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			for range 30 {
				time.Sleep(30 * time.Second)
				p.Progressed()
			}
		}, 5 * time.Minute},
		"without end": {func(p *upstream.PausableDeadline, begin func()) {
			begin()
			p.Pause()
		}, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var p upstream.PausableDeadline
				var ctx context.Context
				var begun time.Time
				done := make(chan time.Time, 1)
				tt.do(&p, func() {
					var end context.CancelCauseFunc
					ctx, end = context.WithCancelCause(t.Context())
					p.Begin(time.Minute, 5*time.Minute, end)
					t.Cleanup(p.Stop)
					begun = time.Now()
					context.AfterFunc(ctx, func() { done <- time.Now() })
				})
				<-ctx.Done()
				ended := <-done
				if took := ended.Sub(begun); took != tt.ends || !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
					t.Errorf("it ended after %v, %v", took, context.Cause(ctx))
				}
			})
		})
	}
	var none *upstream.PausableDeadline
	none.Pause()()
	if none.Paused() != 0 {
		t.Error("none has waited")
	}
}
