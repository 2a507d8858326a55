// Package turn shares work that takes much of the processor: so much of it is done at
// a time, so much of that for one owner, and owners take turns. Who asks without end
// waits for itself.
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
	// shortTurn is how long a turn at a processor may take that needs no rest, and maxRest
	// the longest rest.
	shortTurn, maxRest = time.Millisecond, time.Second
)

// ErrBusy means that too much of an owner's work waits already. Compare with
// errors.Is.
var ErrBusy = errors.New("too much of this caller's work waits: try again")

// Turns are the turns at one kind of work for owners of type K. Make them with [New].
// They are safe for concurrent use.
type Turns[K comparable] struct {
	all, each int
	// rests says that an owner's turn rests for as long as it took before it has another.
	rests bool

	mu      sync.Mutex
	working int
	owners  map[K]*owner
	// line are the owners that wait, the next one first.
	line []*owner
}

// An owner has work under way or waits for its turn.
type owner struct {
	// working is how many turns it has, and resting how many of them rest.
	working, resting int
	// waiting are closed when their turn has come, the first first.
	waiting []chan struct{}
}

// New returns turns of which all may be taken at a time, each by one owner; both are
// at least 1.
func New[K comparable](all, each int) (*Turns[K], error) {
	if all < 1 || each < 1 {
		return nil, errors.New("turn: who has no turns waits forever")
	}
	return &Turns[K]{all: all, each: each, owners: make(map[K]*owner)}, nil
}

// Processors is how many processors the process has, whatever Go works on at a time.
func Processors() int { return min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) }

// ForProcessor returns turns at work that keeps a processor busy: it gets half of the
// processors, and one owner half of that, but at least one; and that for half of the time,
// for behind a turn of more than a millisecond the owner waits as long again.
func ForProcessor[K comparable]() *Turns[K] {
	all := max(1, Processors()/2)
	return &Turns[K]{all: all, each: max(1, all/2), rests: true, owners: make(map[K]*owner)}
}

// Take waits for a turn of an owner. The function ends it, and is to be called once.
// Errors: [ErrBusy], and the cause of ctx where it ends before.
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

// join puts an owner in line, and begins what can begin.
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

// begin begins what can begin. An owner whose turn has come goes to the end of the
// line.
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

// end ends a turn that took so long.
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

// rested ends the rest behind a turn.
func (t *Turns[K]) rested(of K, o *owner) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o.resting--
	t.begin()
	t.forget(of, o)
}

// giveUp leaves the line. It reports whether that was in time: else the turn had come.
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

// forget drops an owner that neither works nor rests nor waits.
func (t *Turns[K]) forget(of K, o *owner) {
	if o.working == 0 && o.resting == 0 && len(o.waiting) == 0 {
		delete(t.owners, of)
	}
}
