// Package room limits the memory that clients' requests and servers' answers take until they are read: a quota for each
// principal, for each person behind principals and for each server, and one budget for all. It also limits how many
// processors are used at once to read large messages.
package room

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/fairqueue"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// Share is the quota of one principal, and Size the budget of all, in bytes. Half is the quota of all principals of one
// person, and of one server for answers that are not complete.
const (
	Share = 64 << 20
	Size  = 4 * Share
	Half  = Size / 2
)

// Free is the size up to which a [Holding] does not count, in bytes, so that a small answer never waits for a large
// one. The number of such holdings is limited by the requests in flight.
const Free = 64 << 10

// Last is the part of each quota that is reserved for the answer that began first, in bytes. No answer is larger.
const Last = 17 << 20

// ErrFull means that there was not enough memory for an answer.
var ErrFull = errors.New("no memory is left for the answer")

// Limits are budgets in bytes. All of them except Last must be positive.
type Limits struct {
	// Principal is the quota of each principal with the agents made by it, Person that of all principals of one person,
	// Server that of the incomplete answers of each server, and All the budget of all holdings.
	Principal, Person, Server, All int
	// Last is the part of each quota that is reserved for the holding that began to grow first. It is as large as the
	// largest holding, so that this holding becomes complete, and after it every other in turn. It is 0 if holdings
	// never wait.
	Last int
}

// Answers returns the limits for answers.
func Answers() Limits {
	return Limits{Principal: Share, Person: Half, Server: Half, All: Size, Last: Last}
}

// Bodies returns the limits for requests. They never wait, and no server sends them.
func Bodies() Limits { return Limits{Principal: Share, Person: Half, Server: Size, All: Size} }

// Room is a memory budget that holdings share. It is safe for concurrent use.
type Room struct {
	limits  Limits
	reading *fairqueue.Queue[key]

	mu       sync.Mutex
	accounts map[key]*account
	queue    []*waiter // the one that began first is first
	begun    uint64
}

// New returns a budget with these limits. It returns an error if one of them is not positive, if Last exceeds a quota,
// or if a quota exceeds All.
func New(l Limits) (*Room, error) {
	if least := min(l.Principal, l.Person, l.Server, l.All); least <= 0 || l.Last < 0 || least < l.Last || l.All < max(l.Principal, l.Person, l.Server) {
		return nil, errors.New("room: limits must be positive and at most All, and Last at most each of them")
	}
	return &Room{limits: l, reading: fairqueue.NewForProcessor[key](), accounts: make(map[key]*account)}, nil
}

// waiter is a holding that waits for more memory. A waiter with zero bytes waits for earlier waiters of its principal
// and persons.
type waiter struct {
	holding *Holding
	bytes   int
	granted chan struct{}
	// closed means that the holding was closed and got nothing.
	closed bool
	// accounts are those of the holding when it began to wait.
	accounts []*account
}

// enter and leave count the waiter on the accounts of its holding.
func (w *waiter) enter() {
	w.accounts = slices.Clone(w.holding.accounts)
	for _, a := range w.accounts {
		a.waiting++
	}
}

func (w *waiter) leave() {
	for _, a := range w.accounts {
		a.waiting--
	}
}

// answer returns the result for the waiting goroutine.
func (w *waiter) answer() error {
	if w.closed {
		return ErrFull
	}
	return nil
}

// Open returns an empty holding for a holder. It must be closed.
func (r *Room) Open(of *Holder) *Holding { return &Holding{room: r, of: of} }

// A Holding is the memory that one request or answer takes. A nil Holding always stays empty. Its methods are safe for
// concurrent use.
type Holding struct {
	room *Room
	of   *Holder

	// The fields below are guarded by the room's lock. closed means that the holding may take nothing more, because it
	// would not be given back.
	closed bool
	bytes  int
	// since is the sequence number of when the holding began to grow; 0 if it is complete or empty.
	since uint64
	// accounts are those on which the holding counts. While it grows, its server's is the last.
	accounts []*account
}

// AccountsOf returns the accounts of the holding's caller if that is who. For any other principal, such as the gateway
// itself, it returns accounts of the key alone.
func (h *Holding) AccountsOf(who principal.Key) principal.Accounts {
	if h == nil || h.of.Accounts.Caller() != who {
		return principal.AccountsOfKey(who)
	}
	return h.of.Accounts
}

// Beside returns a new, empty holding of the same holder.
func (h *Holding) Beside() *Holding {
	if h == nil {
		return nil
	}
	return h.room.Open(h.of)
}

// Turn waits until the holder gets a slot for work that keeps a processor busy, or until ctx ends. The returned
// function ends the slot. A goroutine with a slot must not take another. Errors are those of [fairqueue.Turns.Take], and
// [ErrFull] for a nil holding.
func (h *Holding) Turn(ctx context.Context) (func(), error) {
	if h == nil {
		return nil, ErrFull
	}
	return h.room.reading.Acquire(ctx, h.of.reader())
}

