// Package fairqueue implements a fair queue for CPU-intensive work. The queue limits the amount of concurrent work, in
// total and for each owner. Owners take turns, so an owner with much work delays only its own work.
package fairqueue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// maxWaiting limits how many pieces of work of one owner can wait.
	maxWaiting = 1024
	// An owner rests only after a time slice that took longer than maxShortSlice. A rest takes at most maxRest.
	maxShortSlice, maxRest = time.Millisecond, time.Second
)

// ErrBusy means that the owner already has the maximum amount of waiting work. Use errors.Is to test for it.
var ErrBusy = errors.New("too many operations of this caller are waiting: try again")

// Queue is a fair queue for one kind of work by owners of type K. Create it with [New]. It is safe for concurrent use.
type Queue[K comparable] struct {
	total, perOwner int
	// rests is true if an owner must rest after a time slice for as long as the slice took.
	rests bool

	mu      sync.Mutex
	working int
	owners  map[K]*owner
	// waiting contains the owners that have waiting work, in the order of their turns.
	waiting []*owner
}

// An owner is the state of one owner of work. It exists while the owner has a time slice, rests after a slice, or waits
// for a slice.
type owner struct {
	// working is the number of the owner's running time slices. resting is the number of ended time slices after which
	// the owner still rests.
	working, resting int
	// waiting contains a channel for each waiting piece of work, in order. The channel is closed when the time slice
	// begins.
	waiting []chan struct{}
}

// New returns a fair queue. total is the maximum number of concurrent time slices, and perOwner is the maximum number
// for one owner. Both must be at least 1.
func New[K comparable](total, perOwner int) (*Queue[K], error) {
	if total < 1 || perOwner < 1 {
		return nil, errors.New("fairqueue: total and perOwner must be at least 1")
	}
	return &Queue[K]{total: total, perOwner: perOwner, owners: make(map[K]*owner)}, nil
}

// Processors returns the number of processors that the process can use. That is the machine's number of processors or
// GOMAXPROCS, whichever is smaller.
func Processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }

// NewForProcessor returns a fair queue for work that keeps a processor busy. All owners together may use half of the
// processors. One owner may use half of these, but at least one processor. An owner may use a processor for only half
// of the time. Therefore, after a slice of more than a millisecond, the owner waits for as long as the slice took, at
// most 1 s.
func NewForProcessor[K comparable]() *Queue[K] {
	all := max(1, Processors()/2)
	return &Queue[K]{total: all, perOwner: max(1, all/2), rests: true, owners: make(map[K]*owner)}
}

// Acquire waits for a time slice for an owner. The returned function ends the slice and must be called once. Acquire
// returns [ErrBusy] if too much of the owner's work is already waiting. If ctx is done before the slice begins, Acquire
// returns the cause of ctx.
func (t *Queue[K]) Acquire(ctx context.Context, of K) (func(), error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
	}
	ready, err := t.join(of)
	if err != nil {
		return nil, err
	}
	select {
	case <-ready:
	case <-ctx.Done():
		if t.abandon(of, ready) {
			return nil, fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
		}
	}
	began := time.Now()
	return func() { t.end(of, time.Since(began)) }, nil
}

// join adds a waiting piece of work for an owner, and starts the time slices that can start.
func (t *Queue[K]) join(of K) (chan struct{}, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[of]
	if o == nil {
		o = new(owner)
		t.owners[of] = o
	}
	if len(o.waiting) >= maxWaiting {
		return nil, ErrBusy
	}
	ready := make(chan struct{})
	o.waiting = append(o.waiting, ready)
	if len(o.waiting) == 1 {
		t.waiting = append(t.waiting, o)
	}
	t.startSlices()
	return ready, nil
}

// startSlices starts the time slices that can start. An owner whose time slice starts moves to the end of the queue.
func (t *Queue[K]) startSlices() {
	for t.working < t.total {
		i := slices.IndexFunc(t.waiting, func(o *owner) bool { return o.working+o.resting < t.perOwner })
		if i < 0 {
			return
		}
		o := t.waiting[i]
		t.waiting = slices.Delete(t.waiting, i, i+1)
		close(o.waiting[0])
		o.waiting = slices.Delete(o.waiting, 0, 1)
		if len(o.waiting) > 0 {
			t.waiting = append(t.waiting, o)
		}
		o.working++
		t.working++
	}
}

func (t *Queue[K]) end(of K, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[of]
	o.working--
	t.working--
	if t.rests && took > maxShortSlice {
		gosched.NoteLongWork()
		o.resting++
		time.AfterFunc(min(took, maxRest), func() { t.endRest(of, o) })
	}
	t.startSlices()
	t.forget(of, o)
}

func (t *Queue[K]) endRest(of K, o *owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.resting--
	t.startSlices()
	t.forget(of, o)
}

// abandon removes a waiting piece of work. It returns false if the time slice of the work has already begun.
func (t *Queue[K]) abandon(of K, ready chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[of]
	if o == nil {
		return false
	}
	i := slices.Index(o.waiting, ready)
	if i < 0 {
		return false
	}
	o.waiting = slices.Delete(o.waiting, i, i+1)
	if len(o.waiting) == 0 {
		t.waiting = slices.DeleteFunc(t.waiting, func(other *owner) bool { return other == o })
	}
	t.forget(of, o)
	return true
}

// forget removes an owner that has no time slice, no rest and no waiting work.
func (t *Queue[K]) forget(of K, o *owner) {
	if o.working == 0 && o.resting == 0 && len(o.waiting) == 0 {
		delete(t.owners, of)
	}
}
