package agent

import "sync"

// listener passes progress of an agent to the caller of its prompt, until the caller has its answer. A turn that
// continues without its caller keeps the listener, which then drops every text. It is safe for concurrent use.
type listener struct {
	mu sync.Mutex
	// tell may be nil.
	tell func(string)
}

// hear passes a text to the caller, unless end was called.
func (l *listener) hear(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil {
		l.tell(text)
	}
}

// end stops the listener. No call of tell is under way when end returns.
func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = nil
}
