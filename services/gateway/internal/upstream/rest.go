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
	// maxFailures is the number of failed connections in a row after which the server rests.
	maxFailures = 10
	// Rest is how long nothing is sent to the server then. After it, requests are sent again, and the first one that
	// does not reach the server starts another rest.
	Rest = 2 * time.Second
)

// Errors of requests that are not sent. Compare with errors.Is.
var (
	// ErrUnreached means that the server could not be connected to: its address refuses connections, or does not exist.
	// No request can cause it.
	ErrUnreached = errors.New("the server can't be reached")
	// ErrRests means that the server was not reached many times in a row.
	ErrRests = errors.New("the server could not be reached many times in a row; it is tried again in a moment")
	// ErrBusy means that too many requests wait for the server.
	ErrBusy = errors.New("too many requests wait for the server")
)

// health decides whether requests are sent to a server. Only failed connections count: a request that the server fails
// or answers too late must not take the server from other callers. It is safe for concurrent use.
type health struct {
	// tell is called when a rest begins.
	tell func()

	mu       sync.Mutex
	inFlight int32
	failures int
	until    time.Time
}

// send makes a request unless the server rests or has too many requests.
func (h *health) send(request func() (Answer, error)) (answer Answer, err error) {
	if err := h.begin(); err != nil {
		return Answer{}, err
	}
	err = ErrNeverSent // so that a request that panics does not count
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

// end counts a request out and records what its error says about the connection: any answer shows that the server is
// reached; a cancelled request, or one that was not sent for another reason, shows nothing.
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
	case err == nil, ClassOf(err) != ErrNeverSent && !isOurs(err): //nolint:errorlint // ClassOf returns the value itself
		h.failures, h.until = 0, time.Time{}
	}
}

// now returns how many requests wait, and until when the server rests; zero if it does not.
func (h *health) now() (inFlight int32, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.until) {
		return h.inFlight, time.Time{}
	}
	return h.inFlight, h.until
}
