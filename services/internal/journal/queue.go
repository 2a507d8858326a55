package journal

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxGroup is how many records are written, and synced, at once at the most.
const maxGroup = 256

// soon is how soon after a group another is one of many callers': a lone one takes longer
// between its records.
const soon = 100 * time.Microsecond

// maxKept is how large a buffer may be that is kept for the next record.
const maxKept = 16 << 10

// entry is a record on its way to the disk.
type entry struct {
	rec  Record
	body bytes.Buffer
	// who is charged for its room.
	who []principal.Key
	// err is what came of it, set before its turn ends.
	err error
	// turn wakes the entry's owner: true to lead the next group, false when it is done.
	turn chan bool
}

func newEntry() any { return &entry{turn: make(chan bool, 1)} }

// recycle empties the entry, so that a pool keeps nothing of a call.
func (e *entry) recycle(pool *sync.Pool) {
	if e.body.Cap() > maxKept {
		return
	}
	e.rec, e.err = Record{}, nil
	clear(e.who)
	e.who = e.who[:0]
	e.body.Reset()
	pool.Put(e)
}

// queue makes groups of entries that come at the same time. Who finds nobody at work
// leads: it takes all that wait and commits them in one go, while others queue up
// behind it; then the first of those leads. Where the last group was a moment ago it first lets
// others go that can run: of callers that are as far as it is most get in. So a lone caller
// never waits for company, and a crowd shares its writes and syncs.
type queue struct {
	mu      sync.Mutex
	leading bool
	waiting []*entry
	group   []*entry // the leader's
	// last is when a group was done.
	last time.Time
}

// do commits e in a group and returns what came of it.
func (q *queue) do(ctx context.Context, e *entry, commit func(context.Context, []*entry)) error {
	q.mu.Lock()
	q.waiting = append(q.waiting, e)
	follows := q.leading
	q.leading = true
	q.mu.Unlock()
	if follows && !<-e.turn {
		return e.err
	}
	if now := time.Now(); now.Sub(q.last) < soon {
		runtime.Gosched()
	}
	group := q.take()
	commit(ctx, group)
	err := e.err
	for _, other := range group {
		if other != e {
			other.turn <- false
		}
	}
	q.last = time.Now()
	q.pass()
	return err
}

// take moves the entries that wait into the leader's group.
func (q *queue) take() []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxGroup)
	q.group = append(q.group[:0], q.waiting[:n]...)
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	return q.group
}

// pass ends the leader's turn.
func (q *queue) pass() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.group)
	if len(q.waiting) == 0 {
		q.leading = false
		return
	}
	q.waiting[0].turn <- true
}
