package rpc

import (
	"sync"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
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

// whose is whose share a call has of: a person's, or a role's.
type whose struct {
	role            authv1.Role
	tenant, subject string
}

func whoseOf(c *authn.Caller) whose {
	if c.Person != nil {
		return whose{tenant: c.Person.GetTenant(), subject: c.Person.GetSubject()}
	}
	return whose{role: c.Role}
}

// String is how a message names it.
func (w whose) String() string {
	if w.role != authv1.Role_ROLE_UNSPECIFIED {
		return "the role " + authn.RoleName(w.role)
	}
	return "the person " + w.tenant + "/" + w.subject
}

// shares bound what callers over the network have in flight: each, and all of them.
// They are safe for concurrent use.
type shares struct {
	// calls and bytes are what one caller may have, all what all may have of bytes.
	calls, bytes, all int

	mu   sync.Mutex
	by   map[whose]*load
	held int
}

// load is what one caller has in flight.
type load struct{ calls, bytes int }

func newShares(calls, bytes, all int) *shares {
	return &shares{calls: calls, bytes: bytes, all: all, by: make(map[whose]*load)}
}

// portion is what one call has of its caller's share; nil for a call that needs none.
type portion struct {
	of   *shares
	own  whose
	load *load
}

// enter makes room for a call of a caller, until leave.
func (s *shares) enter(own whose) (*portion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.by[own]
	if l == nil {
		l = new(load)
		s.by[own] = l
	}
	if l.calls >= s.calls {
		return nil, exhausted("%s has %d calls in flight, as many as it may have", own, l.calls)
	}
	l.calls++
	return &portion{of: s, own: own, load: l}, nil
}

// leave gives a call's room back; its bytes were given back before.
func (p *portion) leave() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if p.load.calls--; p.load.calls == 0 {
		delete(p.of.by, p.own)
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
