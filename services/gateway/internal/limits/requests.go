package limits

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// maxRequests limits how many requests a principal and the agents that it has created may have in flight together.
	// All principals of one person together may have four times as many. The limit is necessary because each request
	// occupies a connection to the gateway and a connection to a server.
	maxRequests = 512
	// maxPerServer limits how many requests one principal may have in flight to one server. Because of this limit, a
	// server that does not respond cannot use up the principal's whole quota.
	maxPerServer = maxRequests / 2
	// maxBytes limits the total size of the bodies of a principal's requests in flight, in bytes. Bytes count when they
	// arrive, even if their number was announced before. For all principals of one person together the limit is
	// [PersonBytes], and for all principals together it is [TotalBytes]. Bodies of up to 64 KiB ([UncountedBytes]) do
	// not count toward [TotalBytes]. Larger bodies count in full.
	maxBytes = PrincipalBytes
	// memoryTimeout limits how long a request waits while an answer to the same principal waits for memory.
	memoryTimeout = time.Second
)

// ErrRequests means that a quota is used up. This can be the quota of the caller, of a principal that created the
// caller, or of the person for whom one of them works, or the total memory budget for request bodies. Compare it with
// errors.Is. If the error is a [*quota.FullError], it describes the quota.
var ErrRequests = quota.ErrFull

// ErrServer means that a principal and the agents that it has created have too many requests in flight to one server.
// Compare it with errors.Is.
var ErrServer = errors.New("too many requests to this server are in flight; wait for some of them")

// Requests counts the requests in flight of all principals. [NewRequests] creates it. It is safe for concurrent use.
type Requests struct {
	bodies, answers *Budget

	mu sync.Mutex
	// requests counts the requests in flight, perServer counts the admitted requests to each server, and bytes counts
	// the sizes of the bodies.
	requests, perServer, bytes *quota.Tally
}

// NewRequests returns a Requests without requests. It needs a budget for the memory of request bodies, and a budget for
// the memory of answers.
func NewRequests(bodies, answers *Budget) (*Requests, error) {
	if bodies == nil || answers == nil {
		return nil, errors.New("limits: memory budgets for bodies and answers are required")
	}
	return &Requests{
		bodies: bodies, answers: answers,
		requests:  quota.NewTally("requests in flight", quota.For(maxRequests)),
		perServer: quota.NewTally("requests in flight to this server", quota.For(maxPerServer)),
		bytes:     quota.NewTally("bytes of requests in flight", quota.Limits{Principal: maxBytes, Person: PersonBytes}),
	}, nil
}

// Begin counts a principal's request to a server. The caller must call [Slot.End] when the request has ended. Begin
// returns [ErrRequests] if a quota is used up.
func (f *Requests) Begin(caller *identityv1.Principal, server string) (*Slot, error) {
	slot := &Slot{requests: f, Owner: Owner{Accounts: principal.AccountsOf(caller), Server: server}}
	slot.body, slot.Answer = *f.bodies.Open(&slot.Owner), *f.answers.Open(&slot.Owner)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.requests.Acquire(&slot.Owner.Accounts, 1); err != nil {
		return nil, err
	}
	return slot, nil
}

// A Slot holds the resources of one request that are charged to quotas. [Requests.Begin] creates a Slot. It is safe for
// concurrent use, except that End must be called once, after all other methods have returned.
type Slot struct {
	requests *Requests
	// Owner is the owner of the request's memory.
	Owner Owner
	// bytes is how many bytes of the body have arrived.
	bytes int
	// admitted is true if the request is counted in its server's quota.
	admitted bool
	// Answer is the memory for the answer, and body is the memory for the request's body.
	Answer, body Memory
}

// Reader returns a reader that reads from r and counts the bytes. If a quota is used up, Read returns [ErrRequests].
func (p *Slot) Reader(r io.Reader) io.Reader { return &countedBody{p, r} }

type countedBody struct {
	slot  *Slot
	inner io.Reader
}

// Read implements io.Reader.
func (b *countedBody) Read(to []byte) (int, error) {
	n, err := b.inner.Read(to)
	if !b.slot.Reserve(n) {
		return 0, ErrRequests
	}
	return n, err
}

// Reserve counts n more bytes of the request. It returns false, and counts nothing, if a quota does not allow them.
func (p *Slot) Reserve(n int) bool {
	p.requests.mu.Lock()
	defer p.requests.mu.Unlock()
	if p.requests.bytes.Acquire(&p.Owner.Accounts, n) != nil {
		return false
	}
	if !p.body.Add(n) {
		p.requests.bytes.Release(&p.Owner.Accounts, n)
		return false
	}
	p.bytes += n
	return true
}

// Admit counts the request in its server's quota. Then, if an answer for the principal or for another principal of the
// same person waits for memory, Admit waits for at most a second. Callers must not call Admit for cancellations and for
// responses to servers' requests, because these messages must never wait. Admit returns [ErrServer] and the errors of
// [Budget.Admit].
func (p *Slot) Admit(ctx context.Context) error {
	if err := p.admit(); err != nil {
		return fmt.Errorf("%w: %w", ErrServer, err)
	}
	return p.requests.answers.Admit(ctx, &p.Owner, memoryTimeout)
}

func (p *Slot) admit() error {
	p.requests.mu.Lock()
	defer p.requests.mu.Unlock()
	if p.admitted {
		return nil
	}
	err := p.requests.perServer.AcquireIn(p.Owner.Server, &p.Owner.Accounts, 1)
	p.admitted = err == nil
	return err
}

// End releases the quotas and the memory that the request uses.
func (p *Slot) End() {
	p.body.Close()
	p.Answer.Close()
	p.requests.mu.Lock()
	defer p.requests.mu.Unlock()
	p.requests.requests.Release(&p.Owner.Accounts, 1)
	p.requests.bytes.Release(&p.Owner.Accounts, p.bytes)
	if p.admitted {
		p.requests.perServer.ReleaseIn(p.Owner.Server, &p.Owner.Accounts, 1)
	}
}
