// Package door bounds the connections of a listener before clients are authenticated. Unauthenticated connections are
// bounded in all and for each address, and must identify a caller soon. If there are too many, one is closed: the
// oldest of those that have sent nothing, otherwise the oldest of all. Identified callers have quotas of their own,
// which unauthenticated clients can't use up.
package door

import (
	"container/list"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Limits bound the connections of one listener. All except Piece and Trusted are required.
type Limits struct {
	// Strangers is the maximum number of unauthenticated connections, and PerAddress that of one address.
	Strangers, PerAddress int
	// PerCaller is the maximum number of connections of one identified caller.
	PerCaller int
	// Identify is how long a connection may be open before a caller is identified.
	Identify time.Duration
	// Piece is how long the other end may take to read one write; meanwhile nothing is read from it. Zero leaves both
	// to the server of the connection.
	Piece time.Duration
	// Trusted reports whether an address, such as that of a proxy, carries the connections of many clients: there may
	// be Proxied of them in all, and no other limit applies. Nil trusts no address.
	Trusted func(netip.Addr) bool
	Proxied int
}

// A Listener accepts bounded connections. It is safe for concurrent use.
type Listener struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu sync.Mutex
	// strangers are the unauthenticated connections, the oldest first, and at is how many of them each address has.
	strangers *list.List
	at        map[netip.Prefix]int
	// known is how many connections each caller has, and proxied how many trusted proxies have.
	known   map[string]int
	proxied int
	// turned is how many connections were closed for others since that was logged, at said.
	turned int
	said   time.Time
}

// sayEvery is the minimum interval between log messages about closed connections.
const sayEvery = time.Minute

// Listen bounds the connections of lis. It logs at most once a minute that connections were closed to make space for
// others.
func Listen(lis net.Listener, limits Limits, log *slog.Logger) (*Listener, error) {
	if lis == nil || log == nil || limits.Strangers <= 0 || limits.PerAddress <= 0 || limits.PerCaller <= 0 || limits.Identify <= 0 ||
		limits.Trusted != nil && limits.Proxied <= 0 {
		return nil, errors.New("door: a listener, a log and every limit are required")
	}
	return &Listener{Listener: lis, limits: limits, log: log, strangers: list.New(), at: make(map[netip.Prefix]int), known: make(map[string]int)}, nil
}

// Accept implements net.Listener. Its connections are of type *[Conn].
func (l *Listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if c := l.admit(inner); c != nil {
			return c, nil
		}
	}
}

// admit accepts a connection; it returns nil if trusted proxies have Proxied connections already.
func (l *Listener) admit(inner net.Conn) *Conn {
	addr := addressOf(inner.RemoteAddr())
	c := &Conn{Conn: inner, of: l, from: prefixOf(addr)}
	if l.limits.Trusted != nil && l.limits.Trusted(addr) {
		if !l.forward(c) {
			_ = inner.Close() // the proxy reports it to its client
			return nil
		}
		return c
	}
	if least, turned := l.enter(c); least != nil {
		_ = least.Close() // without a message
		if turned > 0 {
			l.log.WarnContext(context.Background(), "unauthenticated connections were closed to make space for others", "count", turned, "newest", addr.String(), "address", l.Addr().String())
		}
	}
	return c
}

// forward counts a connection of a trusted proxy. It returns false if there are too many.
func (l *Listener) forward(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proxied >= l.limits.Proxied {
		return false
	}
	l.proxied++
	c.proxied = true
	return true
}

// enter counts an unauthenticated connection. It returns the connection to close for it, if any, and how many closed
// connections to log now.
func (l *Listener) enter(c *Conn) (least *Conn, turned int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.at[c.from] >= l.limits.PerAddress:
		least = l.least(c.from)
	case l.strangers.Len() >= l.limits.Strangers:
		least = l.least(l.fullest())
	}
	if least != nil {
		l.leave(least)
		turned = l.count(time.Now())
	}
	c.stranger = l.strangers.PushBack(c)
	l.at[c.from]++
	c.late = time.AfterFunc(l.limits.Identify, c.expire)
	return least, turned
}

// count counts a closed connection, and returns how many to log now.
func (l *Listener) count(now time.Time) (say int) {
	l.turned++
	if now.Sub(l.said) < sayEvery {
		return 0
	}
	say, l.turned, l.said = l.turned, 0, now
	return say
}

// least returns the connection of an address to close: the oldest of those that have sent nothing, otherwise the
// oldest of all. So a client in its handshake keeps its connection next to any number of silent ones.
func (l *Listener) least(from netip.Prefix) (oldest *Conn) {
	for e := l.strangers.Front(); e != nil; e = e.Next() {
		switch c := e.Value.(*Conn); { //nolint:forcetypeassert // the list contains nothing else
		case c.from != from:
		case !c.hasSpoken():
			return c
		case oldest == nil:
			oldest = c
		}
	}
	return oldest
}

// fullest returns the address with the most connections, so that addresses with few keep theirs.
func (l *Listener) fullest() (from netip.Prefix) {
	most := 0
	for prefix, n := range l.at {
		if n > most {
			from, most = prefix, n
		}
	}
	return from
}

// leave uncounts a connection. It is idempotent.
func (l *Listener) leave(c *Conn) {
	if c.stranger != nil {
		l.strangers.Remove(c.stranger)
		c.stranger = nil
		c.late.Stop()
		if l.at[c.from]--; l.at[c.from] == 0 {
			delete(l.at, c.from)
		}
	}
	if c.proxied {
		l.proxied--
		c.proxied = false
	}
	if c.caller != "" {
		if l.known[c.caller]--; l.known[c.caller] == 0 {
			delete(l.known, c.caller)
		}
		c.caller = ""
	}
}

// addressOf returns the address of the other end; the zero value if it has none.
func addressOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// prefixOf returns the addresses that count as one client: a single address of IPv4, a network of 64 bits of IPv6
// (RFC 6177).
func prefixOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // without an address the zero prefix, which counts as one client too
	return prefix
}
