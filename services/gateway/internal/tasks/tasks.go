// Package tasks stores the gateway's own tasks (MCP Tasks extension). A task is a call that waits for an approval while
// its client polls. When the client polls after the approval, the gateway sends the call, at most once. If the client
// does not poll, the call is never sent. A task exists in only one gateway instance. The approval can exist longer than
// the task.
package tasks

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// idPrefix is the prefix of the gateway's task ids.
	idPrefix = "sluice-task."
	// maxTasks is the maximum number of tasks of one principal. It is also the maximum number of tasks of all principals
	// of one person together. At the limit, a task whose final state the client has received is removed to make room.
	maxTasks = 64
	// MaxMessage limits the size of the message of a task, in bytes.
	MaxMessage = 1 << 20
	// retention is how long a task stays stored after its approval has expired or the task has ended.
	retention = 15 * time.Minute
	// pollInterval is how long clients should wait between two polls.
	pollInterval = 2 * time.Second
)

// quotas returns the memory quotas for tasks. They are separate from the quotas for answers, and no caller can use up
// all of the memory.
func quotas() limits.Quotas {
	return limits.Quotas{Principal: 16 << 20, Person: 16 << 20, Server: 128 << 20, All: 128 << 20}
}

// Status is the status of a task (MCP Tasks extension, Task Status).
type Status string

// These are the statuses of a task. All of them except Working are final.
const (
	Working   Status = "working"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Call is a call that waits for an approval.
type Call struct {
	// Owner identifies the owner of the task. No other caller can find the task.
	Owner string
	// Server is the configured name of the target server.
	Server string
	// Header contains the HTTP headers that repeat parts of the message, without credentials. It must not be changed.
	Header http.Header
	// Message is the JSON-RPC request. It must not be changed.
	Message []byte
	// Holder identifies the quotas that are charged for the task and its memory.
	Holder limits.Owner
}

// Outcome is the outcome of a task's call. It contains the result or the error, as raw JSON. Both are nil for a
// cancelled task.
type Outcome struct {
	Result, Error jsontext.Value
	// Unrecorded is true if the journal does not contain the outcome yet.
	Unrecorded bool
}

// Task is a call that waits for its approval, is running, or has ended. [Store.Add] creates tasks. A Task is safe for
// concurrent use.
type Task struct {
	Call

	id      string
	memory  *limits.Memory
	created time.Time
	// expiry is the timer that removes the task from the store.
	expiry *time.Timer

	mu     sync.Mutex
	status Status
	// approval is the id of the approval that the call waits for. While the call is running, approval is the id of the
	// approval that allowed the call.
	approval string
	// stop cancels the call. It is nil unless the call is running.
	stop context.CancelFunc
	// cancelled is true if the client has cancelled the task. If the call is then running, the task ends when the call
	// ends.
	cancelled bool
	updated   time.Time
	expires   time.Time
	outcome   Outcome
	// reported is true if the client has received the task's final state.
	reported bool
}

// State is the state of a task, in the form that its client receives.
type State struct {
	ID               string
	Status           Status
	Created, Updated time.Time
	// TTL is how long the task is stored, counted from Created. PollInterval is how long the client should wait between
	// two polls.
	TTL, PollInterval time.Duration
	// Running is true while the call is running.
	Running bool
	// Outcome is the zero value while Status is [Working].
	Outcome Outcome
}

// IsOwnID reports whether an id looks like the id of one of the gateway's own tasks.
func IsOwnID(id string) bool { return strings.HasPrefix(id, idPrefix) }

// Report returns the state of the task for its client. After Report has returned a final state, the task may be removed
// to make room.
func (t *Task) Report() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported = t.status != Working
	return State{
		ID: t.id, Status: t.status, Created: t.created.UTC(), Updated: t.updated.UTC(),
		TTL: t.expires.Sub(t.created), PollInterval: pollInterval, Running: t.stop != nil, Outcome: t.outcome,
	}
}

// AwaitedApproval returns the id of the approval that the task waits for. It returns false if the task does not wait.
func (t *Task) AwaitedApproval() (approval string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.approval, t.status == Working && t.stop == nil && !t.cancelled
}

// Begin marks the task's call as running. It returns false if the call is already running, or if the task has ended. If
// the client cancels the task, or the task is removed, while the call is running, stop is called.
func (t *Task) Begin(stop context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status != Working || t.stop != nil || t.cancelled {
		return false
	}
	t.stop, t.updated = stop, time.Now()
	return true
}

// Wait marks the task as waiting after its call was not sent. approval is the id of the approval that the task waits
// for, which can be a new approval. expires is the time when that approval expires. If the client has cancelled the
// task in the meantime, Wait ends the task and returns false.
func (t *Task) Wait(approval string, expires time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop, t.updated = nil, time.Now()
	if t.approval != approval {
		stored := storageTime(expires)
		t.approval, t.expires = approval, t.updated.Add(stored)
		t.expiry.Reset(stored)
	}
	if t.cancelled {
		t.finish(Cancelled, Outcome{})
	}
	return !t.cancelled
}

