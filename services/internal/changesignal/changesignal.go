// Package changesignal notifies goroutines of changes.
package changesignal

import "sync"

// Signal notifies any number of waiters of a change. Create it with [New]. It is safe for concurrent use.
type Signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// New returns a signal.
func New() *Signal { return &Signal{ch: make(chan struct{})} }

// Wait returns a channel that is closed at the next change.
func (s *Signal) Wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ch
}

// Notify closes the channels that Wait has returned.
func (s *Signal) Notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.ch)
	s.ch = make(chan struct{})
}
