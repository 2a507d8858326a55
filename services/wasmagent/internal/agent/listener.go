package agent

import "sync"

// listener passes what an agent does on to the caller of its prompt, until that caller has its
// answer. A turn that goes on alone keeps its listener, which then passes nothing on. It is safe
// for concurrent use.
type listener struct {
	mu sync.Mutex
	// tell may be nil.
	tell func(string)
}

// hear passes a text on, if the caller still listens.
func (l *listener) hear(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tell != nil {
		l.tell(text)
	}
}

// end makes the listener pass nothing on. No call of tell is under way when end returns.
func (l *listener) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tell = nil
}
