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

// maxUnauthenticatedRead limits how many bytes one read from an unauthenticated client returns. The limit is low,
// because the server parses all bytes of a read even if the connection has been closed meanwhile.
const maxUnauthenticatedRead = 4 << 10

// Conn is a connection that a [Listener] accepted.
type Conn struct {
	net.Conn
	listener *Listener
	prefix   netip.Prefix
	// identifyTimer closes the connection after Limits.IdentifyTimeout. It is nil if element is nil.
	identifyTimer *time.Timer

	// The listener's mutex guards the fields from element to closed.

	// element is the connection's element in the list of unauthenticated connections, or nil if it is not in the list.
	element *list.Element
	// caller is the identified caller. It is empty until a caller is identified.
	caller string
	// proxied is true if the connection comes from a trusted proxy.
	proxied bool
	closed  bool

	identified atomic.Bool

	// work yields the processor between reads from an unauthenticated client.
	work gosched.Work

	// sentData is true if the client is known to have sent data.
	sentData atomic.Bool
	// writeMu is locked while a write waits for the client to read.
	writeMu sync.Mutex
}

// Identify sets the caller of the connection, and reports whether the caller may use the connection. A caller that
// already has its maximum number of connections may not use another one. Only the first caller of a connection is
// counted, so Identify returns true for later callers. For an empty caller, it returns false.
func (c *Conn) Identify(caller string) bool {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.element == nil || caller == "" {
		return caller != "" && !c.closed // a caller is already identified, or the connection is from a trusted proxy
	}
	if c.listener.perCaller[caller] >= c.listener.limits.MaxPerCaller {
		return false
	}
	c.listener.uncount(c)
	c.listener.perCaller[caller]++
	c.caller = caller
	c.identified.Store(true)
	return true
}

// IsIdentified reports whether a caller has been identified. If so, Identify need not be called again.
func (c *Conn) IsIdentified() bool { return c.identified.Load() }

// NetConn returns the underlying connection, like [crypto/tls.Conn.NetConn].
func (c *Conn) NetConn() net.Conn { return c.Conn }

// expire closes the connection unless a caller has been identified.
func (c *Conn) expire() {
	c.listener.mu.Lock()
	late := c.element != nil
	c.listener.mu.Unlock()
	if late {
		_ = c.Close() // no response is pending on it
	}
}

// hasSentData reports whether the client has sent data, including data that the server has not read yet. If there are
// many new connections, it may take some time until the server reads from each of them.
func (c *Conn) hasSentData() bool {
	if !c.sentData.Load() && hasUnreadData(c.Conn) {
		c.sentData.Store(true)
	}
	return c.sentData.Load()
}

// Close implements [net.Conn].
func (c *Conn) Close() error {
	c.listener.mu.Lock()
	c.closed = true
	c.listener.uncount(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// Read implements [net.Conn]. If Limits.WriteTimeout is set, Read waits until no write is waiting for the client to
// read. Otherwise, a client that sends requests and does not read the responses would use up memory.
func (c *Conn) Read(p []byte) (int, error) {
	if c.listener.limits.WriteTimeout > 0 {
		c.writeMu.Lock()
		c.writeMu.Unlock() //nolint:staticcheck // waits for the write to end
	}
	if c.listener.limits.WriteTimeout > 0 && !c.IsIdentified() {
		c.work.Part()
		p = p[:min(len(p), maxUnauthenticatedRead)]
	}
	n, err := c.Conn.Read(p)
	if n > 0 && !c.sentData.Load() {
		c.sentData.Store(true)
	}
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (int, error) {
	if c.listener.limits.WriteTimeout > 0 {
		c.writeMu.Lock()
		defer c.writeMu.Unlock()
		if err := c.SetWriteDeadline(time.Now().Add(c.listener.limits.WriteTimeout)); err != nil {
			return 0, err
		}
	}
	return c.Conn.Write(p)
}
