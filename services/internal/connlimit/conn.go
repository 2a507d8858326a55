package connlimit

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// strangerPiece is the maximum number of bytes per read from an unauthenticated client. The server parses all bytes
// of a read before the next one, even if the connection ends meanwhile.
const strangerPiece = 4 << 10

// Conn is a connection that a [Listener] accepted.
type Conn struct {
	net.Conn
	of   *Listener
	from netip.Prefix
	// late closes the connection after Limits.Identify. It is set if stranger is set.
	late *time.Timer

	// The listener's lock guards the following fields.
	//
	// stranger is the connection's element in the list of unauthenticated connections; nil if it is not in the list.
	//
	// caller is the identified caller; empty if no caller was identified. proxied is true for a connection of a
	// trusted proxy.
	stranger *list.Element
	caller   string
	proxied  bool
	closed   bool

	// known is true after a caller was identified and counted.
	known atomic.Bool

	// stint yields the processor between reads from an unauthenticated client.
	stint gosched.Work

	// spoke is true if the client is known to have sent something.
	spoke atomic.Bool
	// writing is locked while a write waits for the client to read.
	writing sync.Mutex
}

// Identified sets the caller of the connection and reports whether the caller may have one more connection. Only the
// first caller of a connection is counted; for later callers Identified returns true. For an empty caller it returns
// false.
func (c *Conn) Identified(caller string) bool {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	if c.stranger == nil || caller == "" {
		return caller != "" && !c.closed // a caller was identified before, or the connection is a trusted proxy's
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

// Known reports whether a caller was identified. Identified need not be called again then.
func (c *Conn) Known() bool { return c.known.Load() }

// NetConn returns the underlying connection, like [crypto/tls.Conn.NetConn].
func (c *Conn) NetConn() net.Conn { return c.Conn }

// expire closes the connection unless a caller was identified.
func (c *Conn) expire() {
	c.of.mu.Lock()
	late := c.stranger != nil
	c.of.mu.Unlock()
	if late {
		_ = c.Close() // no response is pending on it
	}
}

// hasSpoken reports whether the client has sent anything, including data that the server has not read yet. If there
// are many new connections, the server reads them late.
func (c *Conn) hasSpoken() bool {
	if !c.spoke.Load() && waiting(c.Conn) {
		c.spoke.Store(true)
	}
	return c.spoke.Load()
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.of.mu.Lock()
	c.closed = true
	c.of.leave(c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Read implements [net.Conn]. If Limits.Piece is set, Read waits while a write waits for the client to read.
// Otherwise a client that sends requests and reads no responses would use up memory.
func (c *Conn) Read(p []byte) (int, error) {
	if c.of.limits.Piece > 0 {
		c.writing.Lock()
		c.writing.Unlock() //nolint:staticcheck // waits for the write to end
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

// Write implements [net.Conn].
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
