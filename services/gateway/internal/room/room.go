// Package room bounds the memory that answers of servers take until their readers
// have them, and the processors that reading what is large takes: a share for each
// principal, and all together.
package room

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// Share is how many bytes of answers one principal has in memory at the most until
// they are read, and Size how many all have together: four principals can fill it.
const (
	Share = 64 << 20
	Size  = 4 * Share
)

// Free is how many bytes of each [Holding] count nothing. How many of them there
// are is bounded by the requests in flight, so that a small answer waits for no
// large one.
const Free = 64 << 10

// ErrFull means that there was no room for an answer.
var ErrFull = errors.New("there is no room for the answer")

// Owner is whose share is used: a principal, whatever token or session it uses.
type Owner struct{ Tenant, Subject string }

// Room is safe for concurrent use.
type Room struct {
	share, size int
	reading     *turn.Turns[Owner]

	mu    sync.Mutex
	taken int
	by    map[Owner]int
	queue []*waiter // who came first stands first
}

// waiter is a holding that has to wait for more. One of no bytes waits for those of
// its owner before it.
type waiter struct {
	holding *Holding
	bytes   int
	granted chan struct{}
}

// New returns a room of size bytes, of which no owner has more than share.
func New(share, size int) (*Room, error) {
	if share <= 0 || size < share {
		return nil, errors.New("room: there is room for nobody")
	}
	return &Room{share: share, size: size, reading: turn.ForProcessor[Owner](), by: make(map[Owner]int)}, nil
}

// Open returns a holding of an owner, which has nothing yet. It is to be closed.
func (r *Room) Open(of Owner) *Holding { return &Holding{room: r, of: of} }

// A Holding is what one answer takes. A nil one never has more than nothing. Its
// methods are safe for concurrent use.
type Holding struct {
	room *Room
	of   Owner
	// bytes are guarded by the room's lock.
	bytes int
}

// Beside returns another holding of the same owner.
func (h *Holding) Beside() *Holding {
	if h == nil {
		return nil
	}
	return h.room.Open(h.of)
}

// Turn waits for the owner's turn at work that keeps a processor busy, or ctx ends. The
// function ends it; who has one must not take another. Errors: those of
// [turn.Turns.Take], and for a nil holding [ErrFull].
func (h *Holding) Turn(ctx context.Context) (func(), error) {
	if h == nil {
		return nil, ErrFull
	}
	return h.room.reading.Take(ctx, h.of)
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
// [ErrFull], as it is at once where so many are never to be had. Who may need more
// later takes the most at once: two that wait for what the other has would wait for
// ever.
func (h *Holding) Grow(ctx context.Context, bytes int) error {
	if counted(bytes) == 0 {
		return nil
	}
	if h == nil || bytes > h.room.share {
		return ErrFull
	}
	return h.room.wait(ctx, &waiter{holding: h, bytes: bytes, granted: make(chan struct{})})
}

// Add takes that many bytes more, unless it had to wait for them. It tells whether it
// did.
func (h *Holding) Add(bytes int) bool {
	if h == nil {
		return false
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	return h.room.add(h, bytes)
}

// Keep gives back all but that many bytes.
func (h *Holding) Keep(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	if bytes < h.bytes {
		h.room.set(h, bytes)
		h.room.serve()
	}
}

// Drop gives that many bytes back.
func (h *Holding) Drop(bytes int) {
	if h == nil {
		return
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	h.room.set(h, max(0, h.bytes-bytes))
	h.room.serve()
}

// Close gives everything back.
func (h *Holding) Close() { h.Keep(0) }

// Give hands all that the holding has over to another, which may be somebody else's
// and then has to have room for it at once. It tells whether that was so.
func (h *Holding) Give(to *Holding) bool {
	if h == nil {
		return true
	}
	h.room.mu.Lock()
	defer h.room.mu.Unlock()
	bytes := h.bytes
	if counted(bytes) > 0 && to == nil {
		return false
	}
	h.room.set(h, 0)
	if to == nil || h.of == to.of { // of the same room, as all are
		if to != nil {
			h.room.set(to, to.bytes+bytes)
		}
		h.room.serve()
		return true
	}
	defer h.room.serve()
	return h.room.add(to, bytes)
}

// Admit waits until no answer of an owner waits for its share, or ctx ends, or the
// patience; then it is [ErrFull]. What asks for another answer has to be let in by it: else it would
// run, and nobody could be told what came of it.
func (r *Room) Admit(ctx context.Context, of Owner, patience time.Duration) error {
	r.mu.Lock()
	idle := len(r.queue) == 0
	r.mu.Unlock()
	if idle {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return r.wait(ctx, &waiter{holding: r.Open(of), granted: make(chan struct{})})
}

func (r *Room) wait(ctx context.Context, w *waiter) error {
	r.mu.Lock()
	r.queue = append(r.queue, w)
	r.serve()
	r.mu.Unlock()
	select {
	case <-w.granted:
		return nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-w.granted: // in the same moment
		return nil
	default:
	}
	r.queue = slices.DeleteFunc(r.queue, func(other *waiter) bool { return other == w })
	r.serve() // who waited behind it
	return ErrFull
}

// set makes a holding as large as it is now. It needs the lock.
func (r *Room) set(h *Holding, bytes int) {
	more := counted(bytes) - counted(h.bytes)
	h.bytes = bytes
	r.taken += more
	if r.by[h.of] += more; r.by[h.of] == 0 {
		delete(r.by, h.of)
	}
}

// add makes a holding larger where it passes nobody of its owner by. It needs the
// lock.
func (r *Room) add(h *Holding, bytes int) bool {
	more := counted(h.bytes+bytes) - counted(h.bytes)
	if more > 0 && (r.by[h.of]+more > r.share || r.taken+more > r.size || slices.ContainsFunc(r.queue, h.sameOwner)) {
		return false
	}
	r.set(h, h.bytes+bytes)
	return true
}

func (h *Holding) sameOwner(w *waiter) bool { return w.holding.of == h.of }

// serve lets in, in their order, those that wait and have room: nobody is passed by
// one of the same owner, nor by anybody where the room as a whole is what lacks. It
// needs the lock.
func (r *Room) serve() {
	if len(r.queue) == 0 {
		return
	}
	full, held := false, make(map[Owner]bool) // who waits for the share
	r.queue = slices.DeleteFunc(r.queue, func(w *waiter) bool {
		of, more := w.holding.of, counted(w.bytes)-counted(w.holding.bytes)
		switch {
		case held[of]:
			return false
		case more <= 0: // so the room as a whole is no matter
		case r.by[of]+more > r.share:
			held[of] = true
			return false
		case full || r.taken+more > r.size:
			full = true
			return false
		default:
			r.set(w.holding, w.bytes)
		}
		close(w.granted)
		return true
	})
}
