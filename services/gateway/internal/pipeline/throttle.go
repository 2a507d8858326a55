package pipeline

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// refusalDelay is the delay between a refused call and the next call of the same principal. It applies only to
// principals whose refusals are no longer recorded individually. Such a principal can cause at most 200 requests to the
// policy service per second. A principal may have at most 512 calls in flight, so an allowed call waits less than three
// seconds.
const refusalDelay = 5 * time.Millisecond

// judgeSlot is the slot that a principal's call occupies while the call is being evaluated. It is nil if the call needs
// no slot.
type judgeSlot struct {
	taken chan struct{} // contains an element while the slot is in use
	ended bool
}

// takeSlot waits until no other call of the same principal is being evaluated, and returns the slot. If the principal's
// refusals are still recorded individually, takeSlot returns nil without waiting. If the caller disconnects during the
// wait, takeSlot returns a refusal.
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

// end releases the slot for the principal's next call. If the current call was refused, end releases the slot after
// refusalDelay, and otherwise immediately. Further calls of end do nothing.
func (t *judgeSlot) end(refused bool) {
	if t != nil && !t.ended {
		t.ended = true
		t.free(refused)
	}
}

func (t *judgeSlot) free(refused bool) {
	if refused {
		time.AfterFunc(refusalDelay, func() { <-t.taken }) // this delays only the next call, not the answer to this call
		return
	}
	<-t.taken
}
