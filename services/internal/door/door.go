// Package door lets connections in before anybody is known: each address has a
// share of those on which nobody was identified, they have to say soon who they
// are, and where there is no room one of them makes way: the oldest of those that have
// said nothing, or else the oldest of all. Who is known has a share of its own, which
// strangers can't take.
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

// Limits bound the connections of one listener. All are required but Piece and
// Trusted.
type Limits struct {
	// Strangers is how many connections there may be on which nobody was identified,
	// and PerAddress how many of them one address may have.
	Strangers, PerAddress int
	// PerCaller is how many connections one known caller may have.
	PerCaller int
	// Identify is how long a connection may be open before somebody is identified on
	// it.
	Identify time.Duration
	// Piece is how long the other end may take to read a piece of what it is sent;
	// until then nothing more is read from it. Zero leaves both to who serves the
	// connection.
	Piece time.Duration
	// Trusted tells of an address, such as that of a proxy, that its connections are
	// many people's: of them there may be Proxied in all, and no share is anybody's. Nil
	// trusts none.
	Trusted func(netip.Addr) bool
	Proxied int
}

// A Listener lets connections in. It is safe for concurrent use.
type Listener struct {
	net.Listener
	limits Limits
	log    *slog.Logger

	mu sync.Mutex
	// strangers are the connections on which nobody was identified, the oldest first,
	// and at how many of them an address has.
	strangers *list.List
	at        map[netip.Prefix]int
	// known is how many connections each caller has, and proxied how many trusted
	// proxies have.
	known   map[string]int
	proxied int
	// turned is how many had to make way since that was logged, at said.
	turned int
	said   time.Time
}

// sayEvery is how often it is logged that there is no room.
const sayEvery = time.Minute

// Listen bounds the connections of lis. The log is told, at most once a minute, that
// connections had to make way.
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

// admit lets a connection in; nil where a proxy has as many as all may have.
func (l *Listener) admit(inner net.Conn) *Conn {
	addr := addressOf(inner.RemoteAddr())
	c := &Conn{Conn: inner, of: l, from: prefixOf(addr)}
	if l.limits.Trusted != nil && l.limits.Trusted(addr) {
		if !l.forward(c) {
			_ = inner.Close() // the proxy tells its client
			return nil
		}
		return c
	}
	if least, turned := l.enter(c); least != nil {
		_ = least.Close() // who is at its end is told nothing
		if turned > 0 {
			l.log.WarnContext(context.Background(), "connections on which nobody was identified made way for others", "count", turned, "newest", addr.String(), "address", l.Addr().String())
		}
	}
	return c
}

// forward counts a connection of a trusted proxy, and reports whether there is room.
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

// enter counts a stranger, and returns the one that has to make way for it, and of how
// many that is to be logged.
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

// count counts one that had to make way, and returns of how many it is time to say so.
func (l *Listener) count(now time.Time) (say int) {
	l.turned++
	if now.Sub(l.said) < sayEvery {
		return 0
	}
	say, l.turned, l.said = l.turned, 0, now
	return say
}

// least is the connection of an address that can best be spared: the first that was
// opened of those on which nothing was said, or else of all. Who is in its handshake so
// stays beside any number of those who only hold a place.
func (l *Listener) least(from netip.Prefix) (oldest *Conn) {
	for e := l.strangers.Front(); e != nil; e = e.Next() {
		switch c := e.Value.(*Conn); { //nolint:forcetypeassert // the list holds nothing else
		case c.from != from:
		case !c.hasSpoken():
			return c
		case oldest == nil:
			oldest = c
		}
	}
	return oldest
}

// fullest is the address that has the most connections, so that those that have few
// keep them.
func (l *Listener) fullest() (from netip.Prefix) {
	most := 0
	for prefix, n := range l.at {
		if n > most {
			from, most = prefix, n
		}
	}
	return from
}

// leave takes a connection out of the count that it is in; twice is once.
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

// addressOf is the address of the other end; the zero one where it has none.
func addressOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// prefixOf is what one party is given of addresses: one of IPv4, a network of 64
// bits of IPv6 (RFC 6177).
func prefixOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	prefix, _ := addr.Prefix(bits) // of no address it is the zero prefix, which is one party too
	return prefix
}
