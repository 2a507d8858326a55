package edge

import (
	"errors"
	"io"
	"net/http"
	"sync"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

const (
	// maxInFlight is how many requests one principal may have in flight. Each holds
	// a connection here and one to a server.
	maxInFlight = 512
	// maxInFlightBytes is how large their bodies may be together, as far as they
	// have come: what a client claims or withholds costs nothing.
	maxInFlightBytes = 64 << 20
)

// errInFlight means that a principal has as much in flight as it may have.
var errInFlight = errors.New("too much is in flight")

// inFlight bounds what each principal has in flight. It is safe for concurrent use.
type inFlight struct {
	mu sync.Mutex
	by map[owner]*load
}

// owner is a principal, whatever token or session it uses.
type owner struct{ tenant, subject string }

// load is what a principal has in flight.
type load struct{ requests, bytes int }

// enter counts a request of a caller, whose place is left when it has ended.
func (f *inFlight) enter(c caller) (*place, error) {
	p := &place{all: f, of: owner{c.principal.GetTenant(), c.principal.GetSubject()}}
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
	of    owner
	load  *load
	bytes int
}

// body returns r, whose bytes count from when they are read.
func (p *place) body(r io.Reader) io.Reader { return &countedBody{p, r} }

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
	if p.load.bytes+n > maxInFlightBytes {
		return false
	}
	p.load.bytes += n
	p.bytes += n
	return true
}

// leave gives a place back.
func (p *place) leave() {
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
