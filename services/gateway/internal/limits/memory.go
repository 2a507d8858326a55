// Package limits limits the resources that callers' requests in flight use. It limits the number of requests, and the
// memory for requests and for answers that have not been read yet. Each principal, each person on whose behalf
// principals act, and each server has a quota. In addition, there is a total budget. The package also limits how many
// processors parse large messages at the same time.
package limits

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// PrincipalBytes is the quota of one principal, in bytes. PersonBytes is the quota for all principals of one person
// together. It is also the quota for incomplete answers from one server. TotalBytes is the budget for all principals
// together.
const (
	PrincipalBytes = 64 << 20
	TotalBytes     = 4 * PrincipalBytes
	PersonBytes    = TotalBytes / 2
)

// UncountedBytes is the maximum size, in bytes, of a [Memory] that is not charged to the budget. Small answers therefore
// never wait for large ones. The number of small answers is limited by the quota for requests in flight.
const UncountedBytes = 64 << 10

// ReserveBytes is how many bytes in each quota are reserved for the answer that began to arrive first. It is also the
// maximum size of an answer.
const ReserveBytes = 17 << 20

// ErrMemory means that there was not enough memory for an answer.
var ErrMemory = errors.New("no memory is left for the answer")

// Quotas contains limits, in bytes. All fields except Last must be positive.
type Quotas struct {
	// Principal is the quota of each principal together with the agents that it has created. Person is the quota for all
	// principals of one person together. Server is the quota for incomplete answers from each server. All is the total
	// budget.
	Principal, Person, Server, All int
	// Last is how many bytes in each quota are reserved for the [Memory] that began to grow first. No answer may be larger
	// than Last, so that the first answer can always be completed, and then the next one. Last is 0 if messages do not
	// wait for memory in this budget.
	Last int
}

// AnswerQuotas returns the quotas for answers.
func AnswerQuotas() Quotas {
	return Quotas{Principal: PrincipalBytes, Person: PersonBytes, Server: PersonBytes, All: TotalBytes, Last: ReserveBytes}
}

// BodyQuotas returns the quotas for request bodies, which never wait for memory.
func BodyQuotas() Quotas {
	return Quotas{Principal: PrincipalBytes, Person: PersonBytes, Server: TotalBytes, All: TotalBytes}
}

// Budget is a memory budget for all requests or for all answers. Each request or answer has a [Memory]. [NewBudget]
// creates a Budget. It is safe for concurrent use.
type Budget struct {
	limits  Quotas
	reading *fairqueue.Queue[accountKey]

	mu       sync.Mutex
	accounts map[accountKey]*account
	queue    []*waiter // sorted by when the memories began to grow
	begun    uint64
}

// NewBudget returns a budget with these quotas. It returns an error if a quota is not positive or exceeds All, or if
// Last is negative or exceeds one of the quotas.
func NewBudget(l Quotas) (*Budget, error) {
	if least := min(l.Principal, l.Person, l.Server, l.All); least <= 0 || l.Last < 0 || least < l.Last || l.All < max(l.Principal, l.Person, l.Server) {
		return nil, errors.New("limits: quotas must be positive and at most All, and Last at most each of them")
	}
	return &Budget{limits: l, reading: fairqueue.NewForProcessor[accountKey](), accounts: make(map[accountKey]*account)}, nil
}

// waiter is a [Memory] that waits until it may grow. If bytes is zero, the waiter waits only until the accounts of its
// principal and person have no earlier waiters.
type waiter struct {
	memory  *Memory
	bytes   int
	granted chan struct{}
	// closed is true if the Memory was closed before it was allowed to grow.
	closed bool
	// accounts are the Memory's accounts at the time when the waiter began to wait.
	accounts []*account
}

// countWaiter increments the number of waiters in each account of the waiter's [Memory]. uncountWaiter reverses this.
func (w *waiter) countWaiter() {
	w.accounts = slices.Clone(w.memory.accounts)
	for _, a := range w.accounts {
		a.waiting++
	}
}

func (w *waiter) uncountWaiter() {
	for _, a := range w.accounts {
		a.waiting--
	}
}

