package pipeline

import (
	"context"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// refusalPace is how long a principal's next call waits after one that was refused,
// once its refusals are only counted: 200 a second ask policy at the most, whatever its
// agents send. Those that wait are as many as it may have in flight, 512, so a call of
// its own that is allowed passes within three seconds.
const refusalPace = 5 * time.Millisecond

// turnOf returns what a principal's calls take turns by; nil while its refusals are
// recorded one by one, when they need none.
func (a *abuse) turnOf(p *identityv1.Principal, now time.Time) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.stretches[principal.Of(p)]
	if s == nil || s.rest == nil || now.Sub(s.since) >= stretchTime {
		return nil
	}
	if s.turn == nil {
		s.turn = make(chan struct{}, 1)
	}
	return s.turn
}

// takeTurn waits until no other call of a throttled principal is being judged; what it
// is allowed is not known before. Who has hung up meanwhile is refused unjudged.
func (r *run) takeTurn(context.Context) *refusal.Refusal {
	r.endTurn = func(bool) {}
	turn := r.abuse.turnOf(r.Principal, time.Now())
	if turn == nil {
		return nil
	}
	select {
	case turn <- struct{}{}:
	case <-r.caller.Done():
		return &refusal.Refusal{Code: commonv1.Code_CODE_ABUSE_LIMITED}
	}
	r.endTurn = func(refused bool) {
		r.endTurn = func(bool) {}
		if !refused {
			<-turn
			return
		}
		time.AfterFunc(refusalPace, func() { <-turn }) // the answer does not wait, the next call does
	}
	return nil
}
