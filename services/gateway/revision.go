package gateway

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/follow"
)

// revisionSilence is how long the policy role may say nothing before it counts as away.
// It beats every 500 ms.
const revisionSilence = 2 * time.Second

// revisionWatch knows which revision is active, for readiness and GetStatus alone:
// what a call may do is asked of policy on each call. The zero value knows of
// none. It is safe for concurrent use.
type revisionWatch struct {
	last atomic.Pointer[revisionState]
}

type revisionState struct {
	id    string
	heard time.Time
}

// isSilent tells whether nothing was heard from the policy role of late; of nil it is.
func (s *revisionState) isSilent() bool { return s == nil || time.Since(s.heard) > revisionSilence }

// missing says why no revision is known to be active; empty where one is.
func (w *revisionWatch) missing() string {
	last := w.last.Load()
	switch {
	case last.isSilent():
		return "the policy service is away"
	case last.id == "":
		return "no policy is active"
	default:
		return ""
	}
}

// id returns the active revision; empty where none is known.
func (w *revisionWatch) id() string {
	last := w.last.Load()
	if last.isSilent() {
		return ""
	}
	return last.id
}

// run keeps up with the policy role until ctx ends.
func (w *revisionWatch) run(ctx context.Context, policy policyv1.PolicyServiceClient) error {
	stream := follow.Stream[policyv1.WatchRevisionResponse]{
		Open: func(ctx context.Context) (grpc.ServerStreamingClient[policyv1.WatchRevisionResponse], error) {
			return policy.WatchRevision(ctx, &policyv1.WatchRevisionRequest{})
		},
		Take: func(resp *policyv1.WatchRevisionResponse) error {
			w.last.Store(&revisionState{id: resp.GetRevision().GetId(), heard: time.Now()})
			return nil
		},
		Silence: revisionSilence,
	}
	stream.Run(ctx)
	return nil
}
