package session

import "sync"

// Asked are the requests that the gateway has sent to a session's client and that
// wait for an answer. The zero value is that of a session that was asked nothing.
// It is safe for concurrent use.
type Asked struct {
	mu   sync.Mutex
	byID map[string]chan []byte
}

// Ask returns where the answer to a request comes, once, and a function that waits
// for it no longer. The id is one that no other request has.
func (a *Asked) Ask(id string) (answer <-chan []byte, forget func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byID == nil {
		a.byID = make(map[string]chan []byte)
	}
	came := make(chan []byte, 1)
	a.byID[id] = came
	return came, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.byID, id)
	}
}

// Answer passes a result on to who asked; nil for an error. One that nobody waits
// for, or no longer, is dropped.
func (a *Asked) Answer(id string, result []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if came, ok := a.byID[id]; ok {
		delete(a.byID, id)
		came <- result // has room: there is one answer
	}
}
