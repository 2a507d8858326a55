// Package broadcast wakes all goroutines that wait until some data changes.
package broadcast

import "sync"

// Broadcaster notifies goroutines that something has changed. The goroutines must find out themselves what has changed.
// The zero value is ready to use. It is safe for concurrent use.
type Broadcaster struct {
	mu   sync.Mutex
	next chan struct{}
}

// Wait returns a channel that the next call to Notify closes.
func (n *Broadcaster) Wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// Notify closes the channels that Wait has returned since the last call to Notify.
func (n *Broadcaster) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
