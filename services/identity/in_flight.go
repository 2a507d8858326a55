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

// begin reports whether a refresh may begin. If it returns true, the caller must call end when the refresh has ended.
func (f *inFlight) begin() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.running.Add(1)
	}
	return !f.closed
}

func (f *inFlight) end() { f.running.Done() }

// close prevents further refreshes. It waits until the refreshes in flight have ended, but not longer than limit. It
// reports whether all of them have ended.
func (f *inFlight) close(limit time.Duration) bool {
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
	case <-time.After(limit):
		return false
	}
}
