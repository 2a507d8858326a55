// Package room bounds the memory that requests of clients and answers of servers take
// until they are read: a share for each principal, for each person behind principals and
// for each server, and all together. It bounds the processors too that reading what is
// large takes.
package room

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// Share is how many bytes one principal has in memory at the most, and Size how many all
// have together. Half is what all principals of one person have, and what one server's
// answers have until they are whole.
const (
	Share = 64 << 20
	Size  = 4 * Share
	Half  = Size / 2
)

// Free is how many bytes of each [Holding] count nothing. How many of them there
// are is bounded by the requests in flight, so that a small answer waits for no
// large one.
const Free = 64 << 10

// Last is how much of each share is for the answer that began first, in bytes: no
// answer is larger.
const Last = 17 << 20

// ErrFull means that there was no room for an answer.
var ErrFull = errors.New("there is no room for the answer")

// Limits are how many bytes there are. All are positive but Last.
type Limits struct {
	// Principal is for each principal with the agents made by it, Person for all principals of one person, Server
	// for what each server has begun to send, and All for everybody.
	Principal, Person, Server, All int
	// Last of each is for the holding that began to grow first. It is as large as the
	// largest: then that one ends, and so does everyone in turn. 0 where none waits.
	Last int
}

// Answers are the limits of answers.
func Answers() Limits {
	return Limits{Principal: Share, Person: Half, Server: Half, All: Size, Last: Last}
}

// Bodies are the limits of requests: none of them waits, and no server sends them.
func Bodies() Limits { return Limits{Principal: Share, Person: Half, Server: Size, All: Size} }

// Room is safe for concurrent use.
type Room struct {
	limits  Limits
	reading *turn.Turns[key]

	mu       sync.Mutex
	accounts map[key]*account
	queue    []*waiter // who began first stands first
	begun    uint64
}

// New returns a room of so many bytes.
func New(l Limits) (*Room, error) {
	if least := min(l.Principal, l.Person, l.Server, l.All); least <= 0 || l.Last < 0 || least < l.Last || l.All < max(l.Principal, l.Person, l.Server) {
		return nil, errors.New("room: there is room for nobody")
	}
	return &Room{limits: l, reading: turn.ForProcessor[key](), accounts: make(map[key]*account)}, nil
}

// waiter is a holding that has to wait for more. One of no bytes waits for those of
// its principal and persons that stand before it.
type waiter struct {
	holding *Holding
	bytes   int
	granted chan struct{}
	// closed says that its holding was, and nothing granted.
	closed bool
	// accounts are those of its holding when it began to wait.
	accounts []*account
}

// enter and leave count the waiter with the accounts that its holding takes of.
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

// answer is what who waited is told.
func (w *waiter) answer() error {
	if w.closed {
		return ErrFull
	}
	return nil
}

// Open returns a holding of somebody's, which has nothing yet. It is to be closed.
func (r *Room) Open(of *Holder) *Holding { return &Holding{room: r, of: of} }

// A Holding is what one request or answer takes. A nil one never has more than nothing.
// Its methods are safe for concurrent use.
type Holding struct {
	room *Room
	of   *Holder

	// All below are guarded by the room's lock.
	//
	// closed says that nobody would give back what it took from now on.
	closed bool
	bytes  int
	// since is when it began to grow, 0 where it is whole or has nothing.
	since uint64
	// accounts are those that it takes of: that of its server last, while it grows.
	accounts []*account
}

// AccountsOf returns the accounts of the caller that has the holding, which is who. Of another one, such as
// the gateway itself, nothing but the key is known.
func (h *Holding) AccountsOf(who principal.Key) principal.Accounts {
	if h == nil || h.of.Accounts.Caller() != who {
		return principal.Alone(who)
	}
	return h.of.Accounts
}

// Beside returns another holding of the same holder.
func (h *Holding) Beside() *Holding {
	if h == nil {
		return nil
	}
	return h.room.Open(h.of)
}

// Turn waits for the holder's turn at work that keeps a processor busy, or ctx ends. The
// function ends it; who has one must not take another. Errors: those of
// [turn.Turns.Take], and for a nil holding [ErrFull].
func (h *Holding) Turn(ctx context.Context) (func(), error) {
	if h == nil {
		return nil, ErrFull
	}
	return h.room.reading.Take(ctx, h.of.reader())
}

// TurnFor is [Holding.Turn] for reading so many bytes, of which few need no turn.
func (h *Holding) TurnFor(ctx context.Context, bytes int) (func(), error) {
	if counted(bytes) == 0 {
		return func() {}, nil
	}
	return h.Turn(ctx)
}

// counted is how much of so many bytes counts.
func counted(bytes int) int {
	if bytes <= Free {
		return 0
	}
	return bytes
}

// Grow waits until the holding may have that many bytes, or ctx ends; then it is
// [ErrFull], as it is at once where so many are never to be had. It may be asked for
// more and more: of those that grow, the one that began first always ends. Of a closed
// holding it is [ErrFull] at once.
func (h *Holding) Grow(ctx context.Context, bytes int) error {
	if counted(bytes) == 0 {
		return nil
	}
	if h == nil || bytes > h.room.limits.most() {
		return ErrFull
	}
	return h.room.wait(ctx, &waiter{holding: h, bytes: bytes, granted: make(chan struct{})})
}

// most is how large one holding may be.
func (l *Limits) most() int {
	least := min(l.Principal, l.Person, l.Server)
	if l.Last > 0 {
		return min(least, l.Last)
	}
	return least
}

// Add takes that many bytes more, unless it had to wait for them. It reports whether it
// did.
func (h *Holding) Add(bytes int) bool {
	if h == nil {
		return false
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	return h.room.add(h, bytes, nil)
}

// Keep gives back all but that many bytes. The holding is whole then.
func (h *Holding) Keep(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.settle(h, min(bytes, h.bytes))
}

// Drop gives that many bytes back.
func (h *Holding) Drop(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.settle(h, max(0, h.bytes-bytes))
}

// Close gives everything back, for good: who takes in what its owner waits for no longer,
// on another goroutine, gets nothing.
func (h *Holding) Close() {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.closed = true
	h.room.settle(h, 0)
}

// Give hands all that the holding has over to another. Where that takes of others, there
// has to be room for it at once. It reports whether that was so.
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

// Admit waits until no answer of a principal, or of a person behind it, waits for its
// share, or ctx or the patience ends; then it is [ErrFull]. What asks for another answer has
// to be let in by it: else it would run, and nobody could be told what came of it.
func (r *Room) Admit(ctx context.Context, of *Holder, patience time.Duration) error {
	r.mu.Lock()
	waited := slices.ContainsFunc(of.keys(), func(k key) bool { a := r.accounts[k]; return a != nil && a.waiting > 0 })
	r.mu.Unlock()
	if !waited {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	asks := &Holder{Accounts: of.Accounts} // no server sends it anything yet
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
	case <-w.granted: // in the same moment
		return w.answer()
	default:
	}
	r.queue = slices.DeleteFunc(r.queue, func(other *waiter) bool { return other == w })
	w.leave()
	r.settle(w.holding, w.holding.bytes)
	return ErrFull
}

// serve lets in, in the order in which they began, those that wait and have room: nobody
// is passed by one that takes of the same where that is what lacks. It needs the lock.
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

// mayHave reports whether a waiter is to be let in, and notes what lacks for it. It needs
// the lock.
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
