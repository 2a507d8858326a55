package agent

import "sync"

// progressListener passes the progress of an agent to the caller of its prompt until the prompt returns. A turn that
// continues without its caller still has the listener, which then drops each text. It is safe for concurrent use.
type progressListener struct {
	mu sync.Mutex
	// progress may be nil.
	progress func(string)
}

// send passes a text to the caller, unless stop was called before.
func (l *progressListener) send(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil {
		l.progress(text)
	}
}

// stop stops the listener. When it returns, progress is not running and will not be called again.
func (l *progressListener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = nil
}
