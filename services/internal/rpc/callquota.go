package rpc

import (
	"context"
	"sync"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// personCalls is how many calls one person may have in flight, over all connections.
	personCalls = 512
	// personBytes, peopleBytes and roleBytes bound the total size of large requests and answers in flight, in bytes:
	// for one person, for all people, and both for one role and for all roles. An answer is in flight until the
	// client has read it.
	personBytes, peopleBytes, roleBytes = 32 << 20, 128 << 20, 512 << 20
	// smallAnswer is the maximum size in bytes of an answer that is not counted.
	smallAnswer = 64 << 10
)

// whose identifies the person or role whose quota a call uses.
type whose struct {
	role   authv1.Role
	person principal.Key
}

func whoseOf(c *authn.Caller) whose {
	if c.Person != nil {
		return whose{person: principal.Of(c.Person)}
	}
	return whose{role: c.Role}
}

// String returns the name of the person or role for messages.
func (w whose) String() string {
	if w.role != authv1.Role_ROLE_UNSPECIFIED {
		return "the role " + authn.RoleName(w.role)
	}
	return "the person " + w.person.Tenant + "/" + w.person.Subject
}

// shares are the quotas of callers over the network, for each caller and for all callers. It is safe for concurrent
// use.
type shares struct {
	// calls and bytes are the maximums for one caller. all is the maximum of bytes for all callers.
	calls, bytes, all int
	// turns is the fair queue for unary calls. It is nil if the callers need none.
	turns *fairqueue.Turns[whose]

	mu   sync.Mutex
	by   map[whose]*load
	held int
}

// load is what one caller has in flight.
type load struct {
	calls, bytes int
	// full is true after an answer did not fit because of other answers that the caller has not read.
	full bool
}

func newShares(calls, bytes, all int, turns *fairqueue.Turns[whose]) *shares {
	return &shares{calls: calls, bytes: bytes, all: all, turns: turns, by: make(map[whose]*load)}
}

// portion is one call's part of its caller's quota. It is nil for a call that is not counted.
type portion struct {
	of   *shares
	own  whose
	load *load
	// uses counts the call itself and its unread answers. The call is in flight until the last of these ends.
	// shares.mu guards it.
	uses int
}

// enter counts a call against its caller's quota until [portion.leave].
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
	if l.full {
		return nil, exhausted("%s was sent %d bytes that it has not read: read them, or close those connections", own, l.bytes)
	}
	l.calls++
	return &portion{of: s, own: own, load: l, uses: 1}, nil
}

// turn waits in the fair queue until a unary call may be processed. The caller must call the returned function
// afterwards.
func (p *portion) turn(ctx context.Context) (func(), error) {
	if p == nil || p.of.turns == nil {
		return func() {}, nil
	}
	return p.of.turns.Take(ctx, p.own)
}

// leave ends a call. The quota that its requests used must have been released.
func (p *portion) leave() {
	if p == nil {
		return
	}
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	p.end()
}

// end ends one use of the portion. The last use ends the call.
func (p *portion) end() {
	if p.uses--; p.uses > 0 {
		return
	}
	if p.load.calls--; p.load.calls == 0 {
		delete(p.of.by, p.own)
	}
}

// hold counts the bytes of a request. A negative n releases them.
func (p *portion) hold(n int) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if n > 0 && (p.load.bytes+n > p.of.bytes || p.of.held+n > p.of.all) {
		return exhausted("large requests take too much together: wait until some of them have an answer")
	}
	p.take(n)
	return nil
}

// answer counts an answer of n bytes until the client has read it. The bytes of a small answer are not counted. The
// number of small answers is bounded, because each counts as a call in flight.
func (p *portion) answer(n int) error {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if n > smallAnswer {
		if p.load.bytes+n > p.of.bytes {
			p.load.full = true
			return exhausted("%s can't get an answer of %d bytes in addition to %d that it has not read: read them first", p.own, n, p.load.bytes)
		}
		if p.of.held+n > p.of.all {
			return exhausted("unread answers leave no memory for one of %d bytes: try again", n)
		}
		p.take(n)
	}
	p.uses++
	return nil
}

// read releases an answer of n bytes.
func (p *portion) read(n int) {
	p.of.mu.Lock()
	defer p.of.mu.Unlock()
	if n > smallAnswer {
		p.take(-n)
	}
	p.end()
}

func (p *portion) take(n int) {
	p.load.bytes += n
	p.of.held += n
	if n < 0 {
		p.load.full = false
	}
}