// result returns the error for the goroutine that waits, or nil if the Memory may grow.
func (w *waiter) result() error {
	if w.closed {
		return ErrMemory
	}
	return nil
}

// Open returns an empty [Memory] for an owner. The caller must later call [Memory.Close].
func (r *Budget) Open(owner *Owner) *Memory { return &Memory{budget: r, owner: owner} }

// A Memory is the part of a [Budget] that one request or answer uses. [Budget.Open] creates a Memory. A nil Memory is
// always empty. The methods are safe for concurrent use.
type Memory struct {
	budget *Budget
	owner  *Owner

	// The budget's lock guards the fields below. A closed Memory cannot grow, because nothing would ever release the
	// new bytes.
	closed bool
	bytes  int
	// since is a sequence number that is set when the Memory begins to grow. The Memory that began to grow first has
	// the lowest number. The number is 0 if the Memory is not growing.
	since uint64
	// accounts are the accounts that are charged for the bytes. While the Memory grows, the account of its server is the
	// last element.
	accounts []*account
}

// AccountsOf returns a caller's accounts. If the Memory belongs to a different principal, for example because the
// caller is the gateway itself, AccountsOf returns only the caller's own account.
func (h *Memory) AccountsOf(caller principal.Key) principal.Accounts {
	if h == nil || h.owner.Accounts.Caller() != caller {
		return principal.AccountsOfKey(caller)
	}
	return h.owner.Accounts
}

// Sibling returns a new, empty Memory for the same owner.
func (h *Memory) Sibling() *Memory {
	if h == nil {
		return nil
	}
	return h.budget.Open(h.owner)
}

// Timeslice waits until the owner may use a processor. Callers need such a time slice for work that keeps a processor
// busy. The returned function ends the time slice. A goroutine must not hold two time slices. Timeslice returns
// [ErrMemory] if the Memory is nil, and otherwise the errors of [fairqueue.Queue.Acquire], for example if ctx is done.
func (h *Memory) Timeslice(ctx context.Context) (func(), error) {
	if h == nil {
		return nil, ErrMemory
	}
	return h.budget.reading.Acquire(ctx, h.owner.reader())
}

// TimesliceFor does the same as [Memory.Timeslice] before a message of the given size in bytes is parsed. If the
// message has at most [UncountedBytes], TimesliceFor returns immediately, because the message needs no time slice.
func (h *Memory) TimesliceFor(ctx context.Context, bytes int) (func(), error) {
	if chargedBytes(bytes) == 0 {
		return func() {}, nil
	}
	return h.Timeslice(ctx)
}

// chargedBytes returns how many bytes are charged for a Memory of the given size. Up to [UncountedBytes], nothing is
// charged. A larger Memory is charged in full.
func chargedBytes(bytes int) int {
	if bytes <= UncountedBytes {
		return 0
	}
	return bytes
}

// Grow waits until the Memory may grow to the given size in bytes. It returns [ErrMemory] if ctx is done first. It
// returns [ErrMemory] immediately if the Memory is closed or the size exceeds a quota. Repeated calls with increasing
// sizes don't deadlock, because the Memory that began to grow first can always be completed.
func (h *Memory) Grow(ctx context.Context, bytes int) error {
	if chargedBytes(bytes) == 0 {
		return nil
	}
	if h == nil || bytes > h.budget.limits.maxMemory() {
		return ErrMemory
	}
	return h.budget.wait(ctx, &waiter{memory: h, bytes: bytes, granted: make(chan struct{})})
}

func (l *Quotas) maxMemory() int {
	least := min(l.Principal, l.Person, l.Server)
	if l.Last > 0 {
		return min(least, l.Last)
	}
	return least
}

