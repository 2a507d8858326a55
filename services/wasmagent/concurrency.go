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

// ConcurrencyLimits bounds the calls that work at the same time, and those that wait for a place. A zero field means its default.
type ConcurrencyLimits struct {
	// Total and Person are the number of places: in all, and of one person.
	Total, PerPerson int
	// MaxQueued and PersonQueue bound the calls that wait for a place: in all, and of one person. Further calls are
	// refused.
	MaxQueued, MaxQueuedPerPerson int
	// MaxWait is the longest wait for a place.
	MaxWait time.Duration
}

// withDefaults returns the places with defaults for fields that are zero. A default is lowered to the bound that contains it.
func (p ConcurrencyLimits) withDefaults(d ConcurrencyLimits) ConcurrencyLimits {
	fill := func(field *int, otherwise int) {
		if *field == 0 {
			*field = otherwise
		}
	}
	fill(&p.Total, d.Total)
	fill(&p.PerPerson, min(d.PerPerson, p.Total))
	fill(&p.MaxQueued, d.MaxQueued)
	fill(&p.MaxQueuedPerPerson, min(d.MaxQueuedPerPerson, p.MaxQueued))
	if p.MaxWait == 0 {
		p.MaxWait = d.MaxWait
	}
	return p
}

func (p ConcurrencyLimits) validate(key string) error {
	if p.Total < 1 || p.PerPerson < 1 || p.PerPerson > p.Total || p.MaxQueued < 1 || p.MaxQueuedPerPerson < 1 || p.MaxQueuedPerPerson > p.MaxQueued || p.MaxWait < 0 {
		return fmt.Errorf("agents.%s: each value must be at least 1, and those of one person at most those of all", key)
	}
	return nil
}

// errNoSlot is wrapped by an error that says why there is no place.
var errNoSlot = errors.New("there is no place")

// A queue gives places to callers in the order in which they came. A person who has all places that one person may have
// does not delay others. It is safe for concurrent use.
type queue struct {
	ConcurrencyLimits

	mu      sync.Mutex
	running int
	persons map[principal.Key]*personCounts
	waiting []*waiter
}

// personCounts counts the places that a person has, and the person's waiting callers.
type personCounts struct{ running, waiting int }

type waiter struct {
	person principal.Key
	// hadSlot is true if the caller had a place before. Such callers come first. The length of the queue does not bound
	// them; the number of places that were given back does.
	hadSlot bool
	ready   chan struct{}
}

func newQueue(p ConcurrencyLimits) *queue {
	return &queue{ConcurrencyLimits: p, persons: make(map[principal.Key]*personCounts)}
}

// acquire waits for a place until ctx ends, and for at most [Places.MaxWait] unless back is set. The caller calls leave to
// free the place. Errors: [errNoSlot], ctx's.
func (q *queue) acquire(ctx context.Context, of principal.Key, back bool) (leave func(), err error) {
	w := &waiter{person: of, hadSlot: back, ready: make(chan struct{})}
	if err := q.enqueue(w); err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(func() { q.release(of) })
	var late <-chan time.Time
	if !back {
		timer := time.NewTimer(q.MaxWait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-late:
		err = fmt.Errorf("%w: none was free for %s", errNoSlot, q.MaxWait)
	}
	if !q.dequeue(w) {
		return leave, nil // a place was granted in the meantime
	}
	return nil, err
}

// enqueue gives a caller a place, adds it to the queue, or refuses it with [errNoSlot].
func (q *queue) enqueue(w *waiter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	person := q.persons[w.person]
	if person == nil {
		person = new(personCounts)
		q.persons[w.person] = person
	}
	isFree := q.running < q.Total && person.running < q.PerPerson
	if !w.hadSlot && !isFree && (len(q.waiting) >= q.MaxQueued || person.waiting >= q.MaxQueuedPerPerson) {
		q.forgetIdle(w.person)
		return fmt.Errorf("%w: %d of one caller and %d in all work at a time, and as many as may wait already: %d of one caller, %d in all; try again later",
			errNoSlot, q.PerPerson, q.Total, q.MaxQueuedPerPerson, q.MaxQueued)
	}
	person.waiting++
	at := len(q.waiting)
	if w.hadSlot {
		if at = slices.IndexFunc(q.waiting, func(other *waiter) bool { return !other.hadSlot }); at < 0 {
			at = len(q.waiting)
		}
	}
	q.waiting = slices.Insert(q.waiting, at, w)
	q.grantSlots()
	return nil
}

// grantSlots gives free places to waiting callers. The caller holds mu.
func (q *queue) grantSlots() {
	q.waiting = slices.DeleteFunc(q.waiting, func(w *waiter) bool {
		person := q.persons[w.person]
		if q.running >= q.Total || person.running >= q.PerPerson {
			return false
		}
		q.running++
		person.running, person.waiting = person.running+1, person.waiting-1
		close(w.ready)
		return true
	})
}

func (q *queue) release(of principal.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.persons[of].running--
	q.grantSlots()
	q.forgetIdle(of)
}

// dequeue removes a caller from the queue. It returns false if the caller has a place by now.
func (q *queue) dequeue(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	at := slices.Index(q.waiting, w)
	if at < 0 {
		return false
	}
	q.waiting = slices.Delete(q.waiting, at, at+1)
	q.persons[w.person].waiting--
	q.forgetIdle(w.person)
	return true
}

// forgetIdle deletes the counters of a person if all are zero. The caller holds mu.
func (q *queue) forgetIdle(of principal.Key) {
	if person := q.persons[of]; person.running == 0 && person.waiting == 0 {
		delete(q.persons, of)
	}
}

// A room bounds memory in bytes: in all, and of one person. It is safe for concurrent use.
type memoryBudget struct {
	total, perPerson int64

	mu         sync.Mutex
	reserved   int64
	reservedBy map[principal.Key]int64
}

// reserve reserves bytes if both bounds allow it.
func (r *memoryBudget) reserve(of principal.Key, bytes int) (giveBack func(), ok bool) {
	n := int64(bytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reserved+n > r.total || r.reservedBy[of]+n > r.perPerson {
		return nil, false
	}
	if r.reservedBy == nil {
		r.reservedBy = make(map[principal.Key]int64)
	}
	r.reserved += n
	r.reservedBy[of] += n
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reserved -= n
		if r.reservedBy[of] -= n; r.reservedBy[of] == 0 {
			delete(r.reservedBy, of)
		}
	}), true
}

// AcquireSlot implements [agent.Host].
func (h host) AcquireSlot(ctx context.Context, a *agent.Agent, back bool) (func(), error) {
	leave, err := h.turnQueue.acquire(ctx, principal.Person(a.Creator), back)
	if errors.Is(err, errNoSlot) {
		err = fmt.Errorf("%w: %w", agent.ErrPromptsFull, err)
	}
	return leave, err
}

// ReserveSnapshot implements [agent.Host].
func (h host) ReserveSnapshot(a *agent.Agent, bytes int) (func(), bool) {
	return h.snapshotMemory.reserve(principal.Person(a.Creator), bytes)
}
