package gateway

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

type role struct {
	healthv1.HealthClient
	answer atomic.Pointer[func(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error)]
	asked  atomic.Pointer[string]
}

func (r *role) says(answer func(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error)) {
	r.answer.Store(&answer)
}

func (r *role) Check(ctx context.Context, req *healthv1.HealthCheckRequest, _ ...grpc.CallOption) (*healthv1.HealthCheckResponse, error) {
	r.asked.Store(new(req.GetService()))
	status, err := (*r.answer.Load())(ctx)
	return &healthv1.HealthCheckResponse{Status: status}, err
}

func serving(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error) {
	return healthv1.HealthCheckResponse_SERVING, nil
}

func TestPeerHealth_ReportsRolesThatDoNotServe(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limiter, approval := new(role), new(role)
		limiter.says(serving)
		approval.says(serving)
		w := newPeerHealth(map[string]healthv1.HealthClient{"ratelimit": limiter, "approval": approval})
		if got := w.missing(); !slices.Equal(got, []string{"the approval service is unavailable", "the ratelimit service is unavailable"}) {
			t.Errorf("before the first check: %q", got)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.run(ctx) }()
		synctest.Wait()
		if got := w.missing(); len(got) > 0 || *limiter.asked.Load() != "ratelimit" {
			t.Errorf("all serve: %q, asked for %q", got, *limiter.asked.Load())
		}
		for name, answer := range map[string]func(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error){
			"is ill": func(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error) {
				return healthv1.HealthCheckResponse_NOT_SERVING, nil
			},
			"is away": func(context.Context) (healthv1.HealthCheckResponse_ServingStatus, error) {
				return healthv1.HealthCheckResponse_SERVING, errors.New("away")
			},
			"hangs": func(ctx context.Context) (healthv1.HealthCheckResponse_ServingStatus, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			},
		} {
			limiter.says(answer)
			time.Sleep(peerBeat + peerSilence + time.Millisecond)
			if got := w.missing(); !slices.Equal(got, []string{"the ratelimit service is unavailable"}) {
				t.Errorf("the limiter %s: %q", name, got)
			}
			limiter.says(serving)
			time.Sleep(peerTimeout + peerRetry + time.Millisecond)
			if got := w.missing(); len(got) > 0 {
				t.Errorf("after the limiter was available again: %q", got)
			}
		}
		stop()
		if err := <-done; err != nil {
			t.Errorf("it ended with %v", err)
		}
	})
}
