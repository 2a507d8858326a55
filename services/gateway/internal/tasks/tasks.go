// Package tasks stores the gateway's own tasks (MCP Tasks extension): calls that wait for an approval while their
// client polls. The gateway makes the call of a task once, when its client polls after the call was approved. A task
// that is not polled never runs. A task exists in one gateway only; its approval outlives it.
package tasks

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/room"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const (
	// idPrefix begins the ids of the gateway's own tasks.
	idPrefix = "sluice-task."
	// maxTasks is how many tasks one principal may have, and how many all principals of one person may have together.
	// If the limit is reached, tasks whose final state was reported are removed first.
	maxTasks = 64
	// MaxMessage is the maximum size of the message of a task, in bytes.
	MaxMessage = 1 << 20
	// retention is how long a task is stored after its approval has expired, or after it has ended.
	retention = 15 * time.Minute
	// pollInterval is how often clients are asked to poll.
	pollInterval = 2 * time.Second
)

// limits are the memory limits of tasks. They are separate from those of answers, and one caller cannot use all
// memory.
func limits() room.Limits {
	return room.Limits{Principal: 16 << 20, Person: 16 << 20, Server: 128 << 20, All: 128 << 20}
}

// Status is the state of a task as clients receive it (MCP Tasks extension, Task Status).
type Status string

// The states of a task. Working is the only one that is not final.
const (
	Working   Status = "working"
	Completed Status = "completed"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Call is a call that waits for an approval.
type Call struct {
	// Owner identifies the owner of the task: only the owner finds it again.
	Owner string
	// Server is the configured name of the server that gets the call.
	Server string
	// Header contains the headers that repeat parts of the message, without credentials. It must not be changed.
	Header http.Header
	// Message is the JSON-RPC request. It must not be changed.
	Message []byte
	// Holder is the holder whose memory and number of tasks the task counts against.
	Holder room.Holder
}

// Outcome is the result of the call or its JSON-RPC error, as raw JSON. Both are nil for a cancelled task.
type Outcome struct {
	Result, Error jsontext.Value
	// Unrecorded reports whether the outcome is not on record yet.
	Unrecorded bool
}

// Task is a call that waits, is being made, or has ended. [Store.Add] returns one. It is safe for concurrent use.
type Task struct {
	Call

	id      string
	memory  *room.Holding
	created time.Time
	// expiry removes the task from its store.
	expiry *time.Timer

	mu     sync.Mutex
	status Status
	// approval is the id of the approval for which the call waits, or by which it is made.
	approval string
	// stop cancels the call while it is being made; nil otherwise.
	stop context.CancelFunc
	// cancelled reports whether the client has cancelled the task. A call that is being made ends first.
	cancelled bool
	updated   time.Time
	expires   time.Time
	outcome   Outcome
	// reported reports whether the client has received the final state.
	reported bool
}

// State is what a client receives about a task.
type State struct {
	ID               string
	Status           Status
	Created, Updated time.Time
	// TTL is how long after Created the task is stored. PollInterval is how long the client should wait between
	// polls.
	TTL, PollInterval time.Duration
	// Running reports whether the call is being made now.
	Running bool
	// Outcome is zero while Status is [Working].
	Outcome Outcome
}

// IsOwnID reports whether an id has the form of the ids of the gateway's own tasks.
func IsOwnID(id string) bool { return strings.HasPrefix(id, idPrefix) }

// Report returns the state of the task for its client. A task whose final state was reported may be removed early.
func (t *Task) Report() State {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reported = t.status != Working
	return State{
		ID: t.id, Status: t.status, Created: t.created.UTC(), Updated: t.updated.UTC(),
		TTL: t.expires.Sub(t.created), PollInterval: pollInterval, Running: t.stop != nil, Outcome: t.outcome,
	}
}

// Awaited returns the id of the approval for which the task waits. It returns false if the task does not wait.
func (t *Task) Awaited() (approval string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.approval, t.status == Working && t.stop == nil && !t.cancelled
}

// Begin notes that the caller makes the call now. It returns false if the call is already being made, or if the task
// has ended. Cancelling the task calls stop.
func (t *Task) Begin(stop context.CancelFunc) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.status != Working || t.stop != nil || t.cancelled {
		return false
	}
	t.stop, t.updated = stop, time.Now()
	return true
}

