// Package broadcast wakes all goroutines that wait for some data to change.
package broadcast

import "sync"

// Broadcaster sends notifications without content. A goroutine that is notified must find out itself what has changed.
// The zero value is ready to use. It is safe for concurrent use.
type Broadcaster struct {
	mu   sync.Mutex
	next chan struct{}
}

// Wait returns a channel that is closed by the next call to Notify.
func (n *Broadcaster) Wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// Notify closes the channels that Wait has returned.
func (n *Broadcaster) Notify() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
