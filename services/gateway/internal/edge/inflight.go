package edge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/refusal"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
)

const (
	// maxInFlight is how many requests one principal may have in flight. Each holds
	// a connection here and one to a server.
	maxInFlight = 512
	// maxInFlightBytes is how large their bodies may be together, as far as they
	// have come: what a client claims or withholds costs nothing. All principals
	// together have [room.Size], beside the first 64 KiB of each body.
	maxInFlightBytes = room.Share
	// roomTimeout is how long a request waits where an answer of its principal's
	// waits for room.
	roomTimeout = time.Second
)

// errInFlight means that a principal has as much in flight as it may have.
var errInFlight = errors.New("too much is in flight")

// inFlight bounds what each principal has in flight. It is safe for concurrent use.
type inFlight struct {
	bodies, answers *room.Room

	mu sync.Mutex
	by map[room.Owner]*load
}

func newInFlight(bodies, answers *room.Room) inFlight {
	return inFlight{bodies: bodies, answers: answers, by: make(map[room.Owner]*load)}
}

// load is what a principal has in flight.
type load struct{ requests, bytes int }

// enter counts a request of a caller, whose place is left when it has ended.
func (f *inFlight) enter(c caller) (*place, error) {
	p := &place{all: f, of: room.Owner{Tenant: c.principal.GetTenant(), Subject: c.principal.GetSubject()}}
	p.body, p.answer = *f.bodies.Open(p.of), *f.answers.Open(p.of)
	f.mu.Lock()
	defer f.mu.Unlock()
	p.load = f.by[p.of]
	if p.load == nil {
		p.load = new(load)
		f.by[p.of] = p.load
	}
	if p.load.requests == maxInFlight {
		return nil, errInFlight
	}
	p.load.requests++
	return p, nil
}

// place is what one request has of its principal's load.
type place struct {
	all   *inFlight
	of    room.Owner
	load  *load
	bytes int
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

// admit waits a little until no answer of the principal's waits for room.
func (p *place) admit(ctx context.Context) *refusal.Refusal {
	if p.all.answers.Admit(ctx, p.of, roomTimeout) == nil {
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
	p.load.requests--
	p.load.bytes -= p.bytes
	if p.load.requests == 0 {
		delete(p.all.by, p.of)
	}
}

// tooMuchInFlight refuses what a principal has no room for.
func tooMuchInFlight() *rejection {
	return &rejection{
		status: http.StatusTooManyRequests, code: commonv1.Code_CODE_ABUSE_LIMITED, rpc: mcp.CodeInvalidRequest,
		message: "this caller has too many or too large requests in flight; wait for some of them.",
	}
}
