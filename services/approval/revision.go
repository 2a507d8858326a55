package approval

import (
	"context"
	"sync"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

const (
	// watchRetry is how long to wait before the policy role is asked again.
	watchRetry = 200 * time.Millisecond
	// watchSilence is how long it may say nothing before it is: it beats every 500 ms.
	watchSilence = 2 * time.Second
)

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

// current tells whether a revision is the one that was seen last, or a later one: the
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
	for ctx.Err() == nil {
		r.follow(ctx)
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
}

func (r *revisions) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(watchSilence, cancel)
	defer silence.Stop()
	stream, err := r.policy.WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
	if err != nil {
		return
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return
		}
		silence.Reset(watchSilence)
		r.see(resp.GetRevision())
	}
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
