// Package turn gives principals their turns at work that takes long: so much of it at
// a time, and of each principal's one piece, so that whoever makes much of it waits for
// itself and hardly for others.
package turn

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/semaphore"
)

// maxWaiting is how many pieces of one principal's work may wait.
const maxWaiting = 1024

// ErrBusy means that too much of the principal's work waits already. Compare with
// errors.Is.
var ErrBusy = errors.New("too much of this caller's work waits: try again")

// Turns are turns at one kind of work. They are safe for concurrent use.
type Turns struct {
	places *semaphore.Weighted

	mu    sync.Mutex
	lines map[string]*line
}

// line is the work of one principal.
type line struct {
	turn *semaphore.Weighted // of one
	// in are those who work or wait.
	in int
}

// New returns turns of which so many are had at a time, 1 or more.
func New(places int) *Turns {
	return &Turns{places: semaphore.NewWeighted(int64(max(places, 1))), lines: make(map[string]*line)}
}

// Take waits for a turn of a principal, in the order of those who ask, and returns the
// function that ends it. Of each principal one waits for a place at a time, so that
// before anybody's turn come at most as many others as there are principals. Errors:
// [ErrBusy], and ctx's where it ends before.
func (t *Turns) Take(ctx context.Context, who string) (end func(), err error) {
	l, err := t.join(who)
	if err != nil {
		return nil, err
	}
	if err := l.turn.Acquire(ctx, 1); err != nil {
		t.leave(who, l)
		return nil, err
	}
	if err := t.places.Acquire(ctx, 1); err != nil {
		l.turn.Release(1)
		t.leave(who, l)
		return nil, err
	}
	return func() {
		t.places.Release(1)
		l.turn.Release(1)
		t.leave(who, l)
	}, nil
}

func (t *Turns) join(who string) (*line, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lines[who]
	if l == nil {
		l = &line{turn: semaphore.NewWeighted(1)}
		t.lines[who] = l
	}
	if l.in > maxWaiting {
		return nil, ErrBusy
	}
	l.in++
	return l, nil
}

// leave forgets a line in which nobody is any more.
func (t *Turns) leave(who string, l *line) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l.in--; l.in == 0 {
		delete(t.lines, who)
	}
}
