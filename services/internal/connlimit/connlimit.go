// Package connlimit limits the connections of a listener before clients are authenticated. It limits the number of
// unauthenticated connections in total and per address. It closes a connection on which no caller is identified before
// a timeout.
//
// If there are too many unauthenticated connections, the listener closes the oldest connection on which the client has
// sent no data. If all clients have sent data, it closes the oldest connection. Identified callers have separate
// quotas, which unauthenticated clients can't use up.
package connlimit

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

// Limits contains the limits of one listener. All fields except WriteTimeout, IsTrusted and MaxProxied are required.
type Limits struct {
	// MaxUnauthenticated limits how many unauthenticated connections exist in total. MaxPerAddress limits how many of them
	// come from one address.
	MaxUnauthenticated, MaxPerAddress int
	// MaxPerCaller limits how many connections one identified caller has.
	MaxPerCaller int
	// IdentifyTimeout limits how long a connection stays open before a caller is identified on it.
	IdentifyTimeout time.Duration
	// WriteTimeout limits how long the client may take to read the data of one write. Until the client has read this data,
	// the server reads nothing from the client. If WriteTimeout is zero, there is no limit, and reads do not wait for
	// writes.
	WriteTimeout time.Duration
	// IsTrusted reports whether an address is trusted to transmit requests of many clients, for example because it is a
	// proxy's address. If IsTrusted is nil, no address is trusted.
	IsTrusted func(netip.Addr) bool
	// MaxProxied limits how many connections all trusted addresses together have. No other limit applies to these
	// connections.
	MaxProxied int
}

// A Listener accepts connections within its limits. It is safe for concurrent use.
type Listener struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu sync.Mutex
	// unauthenticated lists the unauthenticated connections, oldest first.
	unauthenticated *list.List
	// perAddress is the number of unauthenticated connections per address.
	perAddress map[netip.Prefix]int
	// perCaller is the number of connections per identified caller.
	perCaller map[string]int
	// proxied is the number of connections from trusted addresses.
	proxied int
	// closedCount is the number of connections that were closed to make room for other connections since the last log
	// message.
	closedCount int
	// loggedAt is the time of the last log message.
	loggedAt time.Time
}

// logInterval is the minimum interval between log messages about closed connections.
const logInterval = time.Minute

// Listen returns a listener that limits the connections of lis. At most once a minute, it logs how many connections it
// closed to make room for other connections.
func Listen(lis net.Listener, limits Limits, log *slog.Logger) (*Listener, error) {
	if lis == nil || log == nil || limits.MaxUnauthenticated <= 0 || limits.MaxPerAddress <= 0 || limits.MaxPerCaller <= 0 || limits.IdentifyTimeout <= 0 ||
		limits.IsTrusted != nil && limits.MaxProxied <= 0 {
		return nil, errors.New("connlimit: a listener, a log and every limit are required")
	}
	return &Listener{Listener: lis, limits: limits, log: log, unauthenticated: list.New(), perAddress: make(map[netip.Prefix]int), perCaller: make(map[string]int)}, nil
}

// Accept implements [net.Listener]. The returned connections have the type *[Conn].
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

// admit counts a connection and returns it. It returns nil if trusted proxies already have MaxProxied connections.
func (l *Listener) admit(inner net.Conn) *Conn {
	addr := addressOf(inner.RemoteAddr())
	c := &Conn{Conn: inner, listener: l, prefix: prefixOf(addr)}
	if l.limits.IsTrusted != nil && l.limits.IsTrusted(addr) {
		if !l.countProxied(c) {
			_ = inner.Close() // the proxy reports the failure to its client
			return nil
		}
		return c
	}
	if least, turned := l.countUnauthenticated(c); least != nil {
		_ = least.Close() // the client receives no message
		if turned > 0 {
			l.log.WarnContext(context.Background(), "unauthenticated connections were closed to make space for others", "count", turned, "newest", addr.String(), "address", l.Addr().String())
		}
	}
	return c
}

// countProxied counts a connection from a trusted proxy. It returns false if there are too many.
func (l *Listener) countProxied(c *Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.proxied >= l.limits.MaxProxied {
		return false
	}
	l.proxied++
	c.proxied = true
	return true
}

// countUnauthenticated counts an unauthenticated connection. It returns the connection that must be closed to make
// room, or nil. It also returns the number of closed connections that the caller must log now, or 0.
func (l *Listener) countUnauthenticated(c *Conn) (least *Conn, turned int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.perAddress[c.prefix] >= l.limits.MaxPerAddress:
		least = l.oldestOf(c.prefix)
	case l.unauthenticated.Len() >= l.limits.MaxUnauthenticated:
		least = l.oldestOf(l.fullestAddress())
	}
	if least != nil {
		l.uncount(least)
		turned = l.countClosed(time.Now())
	}
	c.element = l.unauthenticated.PushBack(c)
	l.perAddress[c.prefix]++
	c.identifyTimer = time.AfterFunc(l.limits.IdentifyTimeout, c.expire)
	return least, turned
}

// countClosed counts a closed connection. It returns the number of closed connections to log now, or 0 if nothing
// should be logged.
func (l *Listener) countClosed(now time.Time) (say int) {
	l.closedCount++
	if now.Sub(l.loggedAt) < logInterval {
		return 0
	}
	say, l.closedCount, l.loggedAt = l.closedCount, 0, now
	return say
}

// oldestOf returns the connection from an address that must be closed first. That is the oldest connection on which the
// client has sent no data. If all clients have sent data, it is the oldest connection. Therefore a client that has
// begun its handshake keeps its connection, regardless of the number of silent connections.
func (l *Listener) oldestOf(from netip.Prefix) (oldest *Conn) {
	for e := l.unauthenticated.Front(); e != nil; e = e.Next() {
		switch c := e.Value.(*Conn); { //nolint:forcetypeassert // the list contains only *Conn
		case c.prefix != from:
		case !c.hasSentData():
			return c
		case oldest == nil:
			oldest = c
		}
	}
	return oldest
}

// fullestAddress returns the address with the most unauthenticated connections. Closing one of these connections
// protects the connections from other addresses.
func (l *Listener) fullestAddress() (from netip.Prefix) {
	most := 0
	for prefix, n := range l.perAddress {
		if n > most {
			from, most = prefix, n
		}
	}
	return from
}

// uncount removes a connection from all counts. It is idempotent.
func (l *Listener) uncount(c *Conn) {
	if c.element != nil {
		l.unauthenticated.Remove(c.element)
		c.element = nil
		c.identifyTimer.Stop()
		if l.perAddress[c.prefix]--; l.perAddress[c.prefix] == 0 {
			delete(l.perAddress, c.prefix)
		}
	}
	if c.proxied {
		l.proxied--
		c.proxied = false
	}
	if c.caller != "" {
		if l.perCaller[c.caller]--; l.perCaller[c.caller] == 0 {
			delete(l.perCaller, c.caller)
		}
		c.caller = ""
	}
}

// ClientOf returns the prefix of the addresses that count as the same client as addr. The prefix is a single IPv4
// address, or an IPv6 network of 64 bits. All addresses that are not TCP addresses count as one client.
func ClientOf(addr net.Addr) netip.Prefix { return prefixOf(addressOf(addr)) }

// addressOf returns the IP address in addr, or the zero value if addr is not a TCP address.
func addressOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// prefixOf returns the prefix of the addresses that count as the same client as addr. The prefix is a single IPv4
// address, or an IPv6 network of 64 bits (RFC 6177).
func prefixOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // the zero address has the zero prefix, which counts as one client
	return prefix
}
