package upstream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/sluice-mesh/sluice/services/gateway/internal/recent"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxInFlight is how many requests may wait for one server at a time.
	maxInFlight = 1024
	// maxFailures is how many requests in a row have to fail until a server rests.
	maxFailures = 10
	// Rest is for how long nothing is sent to it then. Behind that one request is, which ends the
	// rest or begins it anew.
	Rest = 2 * time.Second
	// maxCallers is for how many callers of a server it is known how often it did not answer.
	maxCallers = 10_000
)

// Reasons for which a request is not sent. Errors wrap them; compare with errors.Is.
var (
	// ErrRests means that the server was not reached, or has not answered this caller, many times
	// in a row.
	ErrRests = errors.New("the server failed many times in a row, and is tried again in a moment")
	// ErrBusy means that too many requests wait for the server.
	ErrBusy = errors.New("too many requests wait for the server")
)

// breaker is a circuit breaker.
type breaker = gobreaker.CircuitBreaker[Answer]

// health says whether requests are to be sent to a server. What nobody's requests can cause, that
// the server is not reached, counts for all; that it does not answer in time for who asked alone:
// else one caller could take the server from the others.
type health struct {
	inFlight atomic.Int32
	reached  *breaker // nil for one that never rests for all
	callers  *recent.Recent[principal.Key, *breaker]
	// rests is when the rest for all that began last ends, in nanoseconds of the Unix time.
	rests atomic.Int64
}

// newHealth returns that of a server of which nothing is known. It tells when the server rests. One
// whose processes are started for single callers never rests for all: whether one starts may be
// that caller's doing, and there are pauses between tries anyhow.
func newHealth(private bool, tell func()) *health {
	h := &health{callers: recent.New[principal.Key](maxCallers, maxCallers, func(*breaker) int { return 1 })}
	if private {
		return h
	}
	h.reached = newBreaker(ErrNeverSent, func(_ string, _, to gobreaker.State) {
		h.rests.Store(0)
		if to == gobreaker.StateOpen {
			h.rests.Store(time.Now().Add(Rest).UnixNano())
			tell()
		}
	})
	return h
}

// newBreaker returns a breaker for one class of errors: others of the server's are neither good
// nor bad.
func newBreaker(class error, moved func(name string, from, to gobreaker.State)) *breaker {
	return gobreaker.NewCircuitBreaker[Answer](gobreaker.Settings{
		Timeout:       Rest,
		ReadyToTrip:   func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= maxFailures },
		IsExcluded:    func(err error) bool { return err != nil && (isOurs(err) || !errors.Is(ClassOf(err), class)) },
		OnStateChange: moved,
	})
}

// send makes a request, unless the server rests or has too many. What it panics with goes on.
func (h *health) send(ctx context.Context, who principal.Key, request func() (Answer, error)) (Answer, error) {
	caller, known := h.callers.Get(who)
	if !known {
		caller = newBreaker(ErrTimeout, nil)
		h.callers.Put(who, caller)
	}
	defer h.inFlight.Add(-1)
	if h.inFlight.Add(1) > maxInFlight {
		return Answer{}, fmt.Errorf("%w: %w", ErrNeverSent, ErrBusy)
	}
	asked := func() (Answer, error) {
		answer, err := caller.Execute(func() (Answer, error) {
			answer, err := request()
			if err != nil && errors.Is(context.Cause(ctx), context.Canceled) {
				err = fmt.Errorf("%w: %w", err, errGone)
			}
			return answer, err
		})
		return answer, resting(err)
	}
	if h.reached == nil {
		return asked()
	}
	answer, err := h.reached.Execute(asked)
	return answer, resting(err)
}

// errGone means that nobody wants a request any more.
var errGone = errors.New("its caller has gone")

// resting says in words of ours that a breaker is open.
func resting(err error) error {
	if errors.Is(err, gobreaker.ErrOpenState) || errors.Is(err, gobreaker.ErrTooManyRequests) {
		return fmt.Errorf("%w: %w", ErrNeverSent, ErrRests)
	}
	return err
}
