// Package news tells all who wait that something is new.
package news

import "sync"

// News has no message: who waits looks for itself. The zero value is ready. It is safe for concurrent
// use.
type News struct {
	mu   sync.Mutex
	next chan struct{}
}

// Wait returns what ends with the next news.
func (n *News) Wait() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next == nil {
		n.next = make(chan struct{})
	}
	return n.next
}

// Tell ends what those have who wait now.
func (n *News) Tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next != nil {
		close(n.next)
		n.next = nil
	}
}
