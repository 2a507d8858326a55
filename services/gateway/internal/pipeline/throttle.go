package pipeline

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// refusalDelay is how long a principal's next call waits after a refused one, once the principal's refusals are only
// counted. The delay limits the principal and its agents to 200 policy requests a second. At most 512 of its calls
// wait, as many as it may have in flight, so an allowed call passes within three seconds.
const refusalDelay = 5 * time.Millisecond

// judgeSlot is a principal's slot for having a call judged. A nil turn belongs to a call that needs no slot.
type judgeSlot struct {
	taken chan struct{} // full while the slot is taken
	ended bool
}

// takeSlot waits until no other call of the same principal is being judged. It waits only while that principal's
// refusals are only counted, because it is not known in advance which calls are allowed; otherwise it returns nil at
// once. If the caller disconnects while it waits, the call is refused unjudged.
func (a *refusalCounter) takeSlot(callerCtx context.Context, key offender) (*judgeSlot, *refusal.Refusal) {
	a.mu.Lock()
	s := a.windows[key]
	if s == nil || s.overflow == nil || time.Since(s.since) >= windowTime {
		a.mu.Unlock()
		return nil, nil
	}
	if s.slot == nil {
		s.slot = make(chan struct{}, 1)
	}
	taken := s.slot
	a.mu.Unlock()
	select {
	case taken <- struct{}{}:
		return &judgeSlot{taken: taken}, nil
	case <-callerCtx.Done():
		return nil, &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}
	}
}

// end lets the principal's next call be judged: after refusalDelay if this call was refused, otherwise at once. It is
// idempotent.
func (t *judgeSlot) end(refused bool) {
	if t != nil && !t.ended {
		t.ended = true
		t.free(refused)
	}
}

func (t *judgeSlot) free(refused bool) {
	if refused {
		time.AfterFunc(refusalDelay, func() { <-t.taken }) // delays the next call, not this answer
		return
	}
	<-t.taken
}
