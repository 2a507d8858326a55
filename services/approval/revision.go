package approval

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/grpcstream"
)

// watchSilence is the maximum time between two messages from the policy service before the stream is reopened. The
// policy service sends a message at least every 500 ms.
const watchSilence = 2 * time.Second

// revisions stores the newest active policy revision that this service has received. It is safe for concurrent use.
type revisions struct {
	policy policyv1.PolicyServiceClient

	mu   sync.Mutex
	last *policyv1.Revision // nil until a revision is received
}

// checkReady returns errNoRevision if no active revision has been received.
func (r *revisions) checkReady() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return errNoRevision
	}
	return nil
}

// isCurrent reports whether a decision was made under the last received revision or a later one. A later revision is
// possible, because the policy service may use a revision before it sends the revision to watchers.
func (r *revisions) isCurrent(id, activation string) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		return false, errNoRevision
	}
	return id == r.last.GetId() || activation > r.last.GetActivation(), nil
}

// watch receives the active revision until ctx is done. While the policy service is unavailable, the last received
// revision stays in effect. This is safe, because an unavailable policy service makes no decisions, and earlier
// decisions are refused after maxAge.
func (r *revisions) watch(ctx context.Context) {
	stream := grpcstream.Stream[policyv1.WatchRevisionResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[policyv1.WatchRevisionResponse], error) {
			return r.policy.WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
		},
		Handle: func(resp *policyv1.WatchRevisionResponse) error {
			r.setActive(resp.GetRevision())
			return nil
		},
		MaxSilence: watchSilence,
	}
	stream.Run(ctx)
}

// setActive stores the active revision. It ignores a revision without an id, which means that no revision is active.
func (r *revisions) setActive(active *policyv1.Revision) {
	if active.GetId() == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = active
}
