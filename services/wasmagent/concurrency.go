package wasmagent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/agent"
)

// Places bounds the calls that work at the same time, and those that wait for a place. A zero field means its default.
type Places struct {
	// All and Person are the number of places: in all, and of one person.
	All, Person int
	// Queue and PersonQueue bound the calls that wait for a place: in all, and of one person. Further calls are
	// refused.
	Queue, PersonQueue int
	// Wait is the longest wait for a place.
	Wait time.Duration
}

// or returns the places with defaults for fields that are zero. A default is lowered to the bound that contains it.
func (p Places) or(d Places) Places {
	fill := func(field *int, otherwise int) {
		if *field == 0 {
			*field = otherwise
		}
	}
	fill(&p.All, d.All)
	fill(&p.Person, min(d.Person, p.All))
	fill(&p.Queue, d.Queue)
	fill(&p.PersonQueue, min(d.PersonQueue, p.Queue))
	if p.Wait == 0 {
		p.Wait = d.Wait
	}
	return p
}

func (p Places) validate(key string) error {
	if p.All < 1 || p.Person < 1 || p.Person > p.All || p.Queue < 1 || p.PersonQueue < 1 || p.PersonQueue > p.Queue || p.Wait < 0 {
		return fmt.Errorf("agents.%s: each value must be at least 1, and those of one person at most those of all", key)
	}
	return nil
}

// errPlaces is wrapped by an error that says why there is no place.
var errPlaces = errors.New("there is no place")

// A queue gives places to callers in the order in which they came. A person who has all places that one person may have
// does not delay others. It is safe for concurrent use.
type queue struct {
	Places

	mu      sync.Mutex
	working int
	each    map[principal.Key]*personPlaces
	waiting []*waiter
}

// personPlaces counts the places that a person has, and the person's waiting callers.
type personPlaces struct{ working, waiting int }

type waiter struct {
	of principal.Key
	// back is true if the caller had a place before. Such callers come first. The length of the queue does not bound
	// them; the number of places that were given back does.
	back  bool
	ready chan struct{}
}

func newQueue(p Places) *queue { return &queue{Places: p, each: make(map[principal.Key]*personPlaces)} }

// take waits for a place until ctx ends, and for at most [Places.Wait] unless back is set. The caller calls leave to
// free the place. Errors: [errPlaces], ctx's.
func (q *queue) take(ctx context.Context, of principal.Key, back bool) (leave func(), err error) {
	w := &waiter{of: of, back: back, ready: make(chan struct{})}
	if err := q.enqueue(w); err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(func() { q.leave(of) })
	var late <-chan time.Time
	if !back {
		timer := time.NewTimer(q.Wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late:
		err = fmt.Errorf("%w: none was free for %s", errPlaces, q.Wait)
	}
	if !q.giveUp(w) {
		return leave, nil // a place was granted in the meantime
	}
	return nil, err
}

// enqueue gives a caller a place, adds it to the queue, or refuses it with [errPlaces].
func (q *queue) enqueue(w *waiter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	person := q.each[w.of]
	if person == nil {
		person = new(personPlaces)
		q.each[w.of] = person
	}
	isFree := q.working < q.All && person.working < q.Person
	if !w.back && !isFree && (len(q.waiting) >= q.Queue || person.waiting >= q.PersonQueue) {
		q.tidy(w.of)
		return fmt.Errorf("%w: %d of one caller and %d in all work at a time, and as many as may wait already: %d of one caller, %d in all; try again later",
			errPlaces, q.Person, q.All, q.PersonQueue, q.Queue)
	}
	person.waiting++
	at := len(q.waiting)
	if w.back {
		if at = slices.IndexFunc(q.waiting, func(other *waiter) bool { return !other.back }); at < 0 {
			at = len(q.waiting)
		}
	}
	q.waiting = slices.Insert(q.waiting, at, w)
	q.grant()
	return nil
}

// grant gives free places to waiting callers. The caller holds mu.
func (q *queue) grant() {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		person := q.each[w.of]
		if q.working >= q.All || person.working >= q.Person {
			return false
		}
		q.working++
		person.working, person.waiting = person.working+1, person.waiting-1
		close(w.ready)
		return true
	})
}

func (q *queue) leave(of principal.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.working--
	q.each[of].working--
	q.grant()
	q.tidy(of)
}

// giveUp removes a caller from the queue. It returns false if the caller has a place by now.
func (q *queue) giveUp(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, w)
	if at < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	q.each[w.of].waiting--
	q.tidy(w.of)
	return true
}

// tidy deletes the counters of a person if all are zero. The caller holds mu.
func (q *queue) tidy(of principal.Key) {
	if person := q.each[of]; person.working == 0 && person.waiting == 0 {
		delete(q.each, of)
	}
}

// A room bounds memory in bytes: in all, and of one person. It is safe for concurrent use.
type room struct {
	all, own int64

	mu   sync.Mutex
	n    int64
	each map[principal.Key]int64
}

// take reserves bytes if both bounds allow it.
func (r *room) take(of principal.Key, bytes int) (giveBack func(), ok bool) {
	n := int64(bytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n+n > r.all || r.each[of]+n > r.own {
		return nil, false
	}
	if r.each == nil {
		r.each = make(map[principal.Key]int64)
	}
	r.n += n
	r.each[of] += n
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.n -= n
		if r.each[of] -= n; r.each[of] == 0 {
			delete(r.each, of)
		}
	}), true
}

// Enter implements [agent.Host].
func (h host) Enter(ctx context.Context, a *agent.Agent, back bool) (func(), error) {
	leave, err := h.prompts.take(ctx, principal.Person(a.Creator), back)
	if errors.Is(err, errPlaces) {
		err = fmt.Errorf("%w: %w", agent.ErrPlaces, err)
	}
	return leave, err
}

// Hold implements [agent.Host].
func (h host) Hold(a *agent.Agent, bytes int) (func(), bool) {
	return h.held.take(principal.Person(a.Creator), bytes)
}
