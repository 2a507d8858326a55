package edge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

const (
	// maxInFlight is how many requests one principal may have in flight. Each holds
	// a connection here and one to a server.
	maxInFlight = 512
	// maxBehind is how many all principals of one person may have.
	maxBehind = 4 * maxInFlight
	// maxInFlightBytes is how large their bodies may be together, as far as they
	// have come: what a client claims or withholds costs nothing. All principals of one
	// person have [room.Half], and everybody [room.Size], beside the first 64 KiB of each
	// body.
	maxInFlightBytes = room.Share
	// roomTimeout is how long a request waits where an answer of its principal's
	// waits for room.
	roomTimeout = time.Second
)

// errInFlight means that a principal, or a person behind it, has as much in flight as it
// may have.
var errInFlight = errors.New("too much is in flight")

// inFlight bounds what each principal has in flight. It is safe for concurrent use.
type inFlight struct {
	bodies, answers *room.Room

	mu sync.Mutex
	by map[principal.Key]*load
}

func newInFlight(bodies, answers *room.Room) inFlight {
	return inFlight{bodies: bodies, answers: answers, by: make(map[principal.Key]*load)}
}

// load is what a principal has in flight.
type load struct {
	requests, bytes int
	// behind is how many requests those have that work for it, its own among them.
	behind int
}

// enter counts a request of a caller to a server, whose place is left when it has ended.
func (f *inFlight) enter(c caller, server string) (*place, error) {
	p := &place{all: f}
	p.of = room.Holder{
		Principal: principal.Of(c.principal),
		Persons:   appendPersons(p.person[:0], c.principal), Server: server,
	}
	p.body, p.answer = *f.bodies.Open(&p.of), *f.answers.Open(&p.of)
	f.mu.Lock()
	defer f.mu.Unlock()
	p.load = f.loadOf(p.of.Principal)
	full := p.load.requests == maxInFlight
	p.load.requests++
	for _, who := range p.of.Persons {
		behind := f.loadOf(who)
		full = full || behind.behind == maxBehind
		behind.behind++
	}
	if full {
		f.forget(p)
		return nil, errInFlight
	}
	return p, nil
}

// loadOf is what a principal has in flight, to be changed. It needs the lock, as does
// forget.
func (f *inFlight) loadOf(who principal.Key) *load {
	has := f.by[who]
	if has == nil {
		has = new(load)
		f.by[who] = has
	}
	return has
}

// forget counts a request no more.
func (f *inFlight) forget(p *place) {
	p.load.requests--
	p.load.bytes -= p.bytes
	for _, who := range p.of.Persons {
		behind := f.by[who]
		if behind.behind--; behind.behind == 0 && behind.requests == 0 {
			delete(f.by, who)
		}
	}
	if p.load.requests == 0 && p.load.behind == 0 {
		delete(f.by, p.of.Principal)
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

// place is what one request has of its principal's load.
type place struct {
	all *inFlight
	of  room.Holder
	// person is where the holder's persons lie: most have one.
	person [1]principal.Key
	load   *load
	bytes  int
	// body and answer are what they take of what there is for all.
	body, answer room.Holding
}

// reader returns r, whose bytes count from when they are read.
func (p *place) reader(r io.Reader) io.Reader { return &countedBody{p, r} }

type countedBody struct {
	place *place
	inner io.Reader
}

// Read implements io.Reader.
func (b *countedBody) Read(to []byte) (int, error) {
	n, err := b.inner.Read(to)
	if !b.place.hold(n) {
		return 0, errInFlight
	}
	return n, err
}

// hold counts bytes, and tells whether there was room for them.
func (p *place) hold(n int) bool {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.load.bytes+n > maxInFlightBytes || !p.body.Add(n) {
		return false
	}
	p.load.bytes += n
	p.bytes += n
	return true
}

// admit waits a little until no answer to the principal, or to others that work for the
// same person, waits for room.
func (p *place) admit(ctx context.Context) *refusal.Refusal {
	if p.all.answers.Admit(ctx, &p.of, roomTimeout) == nil {
		return nil
	}
	return &refusal.Refusal{
		Code:    commonv1.Code_CODE_ABUSE_LIMITED,
		Message: "answers to this caller wait for others to be read; read them first, or make fewer such calls at once.",
	}
}

// leave gives a place back.
func (p *place) leave() {
	p.body.Close()
	p.answer.Close()
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.all.forget(p)
}

// tooMuchInFlight refuses what a principal has no room for.
func tooMuchInFlight() *rejection {
	return &rejection{
		status: http.StatusTooManyRequests, code: commonv1.Code_CODE_ABUSE_LIMITED, rpc: mcp.CodeInvalidRequest,
		message: "this caller has too many or too large requests in flight; wait for some of them.",
	}
}
