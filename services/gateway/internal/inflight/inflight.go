// Package inflight bounds what each principal has in flight: how many requests, and the
// memory that they and their answers take.
package inflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// maxRequests is how many requests one principal and the agents made by it may have in flight; all
	// principals of one person have four times as many. Each holds a connection here and one to a server.
	maxRequests = 512
	// maxThere is how many of them one server may have: one that hangs leaves the others theirs.
	maxThere = maxRequests / 2
	// maxBytes is how large their bodies may be together, as far as they
	// have come: what a client claims or withholds costs nothing. All principals of one
	// person have [room.Half], and everybody [room.Size], beside the first 64 KiB of each
	// body.
	maxBytes = room.Share
	// roomTimeout is how long a request waits where an answer of its principal's
	// waits for room.
	roomTimeout = time.Second
)

// ErrFull means that a principal of the caller's chain, or a person behind it, has as much in flight as it may
// have. Compare with errors.Is; a [*quota.FullError] says whose share it is.
var ErrFull = quota.ErrFull

// ErrThere means that a server has as many requests of a principal and its agents as it may have. Compare
// with errors.Is.
var ErrThere = errors.New("too many requests to this server are in flight; wait for some of them")

// Load is what all principals have in flight. Make it with [New]. It is safe for
// concurrent use.
type Load struct {
	bodies, answers *room.Room

	mu sync.Mutex
	// requests are those in flight, there those that were admitted to each server, and bytes how large the
	// bodies are.
	requests, there, bytes *quota.Tally
}

// New returns an empty load, whose requests and answers take the room of these.
func New(bodies, answers *room.Room) (*Load, error) {
	if bodies == nil || answers == nil {
		return nil, errors.New("inflight: room for bodies and answers is required")
	}
	return &Load{
		bodies: bodies, answers: answers,
		requests: quota.NewTally("requests in flight", quota.For(maxRequests)),
		there:    quota.NewTally("requests in flight to this server", quota.For(maxThere)),
		bytes:    quota.NewTally("bytes of requests in flight", quota.Limits{Principal: maxBytes, Person: room.Half}),
	}, nil
}

// Enter counts a request of a principal to a server, whose place is left when it has ended.
// Errors: [ErrFull].
func (f *Load) Enter(who *identityv1.Principal, server string) (*Place, error) {
	p := &Place{all: f, Of: room.Holder{Accounts: principal.AccountsOf(who), Server: server}}
	p.body, p.Answer = *f.bodies.Open(&p.Of), *f.answers.Open(&p.Of)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.requests.Take(&p.Of.Accounts, 1); err != nil {
		return nil, err
	}
	return p, nil
}

// Place is what one request has of its principal's share.
type Place struct {
	all *Load
	// Of is whose it is.
	Of room.Holder
	// bytes is how large its body is, as far as it has come.
	bytes int
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

// Hold counts bytes of the request, and reports whether there was room for them.
func (p *Place) Hold(n int) bool {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.all.bytes.Take(&p.Of.Accounts, n) != nil {
		return false
	}
	if !p.body.Add(n) {
		p.all.bytes.Give(&p.Of.Accounts, n)
		return false
	}
	p.bytes += n
	return true
}

// Admit counts a request to its server, and waits a little until no answer to the principal, or to
// others that work for the same person, waits for room. What gives up a request, or answers one of
// a server's, is not to be admitted. Errors: [ErrThere], or those of [room.Room.Admit].
func (p *Place) Admit(ctx context.Context) error {
	if err := p.admit(); err != nil {
		return fmt.Errorf("%w: %w", ErrThere, err)
	}
	return p.all.answers.Admit(ctx, &p.Of, roomTimeout)
}

func (p *Place) admit() error {
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	if p.admitted {
		return nil
	}
	err := p.all.there.TakeIn(p.Of.Server, &p.Of.Accounts, 1)
	p.admitted = err == nil
	return err
}

// Leave gives a place back.
func (p *Place) Leave() {
	p.body.Close()
	p.Answer.Close()
	p.all.mu.Lock()
	defer p.all.mu.Unlock()
	p.all.requests.Give(&p.Of.Accounts, 1)
	p.all.bytes.Give(&p.Of.Accounts, p.bytes)
	if p.admitted {
		p.all.there.GiveIn(p.Of.Server, &p.Of.Accounts, 1)
	}
}