// Add enlarges the Memory by the given number of bytes if this is possible without waiting. It reports whether it has
// enlarged the Memory.
func (h *Memory) Add(bytes int) bool {
	if h == nil {
		return false
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	return h.budget.add(h, bytes, nil)
}

// Settle reduces the Memory to the given size in bytes, and marks it as complete.
func (h *Memory) Settle(bytes int) {
	if h == nil {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.settle(h, min(bytes, h.bytes))
}

// Drop reduces the Memory by the given number of bytes.
func (h *Memory) Drop(bytes int) {
	if h == nil {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.budget.settle(h, max(0, h.bytes-bytes))
}

// Close releases all bytes. After Close, the Memory cannot grow, even if another goroutine is still receiving the
// message.
func (h *Memory) Close() {
	if h == nil {
		return
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	h.closed = true
	h.budget.settle(h, 0)
}

// Transfer moves all bytes to another Memory. The other Memory can have accounts that h does not have. If one of these
// accounts has too little space, Transfer releases the bytes and returns false.
func (h *Memory) Transfer(to *Memory) bool {
	if h == nil {
		return true
	}
	h.budget.mu.Lock()
	defer h.budget.mu.Unlock()
	defer h.budget.grantWaiters()
	bytes, accounts := h.bytes, h.accounts
	h.budget.endGrowth(h)
	h.budget.set(h, 0)
	if to == nil || to.closed {
		return chargedBytes(bytes) == 0
	}
	return h.budget.add(to, bytes, accounts)
}

// Admit waits until no answer to the owner's principals or person is waiting for memory. It returns [ErrMemory] if ctx
// is done or the timeout expires first. The caller must call Admit before it executes a request that has a response.
// Otherwise the request could be executed without memory for its response.
func (r *Budget) Admit(ctx context.Context, owner *Owner, timeout time.Duration) error {
	r.mu.Lock()
	waited := slices.ContainsFunc(owner.keys(), func(k accountKey) bool { a := r.accounts[k]; return a != nil && a.waiting > 0 })
	r.mu.Unlock()
	if !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	requester := &Owner{Accounts: owner.Accounts} // without the server, because no server sends an answer yet
	return r.wait(ctx, &waiter{memory: r.Open(requester), granted: make(chan struct{})})
}

func (r *Budget) wait(ctx context.Context, w *waiter) error {
	r.mu.Lock()
	if w.memory.closed {
		r.mu.Unlock()
		return ErrMemory
	}
	r.startGrowth(w.memory)
	at, _ := slices.BinarySearchFunc(r.queue, w, func(a, b *waiter) int { return byAge(a.memory, b.memory) })
	r.queue = slices.Insert(r.queue, at, w)
	w.countWaiter()
	r.grantWaiters()
	r.mu.Unlock()
	select {
	case <-w.granted:
		return w.result()
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-w.granted: // memory was granted at the same time
		return w.result()
	default:
	}
	r.queue = slices.DeleteFunc(r.queue, func(other *waiter) bool { return other == w })
	w.uncountWaiter()
	r.settle(w.memory, w.memory.bytes)
	return ErrMemory
}

// grantWaiters grants memory to each waiter whose accounts have enough space. Waiters that began to grow earlier take
// precedence. If a waiter lacks space in an account, no later waiter gets memory from that account. The caller must
// hold the lock.
func (r *Budget) grantWaiters() {
	if len(r.queue) == 0 {
		return
	}
	lacking := make(map[*account]bool)
	r.queue = slices.DeleteFunc(r.queue, func(w *waiter) bool {
		if w.memory.closed {
			w.uncountWaiter()
			w.closed = true
			close(w.granted)
			return true
		}
		if !r.canGrant(w, lacking) {
			return false
		}
		w.uncountWaiter()
		if w.bytes == 0 {
			r.endGrowth(w.memory)
		}
		r.set(w.memory, w.bytes)
		close(w.granted)
		return true
	})
}

// canGrant reports whether memory can be granted to a waiter. It adds to lacking the accounts that have too little
// space for the waiter. The caller must hold the lock.
func (r *Budget) canGrant(w *waiter, lacking map[*account]bool) bool {
	more := chargedBytes(w.bytes) - chargedBytes(w.memory.bytes)
	ok := true
	for _, a := range w.memory.accounts {
		switch {
		case w.bytes == 0:
			ok = ok && (!lacking[a] || !a.isPrincipalOrPerson())
		case more > 0 && (lacking[a] || a.bytes+more > a.available(w.memory, r.limits.Last)):
			ok, lacking[a] = false, true
		}
	}
	return ok
}