// Wait notes that the call was not made and that the task waits again, for the same approval or for another one that
// expires at this time. It returns false if the client has cancelled the task meanwhile: then the task has ended.
func (t *Task) Wait(approval string, expires time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stop, t.updated = nil, time.Now()
	if t.approval != approval {
		stored := storedFor(expires)
		t.approval, t.expires = approval, t.updated.Add(stored)
		t.expiry.Reset(stored)
	}
	if t.cancelled {
		t.finish(Cancelled, Outcome{})
	}
	return !t.cancelled
}

// Reserve reserves memory of the owner for an outcome of this size, in bytes, and reports whether there was enough.
func (t *Task) Reserve(size int) bool { return t.memory.Add(size) }

// End notes the final state of a call that was made.
func (t *Task) End(status Status, outcome Outcome) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.finish(status, outcome)
}

// Cancel cancels the task. It reports whether the task was waiting and has ended. If the call is being made, Cancel
// stops it; the outcome of the call is then that of the task.
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

// finish sets the final state. The caller holds the lock.
func (t *Task) finish(status Status, outcome Outcome) {
	t.status, t.outcome, t.stop = status, outcome, nil
	t.updated = time.Now()
	t.expires = t.updated.Add(retention)
	t.expiry.Reset(retention)
}

// Store stores tasks. It is safe for concurrent use.
type Store struct {
	memory *room.Room

	mu    sync.Mutex
	byID  map[string]*Task
	count *quota.Tally
}

// NewStore returns an empty store.
func NewStore() (*Store, error) {
	memory, err := room.New(limits())
	count := quota.NewTally("tasks", quota.Limits{Principal: maxTasks, Person: maxTasks})
	return &Store{memory: memory, byID: make(map[string]*Task), count: count}, err
}

// HasCapacity reports whether a holder may have one more task. It returns true also if a task of the owner can be
// removed for it.
func (s *Store) HasCapacity(of *room.Holder, owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count.Full(&of.Accounts, 1) == nil || s.removable(owner) != nil
}

// removable returns, of the owner's tasks whose final state was reported, the one that ended first; nil if there is
// none. The caller holds the lock.
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

// Add stores a call that waits for an approval, which expires at this time. It returns nil if the holder has too many
// tasks or not enough memory.
func (s *Store) Add(call Call, approval string, expires time.Time) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &Task{Call: call, approval: approval, id: idPrefix + rand.Text(), status: Working, created: time.Now()}
	if s.count.Full(&t.Holder.Accounts, 1) != nil {
		if old := s.removable(t.Owner); old != nil {
			s.remove(old)
		}
	}
	if s.count.Take(&t.Holder.Accounts, 1) != nil {
		return nil
	}
	t.memory = s.memory.Open(&t.Holder)
	size := room.Free + len(t.Message) + headerSize(t.Header) // the free part of a holding is for requests in flight
	if !t.memory.Add(size) {
		t.memory.Close()
		s.count.Give(&t.Holder.Accounts, 1)
		return nil
	}
	t.memory.Keep(size)
	stored := storedFor(expires)
	t.updated, t.expires = t.created, t.created.Add(stored)
	t.expiry = time.AfterFunc(stored, func() { s.expire(t) })
	s.byID[t.id] = t
	return t
}

// storedFor returns how long a task is stored whose approval expires at this time.
func storedFor(expires time.Time) time.Duration { return max(0, time.Until(expires)) + retention }

func headerSize(h http.Header) (n int) {
	for name, lines := range h {
		for _, line := range lines {
			n += len(name) + len(line)
		}
	}
	return n
}

// expire removes a task, and stops its call if that is being made.
func (s *Store) expire(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(t)
}

// remove removes a task. The caller holds the lock.
func (s *Store) remove(t *Task) {
	if s.byID[t.id] != t {
		return
	}
	delete(s.byID, t.id)
	s.count.Give(&t.Holder.Accounts, 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expiry.Stop()
	if t.stop != nil {
		t.stop()
	}
	t.memory.Close()
}

// Find returns the task of an owner with this id; nil if the owner has none.
func (s *Store) Find(id, owner string) *Task {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.byID[id]; t != nil && t.Owner == owner {
		return t
	}
	return nil
}

// IsAwaited reports whether a task other than this one waits for an approval.
func (s *Store) IsAwaited(approval string, other *Task) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.byID {
		if awaited, ok := t.Awaited(); ok && t != other && awaited == approval {
			return true
		}
	}
	return false
}
