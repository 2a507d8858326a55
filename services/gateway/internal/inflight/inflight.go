// Package inflight bounds what each principal has in flight: how many requests, and the
// memory that they and their answers take.
package inflight

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxRequests is how many requests one principal may have in flight. Each holds
	// a connection here and one to a server.
	maxRequests = 512
	// maxThere is how many of them one server may have: one that hangs leaves the others theirs.
	maxThere = maxRequests / 2
	// maxBehind is how many all principals of one person may have.
	maxBehind = 4 * maxRequests
	// maxBytes is how large their bodies may be together, as far as they
	// have come: what a client claims or withholds costs nothing. All principals of one
	// person have [room.Half], and everybody [room.Size], beside the first 64 KiB of each
	// body.
	maxBytes = room.Share
	// roomTimeout is how long a request waits where an answer of its principal's
	// waits for room.
	roomTimeout = time.Second
)

// ErrFull means that a principal, or a person behind it, has as much in flight as it may
// have. Compare with errors.Is.
var ErrFull = errors.New("too much is in flight")

// ErrThere means that a server has as many requests of a principal as it may have. Compare with
// errors.Is.
var ErrThere = errors.New("too many requests to this server are in flight; wait for some of them")

// Load is what all principals have in flight. Make it with [New]. It is safe for
// concurrent use.
type Load struct {
	bodies, answers *room.Room

	mu sync.Mutex
	by map[principal.Key]*share
}

// New returns an empty load, whose requests and answers take the room of these.
func New(bodies, answers *room.Room) (*Load, error) {
	if bodies == nil || answers == nil {
		return nil, errors.New("inflight: room for bodies and answers is required")
	}
	return &Load{bodies: bodies, answers: answers, by: make(map[principal.Key]*share)}, nil
}

// share is what a principal has in flight.
type share struct {
	requests, bytes int
	// there is how many admitted requests each server has that has some, and first where the first
	// of them lies: most callers use one.
	there []there
	first [1]there
	// behind is how many requests those have that work for it, its own among them.
	behind int
}

// there is how many requests of a principal a server has.
type there struct {
	server   string
	requests int
}

// to returns what a server has, to be changed. It needs the lock, as does from.
func (s *share) to(server string) *there {
	i := slices.IndexFunc(s.there, func(t there) bool { return t.server == server })
	if i < 0 {
		if s.there == nil {
			s.there = s.first[:0]
		}
		s.there, i = append(s.there, there{server: server}), len(s.there)
	}
	return &s.there[i]
}

// from counts a server's request no more.
func (s *share) from(server string) {
	at, last := s.to(server), len(s.there)-1
	if at.requests--; at.requests == 0 {
		*at = s.there[last]
		s.there = s.there[:last]
	}
}

// Enter counts a request of a principal to a server, whose place is left when it has ended.
// Errors: [ErrFull].
func (f *Load) Enter(who *identityv1.Principal, server string) (*Place, error) {
	p := &Place{all: f}
	p.Of = room.Holder{Principal: principal.Of(who), Persons: appendPersons(p.person[:0], who), Server: server}
	p.body, p.Answer = *f.bodies.Open(&p.Of), *f.answers.Open(&p.Of)
	f.mu.Lock()
	defer f.mu.Unlock()
	p.share = f.shareOf(p.Of.Principal)
	full := p.share.requests == maxRequests
	p.share.requests++
	for _, person := range p.Of.Persons {
		behind := f.shareOf(person)
		full = full || behind.behind == maxBehind
		behind.behind++
	}
	if full {
		f.forget(p)
		return nil, ErrFull
	}
	return p, nil
}

// shareOf is what a principal has in flight, to be changed. It needs the lock, as does
// forget.
func (f *Load) shareOf(who principal.Key) *share {
	has := f.by[who]
	if has == nil {
		has = new(share)
		f.by[who] = has
	}
	return has
}

// forget counts a request no more.
func (f *Load) forget(p *Place) {
	p.share.requests--
	if p.admitted {
		p.share.from(p.Of.Server)
	}
	p.share.bytes -= p.bytes
	for _, who := range p.Of.Persons {
		behind := f.by[who]
		if behind.behind--; behind.behind == 0 && behind.requests == 0 {
			delete(f.by, who)
		}
	}
	if p.share.requests == 0 && p.share.behind == 0 {
		delete(f.by, p.Of.Principal)
	}
}

// appendPersons appends for whom a principal works, each once: its owner, or itself where
// nobody is named, and likewise of those who stand behind it.
func appendPersons(dst []principal.Key, p *identityv1.Principal) []principal.Key {
	dst = append(dst, principal.Person(p))
	for _, behind := range p.GetChain() {
		if who := principal.Person(behind); !slices.Contains(dst, who) {
			dst = append(dst, who)
		}
	}
	return dst
}

// Place is what one request has of its principal's share.
type Place struct {
	all *Load
	// Of is whose it is.
	Of room.Holder
	// person is where the holder's persons lie: most have one.
	person [1]principal.Key
	share  *share
	bytes  int
	// admitted says that it counts among those to its server.
	admitted bool
	// Answer is what the answer takes of what there is for all, and body the request.
	Answer, body room.Holding
}

// Reader returns r, whose bytes count from when they are read. Where there is no room for
// them its error is [ErrFull].
func (p *Place) Reader(r io.Reader) io.Reader { return &countedBody{p, r} }

type countedBody struct {
	place *Place
	inner io.Reader
}

// Read implements io.Reader.
func (b *countedBody) Read(to []byte) (int, error) {
	n, err := b.inner.Read(to)
	if !b.place.Hold(n) {
		return 0, ErrFull
	}
	return n, err
}

// Hold counts bytes of the request, and tells whether there was room for them.
func (p *Place) Hold(n int) bool {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.share.bytes+n > maxBytes || !p.body.Add(n) {
		return false
	}
	p.share.bytes += n
	p.bytes += n
	return true
}

// Admit counts a request to its server, and waits a little until no answer to the principal, or to
// others that work for the same person, waits for room. What gives up a request, or answers one of
// a server's, is not to be admitted. Errors: [ErrThere], or those of [room.Room.Admit].
func (p *Place) Admit(ctx context.Context) error {
	if !p.admit() {
		return ErrThere
	}
	return p.all.answers.Admit(ctx, &p.Of, roomTimeout)
}

func (p *Place) admit() bool {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	at := p.share.to(p.Of.Server)
	if p.admitted || at.requests == maxThere {
		return p.admitted
	}
	at.requests++
	p.admitted = true
	return true
}

// Leave gives a place back.
func (p *Place) Leave() {
	p.body.Close()
	p.Answer.Close()
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.all.forget(p)
}
