package journal

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxGroup is the maximum number of records that are written, and synced, at once.
const maxGroup = 256

// soon is the interval within which a group after another shows that there are many callers: a single caller takes
// longer between its records.
const soon = 100 * time.Microsecond

// maxKept is the maximum capacity of a buffer that is reused for another record.
const maxKept = 16 << 10

// entry is a record that is being written.
type entry struct {
	rec  Record
	body bytes.Buffer
	// who is charged for the record's size.
	who []principal.Key
	// err is the result, set before turn receives false.
	err error
	// turn wakes the entry's goroutine: true to lead the next group, false when the entry is done.
	turn chan bool
}

func newEntry() any { return &entry{turn: make(chan bool, 1)} }

// recycle empties the entry, so that the pool holds no data of a call.
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

// queue forms groups of concurrent entries. A caller that finds no leader becomes the leader: it takes all waiting
// entries and commits them at once, while others queue; then the first of those leads. If the last group was written
// a moment ago, the leader first yields the processor, so that most concurrent callers join its group. A single
// caller therefore never waits for others, and many callers share writes and syncs.
type queue struct {
	mu      sync.Mutex
	leading bool
	waiting []*entry
	group   []*entry // the leader's
	// last is when the last group was done.
	last time.Time
}

// do commits e as part of a group and returns the result.
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

// take moves the waiting entries into the leader's group.
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

// pass hands the lead to the first waiting entry, if there is one.
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
