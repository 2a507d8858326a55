package upstream

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxInFlight is how many requests may wait for one server at a time.
	maxInFlight = 4096
	// maxFailures is how many requests in a row may not reach a server until it rests.
	maxFailures = 10
	// Rest is for how long nothing is sent to it then. Once it is over requests are sent again, of
	// which the first that does not reach it begins the rest again.
	Rest = 2 * time.Second
)

// Errors of requests that are not sent; compare with errors.Is.
var (
	// ErrUnreached means that there was no way to the server: nobody takes connections at its
	// address, or it has none. It is nothing that a request could bring about.
	ErrUnreached = errors.New("the server is not reached")
	// ErrRests means that it was not reached many times in a row.
	ErrRests = errors.New("the server was not reached many times in a row, and is tried again in a moment")
	// ErrBusy means that too many requests wait for it.
	ErrBusy = errors.New("too many requests wait for the server")
)

// health says whether requests are to be sent to a server. Only that it is not reached counts:
// what a caller's request makes of it, or does not get in time, must take the server from nobody
// else. It is safe for concurrent use.
type health struct {
	// tell is called when a rest begins.
	tell func()

	mu       sync.Mutex
	inFlight int32
	failures int
	until    time.Time
}

// send makes a request, unless the server rests or has too many.
func (h *health) send(request func() (Answer, error)) (answer Answer, err error) {
	if err := h.begin(); err != nil {
		return Answer{}, err
	}
	err = ErrNeverSent // by which nothing is learned of a request that panics
	defer func() { h.end(err) }()
	return request()
}

func (h *health) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.until.IsZero() && time.Now().Before(h.until):
		return fmt.Errorf("%w: %w", ErrNeverSent, ErrRests)
	case h.inFlight == maxInFlight:
		return fmt.Errorf("%w: %w", ErrNeverSent, ErrBusy)
	}
	h.inFlight++
	return nil
}

// end counts a request no more, and notes what its error says of whether the server is reached: who has
// answered is, and what was given up, or never left for another reason, says nothing.
func (h *health) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inFlight--
	switch {
	case errors.Is(err, ErrUnreached):
		if h.failures = min(h.failures+1, maxFailures); h.failures == maxFailures && !time.Now().Before(h.until) {
			h.until = time.Now().Add(Rest)
			h.tell()
		}
	case err == nil, ClassOf(err) != ErrNeverSent && !isOurs(err): //nolint:errorlint // it is the very value
		h.failures, h.until = 0, time.Time{}
	}
}

// now is how many requests wait, and until when the server rests; zero where it does not.
func (h *health) now() (inFlight int32, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.until) {
		return h.inFlight, time.Time{}
	}
	return h.inFlight, h.until
}
