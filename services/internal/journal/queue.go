package journal

import (
	"bytes"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/principal"
)

// maxGroup limits how many records are written and synced together.
const maxGroup = 256

// A single caller needs at least groupInterval between two records. If less time passes between two groups, the queue
// assumes that there are several callers.
const groupInterval = 100 * time.Microsecond

// maxReusedBuffer is the maximum capacity in bytes of a buffer that is reused for another record.
const maxReusedBuffer = 16 << 10

// entry is a record that is being written.
type entry struct {
	rec  Record
	body bytes.Buffer
	// accounts contains the principals to whose quotas the record's size is charged.
	accounts []principal.Key
	// err is the result of the entry. It is set before wake receives false.
	err error
	// wake wakes the goroutine that waits for the entry. If the value is true, the goroutine becomes the leader of the
	// next group. If the value is false, the entry is done.
	wake chan bool
}

func newEntry() any { return &entry{wake: make(chan bool, 1)} }

// recycle clears the entry and returns it to the pool. Clearing ensures that the pool does not retain data of a call.
func (e *entry) recycle(pool *sync.Pool) {
	if e.body.Cap() > maxReusedBuffer {
		return
	}
	e.rec, e.err = Record{}, nil
	clear(e.accounts)
	e.accounts = e.accounts[:0]
	e.body.Reset()
	pool.Put(e)
}

// queue forms groups of concurrent entries. If there is no leader, a caller becomes the leader. The leader commits all
// waiting entries together. Meanwhile, new entries wait. After that, the caller of the first waiting entry leads the
// next group.
//
// If the previous group was written less than groupInterval ago, the leader first yields the processor, so that most
// concurrent callers join its group. Therefore a single caller never waits for other callers, and many callers share
// writes and syncs.
type queue struct {
	mu      sync.Mutex
	leading bool
	waiting []*entry
	group   []*entry // the entries that the leader commits
	// last is the time at which the last group was committed.
	last time.Time
}

// do commits e as part of a group and returns the error of e.
func (q *queue) do(ctx context.Context, e *entry, commit func(context.Context, []*entry)) error {
	q.mu.Lock()
	q.waiting = append(q.waiting, e)
	follows := q.leading
	q.leading = true
	q.mu.Unlock()
	if follows && !<-e.wake {
		return e.err
	}
	if now := time.Now(); now.Sub(q.last) < groupInterval {
		runtime.Gosched()
	}
	group := q.nextGroup()
	commit(ctx, group)
	err := e.err
	for _, other := range group {
		if other != e {
			other.wake <- false
		}
	}
	q.last = time.Now()
	q.passLead()
	return err
}

// nextGroup moves waiting entries to the leader's group.
func (q *queue) nextGroup() []*entry {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(q.waiting), maxGroup)
	q.group = append(q.group[:0], q.waiting[:n]...)
	rest := copy(q.waiting, q.waiting[n:])
	clear(q.waiting[rest:])
	q.waiting = q.waiting[:rest]
	return q.group
}

// passLead makes the caller of the first waiting entry the leader, if there is a waiting entry.
func (q *queue) passLead() {
	q.mu.Lock()
	defer q.mu.Unlock()
	clear(q.group)
	if len(q.waiting) == 0 {
		q.leading = false
		return
	}
	q.waiting[0].wake <- true
}
