package pipeline

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// refusalPace is how long a principal's next call waits after one that was refused,
// once its refusals are only counted: 200 a second ask policy at the most, whatever its
// agents send. Those that wait are as many as it may have in flight, 512, so a call of
// its own that is allowed passes within three seconds.
const refusalPace = 5 * time.Millisecond

// turn is a principal's at having a call judged. Nil is that of one that needs none.
type turn struct {
	taken chan struct{} // full while it lasts
	ended bool
}

// take waits until no other call of who is to blame is being judged, once its refusals are
// only counted: what it is allowed is not known before. Before that its calls need no
// turns. Who has hung up meanwhile is refused unjudged.
func (a *abuse) take(gone context.Context, who blamed) (*turn, *refusal.Refusal) {
	a.mu.Lock()
	s := a.stretches[who]
	if s == nil || s.rest == nil || time.Since(s.since) >= stretchTime {
		a.mu.Unlock()
		return nil, nil
	}
	if s.turn == nil {
		s.turn = make(chan struct{}, 1)
	}
	taken := s.turn
	a.mu.Unlock()
	select {
	case taken <- struct{}{}:
		return &turn{taken: taken}, nil
	case <-gone.Done():
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}
	}
}

// end lets the principal's next call be judged: a while later where this one was
// refused. It may be called again.
func (t *turn) end(refused bool) {
	if t != nil && !t.ended {
		t.ended = true
		t.pass(refused)
	}
}

func (t *turn) pass(refused bool) {
	if refused {
		time.AfterFunc(refusalPace, func() { <-t.taken }) // the answer does not wait, the next call does
		return
	}
	<-t.taken
}
