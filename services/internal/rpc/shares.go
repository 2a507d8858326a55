package rpc

import (
	"context"
	"sync"

	"github.com/sluice-mesh/sluice/services/internal/authn"
)

const (
	// personCalls is how many calls one person may have in flight, over all of its
	// connections.
	personCalls = 512
	// personBytes, peopleBytes and roleBytes are how large the requests may be, beyond
	// what any may have, that one person, all people and one role have in flight.
	personBytes, peopleBytes, roleBytes = 32 << 20, 128 << 20, 512 << 20
)

// callerName is under what a caller's share is kept.
func callerName(c *authn.Caller) string {
	if c.Person != nil {
		return "the person " + c.Person.GetTenant() + "/" + c.Person.GetSubject()
	}
	return "the role " + authn.RoleName(c.Role)
}

// shares bound what callers over the network have in flight: each, and all of them.
// They are safe for concurrent use.
type shares struct {
	// calls and bytes are what one caller may have, all what all may have of bytes.
	calls, bytes, all int

	mu   sync.Mutex
	by   map[string]*load
	held int
}

// load is what one caller has in flight.
type load struct{ calls, bytes int }

func newShares(calls, bytes, all int) *shares {
	return &shares{calls: calls, bytes: bytes, all: all, by: make(map[string]*load)}
}

// portion is what one call has of its caller's share.
type portion struct {
	of     *shares
	caller string
	load   *load
}

// enter makes room for a call of a caller, until leave.
func (s *shares) enter(caller string) (*portion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.by[caller]
	if l == nil {
		l = new(load)
		s.by[caller] = l
	}
	if l.calls >= s.calls {
		return nil, exhausted("%s has %d calls in flight, as many as it may have", caller, l.calls)
	}
	l.calls++
	return &portion{of: s, caller: caller, load: l}, nil
}

// leave gives a call's room back; its bytes were given back before.
func (p *portion) leave() {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.load.calls--; p.load.calls == 0 {
		delete(p.of.by, p.caller)
	}
}

// hold makes room for the bytes of a request, until they are held no more: -n.
func (p *portion) hold(n int) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if n > 0 && (p.load.bytes+n > p.of.bytes || p.of.held+n > p.of.all) {
		return exhausted("large requests take too much together: wait until some of them have an answer")
	}
	p.load.bytes += n
	p.of.held += n
	return nil
}

type portionKey struct{}

func withPortion(ctx context.Context, p *portion) context.Context {
	return context.WithValue(ctx, portionKey{}, p)
}

// portionOf returns the portion of a call that came over the network; nil for one of
// nobody known, and for one inside the process.
func portionOf(ctx context.Context) *portion {
	p, _ := ctx.Value(portionKey{}).(*portion)
	return p
}
