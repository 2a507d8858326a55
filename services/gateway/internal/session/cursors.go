package session

import (
	"crypto/sha256"
	"sync"
)

// maxCursors is how many cursors a session remembers, the newest.
const maxCursors = 256

// Cursors are those that a server gave to a session with the pages of its lists: no
// other text of a client's is one. The zero value has none. It is safe for concurrent
// use.
type Cursors struct {
	mu    sync.Mutex
	given map[[sha256.Size]byte]bool
	order [][sha256.Size]byte
}

// Give notes a cursor that the client gets.
func (c *Cursors) Give(cursor string) {
	sum := sha256.Sum256([]byte(cursor))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.given[sum] {
		return
	}
	if c.given == nil {
		c.given = make(map[[sha256.Size]byte]bool)
	}
	if len(c.order) == maxCursors {
		delete(c.given, c.order[0])
		c.order = c.order[1:]
	}
	c.given[sum] = true
	c.order = append(c.order, sum)
}

// Given tells whether the session was given a cursor.
func (c *Cursors) Given(cursor string) bool {
	sum := sha256.Sum256([]byte(cursor))
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given[sum]
}
