// Package turn bounds work that uses the processor for long: the amount at a time in all and for each owner. Owners
// take turns, so an owner with much work delays only itself.
package turn

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

const (
	// maxWaiting is how many pieces of one owner's work may wait.
	maxWaiting = 1024
	// shortTurn is the longest time slice that needs no rest, and maxRest the longest rest.
	shortTurn, maxRest = time.Millisecond, time.Second
)

// ErrBusy means that too much of an owner's work waits already. Compare with errors.Is.
var ErrBusy = errors.New("too much of this caller's work waits: try again")

// Turns are the time slices for one kind of work for owners of type K. Create them with [New]. They are safe for
// concurrent use.
type Turns[K comparable] struct {
	all, each int
	// rests is set if an owner must rest after a slice for as long as the slice took.
	rests bool

	mu      sync.Mutex
	working int
	owners  map[K]*owner
	// line contains the owners that wait, the next one first.
	line []*owner
}

// An owner has work under way or waits for a time slice.
type owner struct {
	// working is how many slices it has, and resting how many of them rest.
	working, resting int
	// waiting are closed when their slice begins, in order.
	waiting []chan struct{}
}

// New returns Turns with all time slices at a time, of which one owner may have each; both are at least 1.
func New[K comparable](all, each int) (*Turns[K], error) {
	if all < 1 || each < 1 {
		return nil, errors.New("turn: all and each must be at least 1")
	}
	return &Turns[K]{all: all, each: each, owners: make(map[K]*owner)}, nil
}

// Processors returns how many processors the process can use: those of the machine, or GOMAXPROCS if that is less.
func Processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }

// ForProcessor returns Turns for work that keeps a processor busy: it may use half of the processors, and one owner
// half of that, but at least one; and an owner for only half of the time, because after a slice of more than a
// millisecond it rests for as long, at most 1 s.
func ForProcessor[K comparable]() *Turns[K] {
	all := max(1, Processors()/2)
	return &Turns[K]{all: all, each: max(1, all/2), rests: true, owners: make(map[K]*owner)}
}

// Take waits for a time slice of an owner. The returned function ends the slice and must be called once. Errors:
// [ErrBusy], and the cause of ctx if ctx ends before.
func (t *Turns[K]) Take(ctx context.Context, of K) (func(), error) {
	if ctx.Err() != nil {
		return nil, fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
	}
	mine, err := t.join(of)
	if err != nil {
		return nil, err
	}
	select {
	case <-mine:
	case <-ctx.Done():
		if t.giveUp(of, mine) {
			return nil, fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
		}
	}
	began := time.Now()
	return func() { t.end(of, time.Since(began)) }, nil
}

// join adds a waiter for an owner, and begins slices that can begin.
func (t *Turns[K]) join(of K) (chan struct{}, error) {
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
	mine := make(chan struct{})
	o.waiting = append(o.waiting, mine)
	if len(o.waiting) == 1 {
		t.line = append(t.line, o)
	}
	t.begin()
	return mine, nil
}

// begin begins slices that can begin. An owner whose slice begins goes to the end of the line.
func (t *Turns[K]) begin() {
	for t.working < t.all {
		i := slices.IndexFunc(t.line, func(o *owner) bool { return o.working+o.resting < t.each })
		if i < 0 {
			return
		}
		o := t.line[i]
		t.line = slices.Delete(t.line, i, i+1)
		close(o.waiting[0])
		o.waiting = slices.Delete(o.waiting, 0, 1)
		if len(o.waiting) > 0 {
			t.line = append(t.line, o)
		}
		o.working++
		t.working++
	}
}

// end ends a slice of that length.
func (t *Turns[K]) end(of K, took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[of]
	o.working--
	t.working--
	if t.rests && took > shortTurn {
		longWork()
		o.resting++
		time.AfterFunc(min(took, maxRest), func() { t.rested(of, o) })
	}
	t.begin()
	t.forget(of, o)
}

// rested ends the rest after a slice.
func (t *Turns[K]) rested(of K, o *owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.resting--
	t.begin()
	t.forget(of, o)
}

// giveUp removes a waiter. It returns false if the slice had begun already.
func (t *Turns[K]) giveUp(of K, mine chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	o := t.owners[of]
	if o == nil {
		return false
	}
	i := slices.Index(o.waiting, mine)
	if i < 0 {
		return false
	}
	o.waiting = slices.Delete(o.waiting, i, i+1)
	if len(o.waiting) == 0 {
		t.line = slices.DeleteFunc(t.line, func(other *owner) bool { return other == o })
	}
	t.forget(of, o)
	return true
}

// forget removes an owner that has no slice, no rest and no waiter.
func (t *Turns[K]) forget(of K, o *owner) {
	if o.working == 0 && o.resting == 0 && len(o.waiting) == 0 {
		delete(t.owners, of)
	}
}
