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
	// peerBeat is how often a role that serves is asked whether it still does, and
	// peerRetry how soon one that does not.
	peerBeat  = 500 * time.Millisecond
	peerRetry = 50 * time.Millisecond
	// peerTimeout bounds a question.
	peerTimeout = time.Second
	// peerSilence is how long a role may say nothing before it counts as away.
	peerSilence = 2 * time.Second
)

// peerWatch knows which of the other roles serve, for readiness and GetStatus alone:
// what a call needs of a role is asked of it on each call. A role of which nothing
// was heard is away. It is safe for concurrent use.
type peerWatch map[string]*peer

type peer struct {
	health healthv1.HealthClient
	// heard is when the role last said that it serves; nil for never.
	heard atomic.Pointer[time.Time]
}

func newPeerWatch(roles map[string]healthv1.HealthClient) peerWatch {
	w := make(peerWatch, len(roles))
	for name, client := range roles {
		w[name] = &peer{health: client}
	}
	return w
}

// missing says which roles don't serve, a sentence each.
func (w peerWatch) missing() []string {
	var why []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if heard := w[name].heard.Load(); heard == nil || time.Since(*heard) > peerSilence {
			why = append(why, "the "+name+" service is away")
		}
	}
	return why
}

// run keeps asking until ctx ends.
func (w peerWatch) run(ctx context.Context) error {
	var group errgroup.Group
	for name, p := range w {
		group.Go(func() error {
			for ctx.Err() == nil {
				wait := peerRetry
				if p.serves(ctx, name) {
					p.heard.Store(new(time.Now()))
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
