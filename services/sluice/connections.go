package sluice

import (
	"net"
	"sync"
	"time"
)

// Connections counts the open connections to a mesh. A mesh that was started on demand uses it to detect that it is
// idle. The zero value is ready to use. A nil *Connections counts nothing. All methods are safe for concurrent use.
type Connections struct {
	mu   sync.Mutex
	open int
	last time.Time
}

// IdleSince returns the time when the last connection was closed, or the time of Begin if there has been no connection.
// The second result is false while a connection is open. It is also false if Begin was not called and no connection was
// opened.
func (c *Connections) IdleSince() (since time.Time, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.open == 0 && !c.last.IsZero()
}

// Begin starts the idle period without waiting for a first connection.
func (c *Connections) Begin() { c.add(0) }

func (c *Connections) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open += n
	c.last = time.Now()
}

// Count wraps a listener to count its connections. If c is nil, Count returns the listener unchanged.
func (c *Connections) Count(lis net.Listener) net.Listener {
	if c == nil {
		return lis
	}
	return countedListener{lis, c}
}

type countedListener struct {
	net.Listener

	connections *Connections
}

func (l countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.connections.add(1)
	return &countedConn{Conn: conn, closed: sync.OnceFunc(func() { l.connections.add(-1) })}, nil
}

type countedConn struct {
	net.Conn

	closed func()
}

// NetConn returns the underlying connection, like [crypto/tls.Conn.NetConn].
func (c *countedConn) NetConn() net.Conn { return c.Conn }

func (c *countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
