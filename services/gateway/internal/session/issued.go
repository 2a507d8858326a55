package session

import (
	"crypto/sha256"
	"sync"
)

// maxIssued limits how many strings of one kind a session stores. The oldest strings are removed first.
const maxIssued = 256

// IssuedTexts contains strings, such as cursors, that a server has sent in a session. The client may send only these
// strings back to the server. The zero value is empty. It is safe for concurrent use.
type IssuedTexts struct {
	mu    sync.Mutex
	texts map[[sha256.Size]byte]bool
	order [][sha256.Size]byte
}

// Add stores a string that the client receives.
func (h *IssuedTexts) Add(text string) {
	sum := sha256.Sum256([]byte(text))
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.texts[sum] {
		return
	}
	if h.texts == nil {
		h.texts = make(map[[sha256.Size]byte]bool)
	}
	if len(h.order) == maxIssued {
		delete(h.texts, h.order[0])
		h.order = h.order[1:]
	}
	h.texts[sum] = true
	h.order = append(h.order, sum)
}

// Contains reports whether the given string is stored.
func (h *IssuedTexts) Contains(text string) bool {
	sum := sha256.Sum256([]byte(text))
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.texts[sum]
}
