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
	// maxRequests is the maximum number of requests in flight that a principal and the agents it has created may have
	// together. All principals of one person together may have four times as many. Each request occupies a connection
	// to the gateway and a connection to a server.
	maxRequests = 512
	// maxPerServer is the maximum number of one principal's requests in flight to one server. Because of this limit, a
	// server that does not respond cannot use up the principal's whole quota.
	maxPerServer = maxRequests / 2
	// maxBytes is the maximum total size of the bodies of a principal's requests in flight, in bytes. Bytes count when
	// they arrive. An announced length does not count. The maximum for all principals of one person together is
	// [PersonBytes], and the maximum for all principals together is [TotalBytes]. Bodies of up to 64 KiB
	// ([UncountedBytes]) do not count against [TotalBytes]. Larger bodies count in full.
	maxBytes = PrincipalBytes
	// memoryTimeout is the maximum time for which a request waits because an answer to the same principal waits for
	// memory.
	memoryTimeout = time.Second
)

// ErrRequests means that one of these quotas is used up: the quota of the caller, of a principal that created the
// caller, or of the person for whom one of them works, or the total memory budget for request bodies. Compare with
// errors.Is. If the error is a [*quota.FullError], it describes the quota.
var ErrRequests = quota.ErrFull

// ErrServer means that a principal and its agents have too many requests in flight to one server. Compare with
// errors.Is.
var ErrServer = errors.New("too many requests to this server are in flight; wait for some of them")

// Requests counts all principals' requests in flight. [NewRequests] creates it. It is safe for concurrent use.
type Requests struct {
	bodies, answers *Budget

	mu sync.Mutex
	// requests counts the requests in flight, perServer counts the admitted requests to each server, and bytes counts
	// the sizes of the bodies.
	requests, perServer, bytes *quota.Tally
}

// NewRequests returns an empty Requests. The parameter bodies is the budget for the memory of request bodies, and the
// parameter answers is the budget for the memory of answers. Both budgets are required.
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

// Begin counts a request from a principal to a server. The caller must call [Slot.End] when the request has ended.
// Begin returns [ErrRequests] if a quota is used up.
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

// A Slot holds the resources of one request that count against the quotas. [Requests.Begin] creates it. It is safe for
// concurrent use, except that End must be called once, after all other methods have returned.
type Slot struct {
	requests *Requests
	// Owner is the owner of the request's memory.
	Owner Owner
	// bytes is the number of bytes of the body that have arrived.
	bytes int
	// admitted is true if the request counts against its server's quota.
	admitted bool
	// Answer is the memory for the answer, and body is the memory for the request's body.
	Answer, body Memory
}

// Reader returns a reader of r that counts each byte when it is read. If a quota is used up, Read returns
// [ErrRequests].
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

// Reserve counts n more bytes of the request, and reports whether the quotas allow them.
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

// Admit counts the request against its server's quota. Then it waits at most a second while an answer for the
// principal, or for another principal of the same person, waits for memory. Admit must not be called for cancellations
// and for responses to servers' requests, because these messages must never wait. It returns [ErrServer] and the errors
// of [Budget.Admit].
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
