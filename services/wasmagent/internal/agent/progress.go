package agent

import "sync"

// listener passes the progress of an agent to the caller of its prompt until the prompt returns. A turn that continues
// without its caller still has the listener, which then drops each text. It is safe for concurrent use.
type listener struct {
	mu sync.Mutex
	// tell may be nil.
	tell func(string)
}

// hear passes a text to the caller, unless end was called before.
func (l *listener) hear(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil {
		l.tell(text)
	}
}

// end stops the listener. When it returns, tell is not running and will not be called again.
func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = nil
}
