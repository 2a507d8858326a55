package upstream

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// maxInFlight is the maximum number of requests in flight to one server.
	maxInFlight = 4096
	// maxFailures is the number of consecutive connection failures after which requests to the server are paused.
	maxFailures = 10
	// OpenDuration is the duration of the pause after maxFailures failures. If a request after the pause can't connect to
	// the server, another pause begins.
	OpenDuration = 2 * time.Second
)

// These are the errors of requests that are not sent. Use errors.Is to test for them.
var (
	// ErrUnreached means that no connection to the server could be established, because its address refuses connections
	// or does not exist. The content of a request cannot cause this error.
	ErrUnreached = errors.New("the server can't be reached")
	// ErrCircuitOpen means that no request is sent during a pause after consecutive connection failures.
	ErrCircuitOpen = errors.New("the server could not be reached many times in a row; it is tried again in a moment")
	// ErrBusy means that too many requests are waiting for the server.
	ErrBusy = errors.New("too many requests wait for the server")
)

// circuitBreaker determines whether requests are sent to a server. Only connection failures count as failures. If a
// server answers one caller's request late or with an error, it must still receive the requests of other callers.
// circuitBreaker is safe for concurrent use.
type circuitBreaker struct {
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
	err = ErrNeverSent // a panic in request must not count as a failure
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

// end updates the count of connection failures with the result of a request. The caller must call it when the request
// has ended. Any answer from the server resets the count. A result has no effect if the request was cancelled, or if it
// was not sent for a reason other than the connection.
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
	case err == nil, ClassOf(err) != ErrNeverSent && !isNotServerFault(err): //nolint:errorlint // ClassOf returns ErrNeverSent itself, not an error that wraps it
		h.failures, h.until = 0, time.Time{}
	}
}

// state returns the number of requests in flight, and the time at which the pause ends. The time is zero if there is no
// pause.
func (h *circuitBreaker) state() (inFlight int32, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !time.Now().Before(h.until) {
		return h.inFlight, time.Time{}
	}
	return h.inFlight, h.until
}