// TurnFor is [Holding.Turn] for reading this many bytes. Up to [Free] bytes need no slot.
func (h *Holding) TurnFor(ctx context.Context, bytes int) (func(), error) {
	if counted(bytes) == 0 {
		return func() {}, nil
	}
	return h.Turn(ctx)
}

// counted returns how many of the bytes count: zero up to [Free], all of them above.
func counted(bytes int) int {
	if bytes <= Free {
		return 0
	}
	return bytes
}

// Grow waits until the holding may have this many bytes in all. It returns [ErrFull] when ctx ends, and at once if the
// holding is closed or may never be so large. It may be called with larger and larger values: of the growing holdings,
// the one that began first always becomes complete.
func (h *Holding) Grow(ctx context.Context, bytes int) error {
	if counted(bytes) == 0 {
		return nil
	}
	if h == nil || bytes > h.room.limits.most() {
		return ErrFull
	}
	return h.room.wait(ctx, &waiter{holding: h, bytes: bytes, granted: make(chan struct{})})
}

// most returns the largest size of one holding.
func (l *Limits) most() int {
	least := min(l.Principal, l.Person, l.Server)
	if l.Last > 0 {
		return min(least, l.Last)
	}
	return least
}

// Add takes this many more bytes, if that is possible without waiting. It reports whether it did.
func (h *Holding) Add(bytes int) bool {
	if h == nil {
		return false
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	return h.room.add(h, bytes, nil)
}

// Keep gives back everything above this many bytes. The holding is complete then.
func (h *Holding) Keep(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.settle(h, min(bytes, h.bytes))
}

// Drop gives this many bytes back.
func (h *Holding) Drop(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.settle(h, max(0, h.bytes-bytes))
}

// Close gives everything back. After it the holding gets nothing, even from another goroutine that still receives for
// it.
func (h *Holding) Close() {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.closed = true
	h.room.settle(h, 0)
}

// Give moves everything that the holding has to another one. If that counts on other accounts, there must be memory for
// it at once. It reports whether there was.
func (h *Holding) Give(to *Holding) bool {
	if h == nil {
		return true
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	defer h.room.serve()
	bytes, had := h.bytes, h.accounts
	h.room.whole(h)
	h.room.set(h, 0)
	if to == nil || to.closed {
		return counted(bytes) == 0
	}
	return h.room.add(to, bytes, had)
}

// Admit waits until no answer of a principal, or of a person behind it, waits for memory. It returns [ErrFull] when ctx
// or the patience ends. Requests that will have an answer must pass Admit first: otherwise a request would run whose
// result could not be delivered.
func (r *Room) Admit(ctx context.Context, of *Holder, patience time.Duration) error {
	r.mu.Lock()
	waited := slices.ContainsFunc(of.keys(), func(k key) bool { a := r.accounts[k]; return a != nil && a.waiting > 0 })
	r.mu.Unlock()
	if !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asks := &Holder{Accounts: of.Accounts} // no server sends for it yet
	return r.wait(ctx, &waiter{holding: r.Open(asks), granted: make(chan struct{})})
}

func (r *Room) wait(ctx context.Context, w *waiter) error {
	r.mu.Lock()
	if w.holding.closed {
		r.mu.Unlock()
		return ErrFull
	}
	r.begin(w.holding)
	at, _ := slices.BinarySearchFunc(r.queue, w, func(a, b *waiter) int { return byAge(a.holding, b.holding) })
	r.queue = slices.Insert(r.queue, at, w)
	w.enter()
	r.serve()
	r.mu.Unlock()
	select {
	case <-w.granted:
		return w.answer()
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-w.granted: // granted at the same moment
		return w.answer()
	default:
	}
	r.queue = slices.DeleteFunc(r.queue, func(other *waiter) bool { return other == w })
	w.leave()
	r.settle(w.holding, w.holding.bytes)
	return ErrFull
}

// serve grants the waiters that fit, in the order in which they began. A waiter is not overtaken by one that needs the
// account that it waits for. The caller holds the lock.
func (r *Room) serve() {
	if len(r.queue) == 0 {
		return
	}
	lacking := make(map[*account]bool)
	r.queue = slices.DeleteFunc(r.queue, func(w *waiter) bool {
		if w.holding.closed {
			w.leave()
			w.closed = true
			close(w.granted)
			return true
		}
		if !r.mayHave(w, lacking) {
			return false
		}
		w.leave()
		if w.bytes == 0 {
			r.whole(w.holding)
		}
		r.set(w.holding, w.bytes)
		close(w.granted)
		return true
	})
}

// mayHave reports whether a waiter can be granted, and marks the accounts that it waits for. The caller holds the lock.
func (r *Room) mayHave(w *waiter, lacking map[*account]bool) bool {
	more := counted(w.bytes) - counted(w.holding.bytes)
	ok := true
	for _, a := range w.holding.accounts {
		switch {
		case w.bytes == 0:
			ok = ok && (!lacking[a] || !a.isSomebodys())
		case more > 0 && (lacking[a] || a.taken+more > a.most(w.holding, r.limits.Last)):
			ok, lacking[a] = false, true
		}
	}
	return ok
}
