package agent

import "sync"

// progressListener passes an agent's progress messages to the caller of a prompt until the prompt returns. If a turn
// continues without its caller, the listener drops the turn's messages. A progressListener is safe for concurrent use.
type progressListener struct {
	mu sync.Mutex
	// progress is the caller's function for progress messages. It may be nil.
	progress func(string)
}

// send passes a message to the caller. After stop has been called, send does nothing.
func (l *progressListener) send(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil {
		l.progress(text)
	}
}

// stop stops the listener. Once it has returned, the caller's function is not running and will not be called again.
func (l *progressListener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = nil
}
