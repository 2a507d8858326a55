package session

import (
	"crypto/sha256"
	"sync"
)

// maxHanded is how many texts of one kind a session remembers; the oldest are dropped.
const maxHanded = 256

// Handed are texts that a server gave to a session and that its client may send back, such as cursors. A client's
// text that is not among them is not accepted. The zero value is empty. It is safe for concurrent use.
type Handed struct {
	mu    sync.Mutex
	given map[[sha256.Size]byte]bool
	order [][sha256.Size]byte
}

// Give adds a text that the client receives.
func (h *Handed) Give(text string) {
	sum := sha256.Sum256([]byte(text))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given[sum] {
		return
	}
	if h.given == nil {
		h.given = make(map[[sha256.Size]byte]bool)
	}
	if len(h.order) == maxHanded {
		delete(h.given, h.order[0])
		h.order = h.order[1:]
	}
	h.given[sum] = true
	h.order = append(h.order, sum)
}

// Given reports whether the session was given a text.
func (h *Handed) Given(text string) bool {
	sum := sha256.Sum256([]byte(text))
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.given[sum]
}
