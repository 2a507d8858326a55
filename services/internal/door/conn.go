package door

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// strangerPiece is how much of what a stranger sends is read at a time, in bytes. All of it
// is looked at before anything else is read, even if the connection ends meanwhile.
const strangerPiece = 4 << 10

// Conn is a connection that a [Listener] let in.
type Conn struct {
	net.Conn
	of   *Listener
	from netip.Prefix
	// late ends the connection of a stranger; set with stranger.
	late *time.Timer

	// The listener's lock guards these. stranger is its place among the strangers,
	// nil for none; caller is who was identified, empty for nobody; proxied says that it
	// is a trusted proxy's.
	stranger *list.Element
	caller   string
	proxied  bool
	closed   bool

	// known says that somebody was identified, and counted.
	known atomic.Bool

	// stint is the reading of what a stranger sends.
	stint turn.Stint

	// spoke says that something was read.
	spoke atomic.Bool
	// writing is held while the other end reads.
	writing sync.Mutex
}

// Identified says that caller is at the other end, and reports whether it has room for
// one more connection. The first caller of a connection counts; those after it
// always have room. An empty caller is nobody.
func (c *Conn) Identified(caller string) bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.stranger == nil || caller == "" {
		return caller != "" && !c.closed // known already, or a trusted proxy's
	}
	if c.of.known[caller] >= c.of.limits.PerCaller {
		return false
	}
	c.of.leave(c)
	c.of.known[caller]++
	c.caller = caller
	c.known.Store(true)
	return true
}

// Known reports whether somebody was identified: nobody need be again.
func (c *Conn) Known() bool { return c.known.Load() }

// NetConn is the connection itself, as that of [crypto/tls.Conn] is.
func (c *Conn) NetConn() net.Conn { return c.Conn }

// expire ends the connection if nobody was identified on it.
func (c *Conn) expire() {
	c.of.mu.Lock()
	late := c.stranger != nil
	c.of.mu.Unlock()
	if late {
		_ = c.Close() // nobody waits for an answer on it
	}
}

// hasSpoken reports whether the other end has said anything, read or not: where many come
// at once, who serves them is behind.
func (c *Conn) hasSpoken() bool {
	if !c.spoke.Load() && waiting(c.Conn) {
		c.spoke.Store(true)
	}
	return c.spoke.Load()
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.closed = true
	c.of.leave(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Read implements net.Conn. Who does not read what it is sent is not listened to
// until it does: else its requests, and their answers, would pile up here.
func (c *Conn) Read(p []byte) (int, error) {
	if c.of.limits.Piece > 0 {
		c.writing.Lock()
		c.writing.Unlock() //nolint:staticcheck // waiting is all that it is for
	}
	if c.of.limits.Piece > 0 && !c.Known() {
		c.stint.Part()
		p = p[:min(len(p), strangerPiece)]
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.spoke.Load() {
		c.spoke.Store(true)
	}
	return n, err
}

// Write implements net.Conn.
func (c *Conn) Write(p []byte) (int, error) {
	if c.of.limits.Piece > 0 {
		c.writing.Lock()
		defer c.writing.Unlock()
		if err := c.SetWriteDeadline(time.Now().Add(c.of.limits.Piece)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}
