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
	// personCalls limits how many calls one person has in flight on all connections together.
	personCalls = 512
	// personBytes, peopleBytes and roleBytes limit the total size in bytes of large requests and answers in flight.
	// personBytes applies to one person, and peopleBytes to all people together. roleBytes applies to one service of
	// the mesh, and also to all services together. An answer is in flight until the client has read it.
	personBytes, peopleBytes, roleBytes = 32 << 20, 128 << 20, 512 << 20
	// smallAnswer is the maximum size in bytes of an answer whose size is not counted.
	smallAnswer = 64 << 10
)

// quotaKey identifies the person or the service (mesh role) against whose quota a call counts.
type quotaKey struct {
	role   authv1.Role
	person principal.Key
}

func quotaKeyOf(c *authn.Caller) quotaKey {
	if c.Person != nil {
		return quotaKey{person: principal.Of(c.Person)}
	}
	return quotaKey{role: c.Role}
}

// String returns the name of the person or the service for messages.
func (w quotaKey) String() string {
	if w.role != authv1.Role_ROLE_UNSPECIFIED {
		return "the role " + authn.RoleName(w.role)
	}
	return "the person " + w.person.Tenant + "/" + w.person.Subject
}

// callQuotas contains the quotas of callers that connect over the network. There is a quota for each caller, and one
// for all callers together. It is safe for concurrent use.
type callQuotas struct {
	// calls and bytes are the limits for one caller. allBytes is the limit for the bytes of all callers together.
	calls, bytes, allBytes int
	// queue is the fair queue for unary calls. It is nil if the callers need no queue.
	queue *fairqueue.Queue[quotaKey]

	mu    sync.Mutex
	usage map[quotaKey]*callerUsage
	held  int
}

// callerUsage contains the number of calls that one caller has in flight, and the number of bytes that they use.
type callerUsage struct {
	calls, bytes int
	// unreadFull is true after an answer exceeded the quota because the caller has not read earlier answers.
	unreadFull bool
}

func newCallQuotas(calls, bytes, allBytes int, turns *fairqueue.Queue[quotaKey]) *callQuotas {
	return &callQuotas{calls: calls, bytes: bytes, allBytes: allBytes, queue: turns, usage: make(map[quotaKey]*callerUsage)}
}

// callUsage is the part of a caller's quota that one call uses. It is nil for a call that is not counted.
type callUsage struct {
	quotas *callQuotas
	key    quotaKey
	caller *callerUsage
	// uses is the number of unread answers, plus 1 until the call itself has ended. When uses becomes 0, the call is no
	// longer in flight. callQuotas.mu guards uses.
	uses int
}

// admit counts a call against its caller's quota until [callUsage.finish] is called. It returns an error if the quota
// is used up.
func (s *callQuotas) admit(own quotaKey) (*callUsage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.usage[own]
	if l == nil {
		l = new(callerUsage)
		s.usage[own] = l
	}
	if l.calls >= s.calls {
		return nil, exhaustedError("%s has %d calls in flight, which is the maximum: wait until one of them has ended", own, l.calls)
	}
	if l.unreadFull {
		return nil, exhaustedError("%s was sent %d bytes that it has not read: read them, or close those connections", own, l.bytes)
	}
	l.calls++
	return &callUsage{quotas: s, key: own, caller: l, uses: 1}, nil
}

// waitTurn waits in the fair queue until a unary call may be processed. When the call has been processed, the caller
// must call the returned function.
func (p *callUsage) waitTurn(ctx context.Context) (func(), error) {
	if p == nil || p.quotas.queue == nil {
		return func() {}, nil
	}
	return p.quotas.queue.Acquire(ctx, p.key)
}

type turnKey struct{}

// EndTurn ends the turn of a person's unary call, so that the server can process another call of the same person. A
// handler calls EndTurn before it waits for an event. The call still counts as one of the person's calls in flight.
// EndTurn has no effect on other kinds of calls, or if it has already been called.
func EndTurn(ctx context.Context) {
	if end, ok := ctx.Value(turnKey{}).(func()); ok {
		end()
	}
}

// finish ends a call. The caller must first release the bytes that were charged for the call's requests. See
// [callUsage.chargeRequest].
func (p *callUsage) finish() {
	if p == nil {
		return
	}
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	p.end()
}

// end decrements uses. If uses becomes 0, the call is no longer in flight.
func (p *callUsage) end() {
	if p.uses--; p.uses > 0 {
		return
	}
	if p.caller.calls--; p.caller.calls == 0 {
		delete(p.quotas.usage, p.key)
	}
}

// chargeRequest charges n bytes for a request. If n is negative, it releases these bytes.
func (p *callUsage) chargeRequest(n int) error {
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	if n > 0 && (p.caller.bytes+n > p.quotas.bytes || p.quotas.held+n > p.quotas.allBytes) {
		return exhaustedError("large requests use too much memory together: wait until some of them have an answer")
	}
	p.add(n)
	return nil
}

// chargeAnswer counts an answer of n bytes until the client has read it. The bytes of a small answer are not counted.
// The number of small answers is limited nevertheless, because each of them counts as a call in flight.
func (p *callUsage) chargeAnswer(n int) error {
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	if n > smallAnswer {
		if p.caller.bytes+n > p.quotas.bytes {
			p.caller.unreadFull = true
			return exhaustedError("%s can't get an answer of %d bytes in addition to %d that it has not read: read them first", p.key, n, p.caller.bytes)
		}
		if p.quotas.held+n > p.quotas.allBytes {
			return exhaustedError("unread answers leave no memory for one of %d bytes: try again", n)
		}
		p.add(n)
	}
	p.uses++
	return nil
}

// releaseAnswer releases the quota that an answer of n bytes has used.
func (p *callUsage) releaseAnswer(n int) {
	p.quotas.mu.Lock()
	defer p.quotas.mu.Unlock()
	if n > smallAnswer {
		p.add(-n)
	}
	p.end()
}

func (p *callUsage) add(n int) {
	p.caller.bytes += n
	p.quotas.held += n
	if n < 0 {
		p.caller.unreadFull = false
	}
}
