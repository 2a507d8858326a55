package gateway

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	// peerBeat is the interval between checks of a mesh service that is serving. peerRetry is the interval between
	// checks of a mesh service that is not serving.
	peerBeat    = 500 * time.Millisecond
	peerRetry   = 50 * time.Millisecond
	peerTimeout = time.Second
	// peerSilence is how long a mesh service still counts as available after its last successful check.
	peerSilence = 2 * time.Second
)

// peerHealth contains the health of the other mesh services. A service counts as unavailable until its first successful
// check. The health is used only for readiness and GetStatus. Calls do not check the health, because they fail anyway
// if a service that they need does not respond. A peerHealth is safe for concurrent use.
type peerHealth map[string]*peer

type peer struct {
	health healthv1.HealthClient
	// lastServed is the time at which the service last reported that it is serving, or nil if it has never reported
	// this.
	lastServed atomic.Pointer[time.Time]
}

func newPeerHealth(roles map[string]healthv1.HealthClient) peerHealth {
	w := make(peerHealth, len(roles))
	for name, client := range roles {
		w[name] = &peer{health: client}
	}
	return w
}

func (w peerHealth) missing() []string {
	var why []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if heard := w[name].lastServed.Load(); heard == nil || time.Since(*heard) > peerSilence {
			why = append(why, "the "+name+" service is unavailable")
		}
	}
	return why
}

func (w peerHealth) run(ctx context.Context) error {
	var group errgroup.Group
	for name, p := range w {
		group.Go(func() error {
			for ctx.Err() == nil {
				wait := peerRetry
				if p.serves(ctx, name) {
					p.lastServed.Store(new(time.Now()))
					wait = peerBeat
				}
				select {
				case <-ctx.Done():
				case <-time.After(wait):
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (p *peer) serves(ctx context.Context, name string) bool {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	resp, err := p.health.Check(ctx, &healthv1.HealthCheckRequest{Service: name})
	return err == nil && resp.GetStatus() == healthv1.HealthCheckResponse_SERVING
}