// Reserve charges memory to the task for an outcome of the given size in bytes. It reports whether there was enough
// memory.
func (t *Task) Reserve(size int) bool { return t.memory.Add(size) }

// End sets the final state of a task after its call.
func (t *Task) End(status Status, outcome Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(status, outcome)
}

// Cancel cancels the task. If the task waits for an approval, Cancel ends it and returns true. If the call is running,
// Cancel stops the call and returns false, and the task ends with the outcome of the stopped call.
func (t *Task) Cancel() (waited bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.status != Working || t.cancelled:
		return false
	case t.stop != nil:
		t.cancelled = true
		t.stop()
		return false
	}
	t.cancelled = true
	t.finish(Cancelled, Outcome{})
	return true
}

// finish sets the final state. The caller must hold the lock.
func (t *Task) finish(status Status, outcome Outcome) {
	t.status, t.outcome, t.stop = status, outcome, nil
	t.updated = time.Now()
	t.expires = t.updated.Add(retention)
	t.expiry.Reset(retention)
}

// Store contains tasks. It is safe for concurrent use.
type Store struct {
	memory *limits.Budget

	mu    sync.Mutex
	byID  map[string]*Task
	count *quota.Tally
}

// NewStore returns an empty store.
func NewStore() (*Store, error) {
	memory, err := limits.NewBudget(quotas())
	count := quota.NewTally("tasks", quota.Limits{Principal: maxTasks, Person: maxTasks})
	return &Store{memory: memory, byID: make(map[string]*Task), count: count}, err
}

// HasCapacity reports whether one more task may be charged to the given quotas. HasCapacity also returns true if one of
// the owner's tasks can be removed to make room.
func (s *Store) HasCapacity(of *limits.Owner, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count.Full(&of.Accounts, 1) == nil || s.removable(owner) != nil
}

// removable returns the owner's oldest ended task whose final state the client has received. It returns nil if there is
// no such task. The caller must hold the lock.
func (s *Store) removable(owner string) (first *Task) {
	var at time.Time
	for _, t := range s.byID {
		t.mu.Lock()
		is, updated := t.Owner == owner && t.reported, t.updated
		t.mu.Unlock()
		if is && (first == nil || updated.Before(at)) {
			first, at = t, updated
		}
	}
	return first
}

// Add stores a call that waits for an approval. approval is the id of that approval, and expires is the time when the
// approval expires. Add returns nil if there are too many tasks or there is not enough memory.
func (s *Store) Add(call Call, approval string, expires time.Time) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &Task{Call: call, approval: approval, id: idPrefix + rand.Text(), status: Working, created: time.Now()}
	if s.count.Full(&t.Holder.Accounts, 1) != nil {
		if old := s.removable(t.Owner); old != nil {
			s.remove(old)
		}
	}
	if s.count.Acquire(&t.Holder.Accounts, 1) != nil {
		return nil
	}
	t.memory = s.memory.Open(&t.Holder)
	// A Memory of up to UncountedBytes is not charged to the budget, but every stored task must be charged. Add therefore
	// adds UncountedBytes.
	size := limits.UncountedBytes + len(t.Message) + headerSize(t.Header)
	if !t.memory.Add(size) {
		t.memory.Close()
		s.count.Release(&t.Holder.Accounts, 1)
		return nil
	}
	t.memory.Settle(size)
	stored := storageTime(expires)
	t.updated, t.expires = t.created, t.created.Add(stored)
	t.expiry = time.AfterFunc(stored, func() { s.expire(t) })
	s.byID[t.id] = t
	return t
}

// storageTime returns how long to store a task whose approval expires at the given time.
func storageTime(expires time.Time) time.Duration { return max(0, time.Until(expires)) + retention }

func headerSize(h http.Header) (n int) {
	for name, lines := range h {
		for _, line := range lines {
			n += len(name) + len(line)
		}
	}
	return n
}

func (s *Store) expire(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(t)
}

// remove removes a task. The caller must hold the lock.
func (s *Store) remove(t *Task) {
	if s.byID[t.id] != t {
		return
	}
	delete(s.byID, t.id)
	s.count.Release(&t.Holder.Accounts, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiry.Stop()
	if t.stop != nil {
		t.stop()
	}
	t.memory.Close()
}

// Find returns the owner's task with the given id, or nil if there is none.
func (s *Store) Find(id, owner string) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byID[id]; t != nil && t.Owner == owner {
		return t
	}
	return nil
}

// IsAwaited reports whether a task waits for the approval. It ignores the task excluded.
func (s *Store) IsAwaited(approval string, excluded *Task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.byID {
		if awaited, ok := t.AwaitedApproval(); ok && t != excluded && awaited == approval {
			return true
		}
	}
	return false
}
