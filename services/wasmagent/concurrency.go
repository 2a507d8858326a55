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

// ConcurrencyLimits limits how many calls run at the same time and how many calls wait. Each running call holds a slot.
// A field that is zero stands for the default.
type ConcurrencyLimits struct {
	// Total is the number of slots. PerPerson limits how many slots the calls of one person may hold.
	Total, PerPerson int
	// MaxQueued limits how many calls may wait for a slot. MaxQueuedPerPerson limits how many of them may belong to one
	// person. Further calls are refused.
	MaxQueued, MaxQueuedPerPerson int
	// MaxWait limits how long a call waits for a slot.
	MaxWait time.Duration
}

// withDefaults replaces each field that is zero with the default. A default for one person is lowered to the
// corresponding limit for all persons.
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

// errNoSlot means that no slot is free. The error that wraps it contains the reason.
var errNoSlot = errors.New("no slot is free")

// A queue grants slots to calls in the order in which they arrive. If a person already has the maximum number of slots,
// the queue skips that person's calls and grants slots to later calls. It is safe for concurrent use.
type queue struct {
	ConcurrencyLimits

	mu      sync.Mutex
	running int
	persons map[principal.Key]*personCounts
	waiting []*waiter
}

type personCounts struct{ running, waiting int }

type waiter struct {
	person principal.Key
	// hadSlot is true if a turn has released its slot and now needs a slot to continue. Such a turn takes precedence
	// over new calls. The queue's limits do not apply to it, because it has been admitted before.
	hadSlot bool
	ready   chan struct{}
}

func newQueue(p ConcurrencyLimits) *queue {
	return &queue{ConcurrencyLimits: p, persons: make(map[principal.Key]*personCounts)}
}

// acquire waits for a slot until ctx is done. Unless hadSlot is true, it waits for at most MaxWait. The caller must
// call the returned function to release the slot. acquire returns an error that wraps [errNoSlot], or the error of ctx.
func (q *queue) acquire(ctx context.Context, person principal.Key, hadSlot bool) (leave func(), err error) {
	w := &waiter{person: person, hadSlot: hadSlot, ready: make(chan struct{})}
	if err := q.enqueue(w); err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(func() { q.release(person) })
	var timeout <-chan time.Time
	if !hadSlot {
		timer := time.NewTimer(q.MaxWait)
		defer timer.Stop()
		timeout = timer.C
	}
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout:
		err = fmt.Errorf("%w: none was free for %s", errNoSlot, q.MaxWait)
	}
	if !q.dequeue(w) {
		return leave, nil // a slot was granted before the call left the queue
	}
	return nil, err
}

// enqueue adds a call to the queue, and then grants the free slots. It returns an error that wraps [errNoSlot] if the
// queue is full.
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

// grantSlots grants free slots to waiting calls. The caller must hold mu.
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

func (q *queue) release(person principal.Key) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.running--
	q.persons[person].running--
	q.grantSlots()
	q.forgetIdle(person)
}

// dequeue removes a waiting call from the queue. It returns false if the call already has a slot.
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

// forgetIdle deletes a person's counters if none of the person's calls is running or waiting. The caller must hold mu.
func (q *queue) forgetIdle(key principal.Key) {
	if person := q.persons[key]; person.running == 0 && person.waiting == 0 {
		delete(q.persons, key)
	}
}

// A memoryBudget limits how much memory can be reserved in total and for each person. All sizes are in bytes. A
// memoryBudget is safe for concurrent use.
type memoryBudget struct {
	total, perPerson int64

	mu         sync.Mutex
	reserved   int64
	reservedBy map[principal.Key]int64
}

// reserve reserves memory. It returns false if this would exceed a limit. The returned function releases the
// reservation; further calls of this function do nothing.
func (r *memoryBudget) reserve(person principal.Key, bytes int) (giveBack func(), ok bool) {
	n := int64(bytes)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reserved+n > r.total || r.reservedBy[person]+n > r.perPerson {
		return nil, false
	}
	if r.reservedBy == nil {
		r.reservedBy = make(map[principal.Key]int64)
	}
	r.reserved += n
	r.reservedBy[person] += n
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.reserved -= n
		if r.reservedBy[person] -= n; r.reservedBy[person] == 0 {
			delete(r.reservedBy, person)
		}
	}), true
}

// AcquireSlot implements [agent.Host].
func (h host) AcquireSlot(ctx context.Context, a *agent.Agent, hadSlot bool) (func(), error) {
	leave, err := h.turnQueue.acquire(ctx, principal.Person(a.Creator), hadSlot)
	if errors.Is(err, errNoSlot) {
		err = fmt.Errorf("%w: %w", agent.ErrPromptsFull, err)
	}
	return leave, err
}

// ReserveSnapshot implements [agent.Host].
func (h host) ReserveSnapshot(a *agent.Agent, bytes int) (func(), bool) {
	return h.snapshotMemory.reserve(principal.Person(a.Creator), bytes)
}
