package pipeline

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
)

// refusalDelay is how long a principal's next call is delayed after a refused call, once the principal's refusals are
// only counted and not recorded individually. It limits the principal and its agents to 200 requests to the policy
// service per second. A principal may have at most 512 calls in flight, so an allowed call waits less than three
// seconds.
const refusalDelay = 5 * time.Millisecond

// judgeSlot is the slot that a principal's call occupies while the call is being evaluated. If a call needs no slot,
// its judgeSlot is nil.
type judgeSlot struct {
	taken chan struct{} // contains an element while the slot is in use
	ended bool
}

// takeSlot waits until no other call of the same principal is being evaluated, and returns the slot. If the principal's
// refusals are still recorded individually, takeSlot immediately returns nil. If the caller disconnects while it waits,
// takeSlot returns a refusal.
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
// refusalDelay. Otherwise it releases the slot immediately. It is idempotent.
func (t *judgeSlot) end(refused bool) {
	if t != nil && !t.ended {
		t.ended = true
		t.free(refused)
	}
}

func (t *judgeSlot) free(refused bool) {
	if refused {
		time.AfterFunc(refusalDelay, func() { <-t.taken }) // delays the next call, but not the answer to this one
		return
	}
	<-t.taken
}
