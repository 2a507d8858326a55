package approval

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/follow"
)

// watchSilence is how long the policy role may say nothing before it is asked again: it
// beats every 500 ms.
const watchSilence = 2 * time.Second

// revisions know which revision of the policies was seen to be active last. They are
// safe for concurrent use.
type revisions struct {
	policy policyv1.PolicyServiceClient

	mu   sync.Mutex
	last *policyv1.Revision // nil before one was seen
}

// seen tells why nothing is known of any revision yet.
func (r *revisions) seen() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return errUnseen
	}
	return nil
}

// current reports whether a revision is the one that was seen last, or a later one: the
// policy role may be ahead of what it has shown.
func (r *revisions) current(id, activation string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return false, errUnseen
	}
	return id == r.last.GetId() || activation > r.last.GetActivation(), nil
}

// watch keeps up with the policy role until ctx ends. While that is away what was seen
// last counts: it decides nothing then, and what it has decided is soon too old.
func (r *revisions) watch(ctx context.Context) {
	stream := follow.Stream[policyv1.WatchRevisionResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[policyv1.WatchRevisionResponse], error) {
			return r.policy.WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
		},
		Take: func(resp *policyv1.WatchRevisionResponse) error {
			r.see(resp.GetRevision())
			return nil
		},
		Silence: watchSilence,
	}
	stream.Run(ctx)
}

// see takes a revision that is active. Where none is, policy decides nothing.
func (r *revisions) see(active *policyv1.Revision) {
	if active.GetId() == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = active
}
