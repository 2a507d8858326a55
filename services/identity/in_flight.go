package identity

import (
	"sync"
	"time"
)

// inFlight counts the refreshes in flight, so that a shutdown can wait until the new tokens are stored. The zero value
// is ready for use. It is safe for concurrent use.
type inFlight struct {
	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup
}

// begin reports whether a refresh may begin. If it may, the caller must call end after it.
func (f *inFlight) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.running.Add(1)
	}
	return !f.closed
}

func (f *inFlight) end() { f.running.Done() }

// close lets no other refresh begin, and waits for those in flight, but at most for the given time. It reports whether
// all have ended.
func (f *inFlight) close(most time.Duration) bool {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.running.Wait()
	}()
	select {
	case <-ended:
		return true
	case <-time.After(most):
		return false
	}
}
