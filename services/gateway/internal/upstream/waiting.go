package upstream

import (
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxWaiting is how many requests of one principal, whatever its clients, may wait at a server for a
// client to make them again. They are none that are in flight, and each holds a connection.
const maxWaiting = 64

// waiting are those, by principal. The zero value has none. It is safe for concurrent use.
type waiting struct {
	mu sync.Mutex
	by map[principal.Key]int
}

// enter counts one, and tells whether it may wait.
func (w *waiting) enter(who principal.Key) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[who] == maxWaiting {
		return false
	}
	if w.by == nil {
		w.by = make(map[principal.Key]int)
	}
	w.by[who]++
	return true
}

// leave counts one no more.
func (w *waiting) leave(who principal.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[who]--; w.by[who] == 0 {
		delete(w.by, who)
	}
}
