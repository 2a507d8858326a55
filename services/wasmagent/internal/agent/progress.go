package agent

import "sync"

// progressListener forwards an agent's progress messages to the caller of a prompt until the prompt returns. A turn
// that continues without its caller still sends messages to the listener, but the listener drops them. A
// progressListener is safe for concurrent use.
type progressListener struct {
	mu sync.Mutex
	// progress is the caller's function for progress messages. It may be nil.
	progress func(string)
}

// send forwards a message to the caller. After stop has been called, send does nothing.
func (l *progressListener) send(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.progress != nil {
		l.progress(text)
	}
}

// stop stops the listener. After stop has returned, the function progress is not running and will not be called again.
func (l *progressListener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.progress = nil
}
