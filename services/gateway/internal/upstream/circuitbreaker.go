package upstream

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxInFlight limits how many requests to one server may be in flight.
	maxInFlight = 4096
	// maxFailures is the number of consecutive failed connections after which no requests are sent to the server for a
	// while.
	maxFailures = 10
	// OpenDuration is the duration of the pause after maxFailures failures. During the pause, no requests are sent.
	// After the pause, the first request that cannot connect to the server starts another pause.
	OpenDuration = 2 * time.Second
)

// These are errors of requests that are not sent. Compare with errors.Is.
var (
	// ErrUnreached means that no connection to the server could be established, because its address refuses connections
	// or does not exist. The content of a request cannot cause this error.
	ErrUnreached = errors.New("the server can't be reached")
	// ErrCircuitOpen means that no request is sent because too many consecutive connection attempts have failed.
	ErrCircuitOpen = errors.New("the server could not be reached many times in a row; it is tried again in a moment")
	// ErrBusy means that too many requests are waiting for the server.
	ErrBusy = errors.New("too many requests wait for the server")
)

// circuitBreaker determines whether requests are sent to a server. Only failed connections count as failures, because a
// request that the server answers late or with an error must not block other callers' requests. circuitBreaker is safe
// for concurrent use.
type circuitBreaker struct {
	// onOpen is called when a pause begins.
	onOpen func()

	mu       sync.Mutex
	inFlight int32
	failures int
	until    time.Time
}

// do calls request, unless requests are paused or too many are in flight.
func (h *circuitBreaker) do(request func() (Answer, error)) (answer Answer, err error) {
	if err := h.begin(); err != nil {
		return Answer{}, err
	}
	err = ErrNeverSent // a panic of request must not count as a failure
	defer func() { h.end(err) }()
	return request()
}

func (h *circuitBreaker) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.until.IsZero() && time.Now().Before(h.until):
		return fmt.Errorf("%w: %w", ErrNeverSent, ErrCircuitOpen)
	case h.inFlight == maxInFlight:
		return fmt.Errorf("%w: %w", ErrNeverSent, ErrBusy)
	}
	h.inFlight++
	return nil
}

// end must be called when a request has ended. It uses err to update the count of failed connections. Any answer shows
// that the server is reachable. The result of a request is ignored if the request was cancelled, or if something other
// than the connection prevented the request from being sent.
func (h *circuitBreaker) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inFlight--
	switch {
	case errors.Is(err, ErrUnreached):
		if h.failures = min(h.failures+1, maxFailures); h.failures == maxFailures && !time.Now().Before(h.until) {
			h.until = time.Now().Add(OpenDuration)
			h.onOpen()
		}
	case err == nil, ClassOf(err) != ErrNeverSent && !isNotServerFault(err): //nolint:errorlint // ClassOf returns the value itself
		h.failures, h.until = 0, time.Time{}
	}
}

// state returns the number of requests in flight, and the time at which the pause ends. until is zero if requests are
// not paused.
func (h *circuitBreaker) state() (inFlight int32, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.until) {
		return h.inFlight, time.Time{}
	}
	return h.inFlight, h.until
}
