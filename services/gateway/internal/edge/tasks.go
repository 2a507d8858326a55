package edge

import (
	"context"
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// taskPrefix begins the ids of the gateway's own tasks.
	taskPrefix = "sluice-task."
	// maxTasks is how many of them there may be for one principal, and for one person behind
	// principals. Where there are as many those that have ended make way.
	maxTasks = 64
	// maxTask is how large a call may be to become one, in bytes.
	maxTask = 1 << 20
	// taskKept is for how long a task is kept once nobody can decide on its call any more, or it has
	// ended, and taskPoll how often clients are told to ask.
	taskKept = 15 * time.Minute
	taskPoll = 2 * time.Second
)

// ofTasks is the room of tasks: that of one caller leaves room for others, and none is taken from answers.
func ofTasks() room.Limits {
	return room.Limits{Principal: 16 << 20, Person: 16 << 20, Server: 128 << 20, All: 128 << 20}
}

// The states of a task (MCP Tasks extension, Task Status).
const (
	taskWorking   = "working"
	taskCompleted = "completed"
	taskFailed    = "failed"
	taskCancelled = "cancelled"
)

// task is a call that waits for people while its client asks how it stands. The gateway makes it once,
// when its client asks and finds that they have approved it: one that nobody asks about does not run.
// It lives in this gateway alone; its approval outlives it. It is safe for concurrent use.
type task struct {
	id, owner, server string
	// head and message are the call as it came.
	head    http.Header
	message []byte
	// holder is whose room the task takes, and has what it takes.
	holder  room.Holder
	has     *room.Holding
	created time.Time
	// timer drops it.
	timer *time.Timer

	mu     sync.Mutex
	status string
	// approval is what the call waits for, or is made by.
	approval string
	// making ends the call while it is made; nil while it waits.
	making context.CancelFunc
	// cancelled says that its client wants it no longer.
	cancelled bool
	updated   time.Time
	until     time.Time
	end       taskEnd
	// told says that its client has been told the end.
	told bool
}

// taskEnd is what came of a task: a result or an error, raw. Both are nil where it was cancelled.
type taskEnd struct {
	result, fault jsontext.Value
	// unrecorded says that its outcome is not on record yet.
	unrecorded bool
}

// begin has the call made for an approval, by who is to be ended with cancel; false where somebody makes
// it already, or it has ended.
func (t *task) begin(cancel context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status != taskWorking || t.making != nil || t.cancelled {
		return false
	}
	t.making, t.updated = cancel, time.Now()
	return true
}

// waits is what a task waits for; false where it does not wait.
func (t *task) waits() (approval string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.approval, t.status == taskWorking && t.making == nil && !t.cancelled
}

// waitOn has a task whose call was not made wait on for its approval, or for another that nobody can use
// any more after this time; false where its client wants it no longer: then it has ended.
func (t *task) waitOn(approval string, expires time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.making, t.updated = nil, time.Now()
	if t.approval != approval {
		kept := keptUntil(expires)
		t.approval, t.until = approval, t.updated.Add(kept)
		t.timer.Reset(kept)
	}
	if t.cancelled {
		t.finish(taskCancelled, taskEnd{})
	}
	return !t.cancelled
}

// ended notes what came of a call that was made.
func (t *task) ended(status string, end taskEnd) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(status, end)
}

// cancel has the client want a task no longer. One that waits has ended with it, which is true; the call
// of one that is made is cancelled, and what came of that is its end.
func (t *task) cancel() (waited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.status != taskWorking || t.cancelled:
		return false
	case t.making != nil:
		t.cancelled = true
		t.making()
		return false
	}
	t.cancelled = true
	t.finish(taskCancelled, taskEnd{})
	return true
}

// finish needs the lock.
func (t *task) finish(status string, end taskEnd) {
	t.status, t.end, t.making = status, end, nil
	t.updated = time.Now()
	t.until = t.updated.Add(taskKept)
	t.timer.Reset(taskKept)
}

// taskStore keeps tasks. It is safe for concurrent use.
type taskStore struct {
	room *room.Room

	mu sync.Mutex
	by map[string]*task
	// of counts them.
	of *quota.Tally
}

func newTaskStore() (*taskStore, error) {
	own, err := room.New(ofTasks())
	tally := quota.NewTally("tasks", quota.Limits{Principal: maxTasks, Person: maxTasks})
	return &taskStore{room: own, by: make(map[string]*task), of: tally}, err
}

// hasPlace reports whether one more task may be kept for a holder; an ended one of the owner's may make way.
func (s *taskStore) hasPlace(of *room.Holder, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.isFull(of) || s.oldest(owner) != nil
}

// isFull and oldest need the lock.
func (s *taskStore) isFull(of *room.Holder) bool {
	return s.of.Full(&of.Accounts, 1) != nil
}

// oldest is the task of an owner that has ended first, and whose end was told; nil for none.
func (s *taskStore) oldest(owner string) (first *task) {
	var at time.Time
	for _, t := range s.by {
		t.mu.Lock()
		is, updated := t.owner == owner && t.told, t.updated
		t.mu.Unlock()
		if is && (first == nil || updated.Before(at)) {
			first, at = t, updated
		}
	}
	return first
}

// keep keeps a task that waits for an approval, which nobody can use any more after this time; false where
// there is no room for it.
func (s *taskStore) keep(t *task, expires time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isFull(&t.holder) {
		if oldest := s.oldest(t.owner); oldest != nil {
			s.forget(oldest)
		}
	}
	t.has = s.room.Open(&t.holder)
	size := room.Free + len(t.message) + headSize(t.head) // what of a holding costs nothing is for what is in flight
	if s.of.Take(&t.holder.Accounts, 1) != nil {
		return false
	}
	if !t.has.Add(size) {
		t.has.Close()
		s.of.Give(&t.holder.Accounts, 1)
		return false
	}
	t.has.Keep(size)
	t.id, t.status, t.created, t.updated = taskPrefix+rand.Text(), taskWorking, time.Now(), time.Now()
	kept := keptUntil(expires)
	t.until = t.created.Add(kept)
	t.timer = time.AfterFunc(kept, func() { s.drop(t) })
	s.by[t.id] = t
	return true
}

// keptUntil is for how long a task is kept whose approval nobody can use any more after this time.
func keptUntil(expires time.Time) time.Duration { return max(0, time.Until(expires)) + taskKept }

func headSize(h http.Header) (n int) {
	for name, lines := range h {
		for _, line := range lines {
			n += len(name) + len(line)
		}
	}
	return n
}

// drop forgets a task, and ends its call where that is being made.
func (s *taskStore) drop(t *task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(t)
}

// forget needs the lock.
func (s *taskStore) forget(t *task) {
	if s.by[t.id] != t {
		return
	}
	delete(s.by, t.id)
	s.of.Give(&t.holder.Accounts, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timer.Stop()
	if t.making != nil {
		t.making()
	}
	t.has.Close()
}

// find returns a task of this owner's; nil where there is none.
func (s *taskStore) find(id, owner string) *task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.by[id]; t != nil && t.owner == owner {
		return t
	}
	return nil
}

// waitsForIt reports whether another task waits for an approval.
func (s *taskStore) waitsForIt(but *task, approval string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.by {
		if waits, ok := t.waits(); ok && t != but && waits == approval {
			return true
		}
	}
	return false
}
