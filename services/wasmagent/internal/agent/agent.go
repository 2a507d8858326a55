// Package agent implements a single agent, including its states, its turns and its stored form. An agent's program is a
// WebAssembly guest. When the guest requests an effect, the package carries out or refuses the effect and records it in
// the agent's journal. The wasmagent service uses the package.
package agent

import (
	"errors"
	"fmt"
	"sync"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/manifest"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// Tombstone is how long a terminated agent can still be resumed.
const Tombstone = time.Hour

// The methods of an agent return these errors. Compare them with [errors.Is].
var (
	// ErrBusy means that the agent is working on another prompt.
	ErrBusy = errors.New("the agent works on another prompt")
	// ErrTerminated means that the agent has ended.
	ErrTerminated = errors.New("the agent has ended")
	// ErrStopped means that the agent does not accept prompts. [Agent.Proto] returns the reason.
	ErrStopped = errors.New("the agent is stopped")
	// ErrFailed means that the guest failed and the turn was undone.
	ErrFailed = errors.New("the agent failed")
	// ErrTurnFailed means that the guest reported that its turn failed. The turn is not undone.
	ErrTurnFailed = errors.New("the turn failed")
	// ErrTurnsSpent means that the agent has used all the turns that max_turns allows.
	ErrTurnsSpent = errors.New("the agent has used all of its turns: raise max_turns")
	// ErrStoppedByOperator means that an operator stopped the agent. Only an operator can resume it.
	ErrStoppedByOperator = errors.New("an operator stopped the agent, and only an operator resumes it")
	// ErrPromptsFull means that too many prompts are waiting, or that the prompt waited too long for a slot. In both
	// cases, nothing was changed.
	ErrPromptsFull = errors.New("the prompt can't start")
	// ErrUnavailable means that guests can't run at the moment. Nothing was changed.
	ErrUnavailable = errors.New("agents can't be run now")
	// ErrNotStored means that a change could not be stored reliably. It may or may not have been stored.
	ErrNotStored = errors.New("agents can't be stored now")
	// ErrTurnLost takes the place of [ErrUnavailable] or [ErrNotStored] if the turn has already made calls, because
	// these can't be undone.
	ErrTurnLost = errors.New("the turn was undone, except for the calls that it made: agents can't be run now")
	// ErrTodosInvalid means that a todo list is invalid. ErrTodosFull means that a todo list has too many entries.
	ErrTodosInvalid = errors.New("is not a valid todo list")
	ErrTodosFull    = fmt.Errorf("a todo list has at most %d entries", maxTodos)
	// ErrSnapshotUnknown means that the agent has no such snapshot. ErrSnapshotsFull means that the agent can have no
	// more snapshots.
	ErrSnapshotUnknown = errors.New("the agent has no such snapshot")
	ErrSnapshotsFull   = fmt.Errorf("the agent has the maximum of %d snapshots", maxSnapshots)
	// ErrJournalTooLarge means that the agent's journal is too large to be copied to a fork.
	ErrJournalTooLarge = fmt.Errorf("the agent can't be forked: its journal has more than %d MiB", maxForkedJournal>>20)
	// ErrGrantUnknown means that the agent has no such grant. ErrGrantsFull means that the agent can have no more
	// grants.
	ErrGrantUnknown = errors.New("the agent has no such grant")
	ErrGrantsFull   = fmt.Errorf("the agent has the maximum of %d grants: withdraw some", maxGrants)
	// ErrStateDiffers means that the stored agent differs from its journal.
	ErrStateDiffers = errors.New("the stored agent differs from its journal")
	// ErrNotCovered means that the journal does not record the content of all stored parts.
	ErrNotCovered = errors.New("the agent's journal does not record all of its stored parts, because an earlier release created it: an archive of the agent is signed only with accept_not_covered (agents export --not-covered)")
)

// Limits limits the resources that an agent may use.
type Limits struct {
	// Memory limits the memory of the guest, in bytes.
	Memory int64
	// Fuel, Effects and Deadline apply to each turn. Fuel limits the instructions that the guest executes. The time
	// during which a turn waits does not count toward the deadline.
	Fuel     int64
	Effects  int
	Deadline time.Duration
}

// Spec contains the properties that an agent gets when it is created. It is immutable.
type Spec struct {
	ID string
	// Creator is the principal that created the agent.
	Creator *identityv1.Principal
	// Template is the id of the template from which the agent was created, or empty.
	Template string
	// Guest is the name of the guest. ModuleDigest is the digest of the guest's module when the agent was created.
	Guest, ModuleDigest string
	// Instructions is the first message of each conversation. It may be empty.
	Instructions string
	// MaxTurns limits how many turns the agent may have. A caller that resumes the agent can raise the limit.
	MaxTurns int
	// Config is the configuration from the request that created the agent.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Manifest contains the agent's rights. If it is nil, the agent has no rights.
	Manifest  *wasmagentv1.Manifest
	CreatedAt time.Time
	// ForkedFrom is the id of the agent from which this agent was forked, or empty. ImportedDigest is the digest of the
	// archive from which this agent was imported, or empty.
	ForkedFrom, ImportedDigest string
	// JournalID is the id of the agent whose creation is the first event of the journal. For a copy, this is the
	// original agent. JournalCreatedAt is when that agent was created.
	JournalID        string
	JournalCreatedAt time.Time
}

// Deps contains the dependencies of an agent. All fields except YieldAfter are required.
type Deps struct {
	Workers *worker.Supervisor
	Host    Host
	Store   *store.Store
	// YieldAfter is how long a turn waits for a call or sleeps before the guest releases its slot. If it is 0, the
	// guest releases its slot immediately.
	YieldAfter time.Duration
}

func (d Deps) validate() error {
	if d.Workers == nil || d.Host == nil || d.Store == nil {
		return errors.New("agent: workers, a host and a store are required")
	}
	return nil
}

// Agent is a single agent. It is safe for concurrent use. Methods that only read do not wait for a running turn.
type Agent struct {
	Spec
	Deps

	position int64

	mu sync.Mutex
	state
	savedRecord *wasmstorev1.Record
	// turn is the running turn, or nil if no turn runs in this process. changeDone is closed when the current change to
	// the agent ends, and is nil if the agent is not being changed.
	turn       *turn
	changeDone chan struct{}
	// snapshotBytes is the size of the guest's snapshot, and is set only while the guest has released its slot.
	// inventoryBytes is the size of the journal's inventory. Both sizes are in bytes.
	snapshotBytes, inventoryBytes int
	// runsElsewhere is true if another process runs the agent's turn. In that case, elsewhereWaiting describes the
	// approval for which the turn waits, or is nil if the turn waits for none.
	runsElsewhere    bool
	elsewhereWaiting *wasmagentv1.Waiting
	// stale is true if the agent in memory may differ from the stored agent, so that it must be loaded again.
	stale bool
	// damage is not nil if the agent must not be changed because its journal is damaged or because the stored agent
	// differs from its journal.
	damage error

	// eventsStored is closed when further events have been stored. It is nil if no caller waits for them.
	eventsStored chan struct{}

	// Only the running turn, or the goroutine that has set changeDone, may use journal. mu does not guard it.
	journal journal
}

// Rights returns the rights that the agent has because of its manifest and its grants.
func (a *Agent) Rights() *manifest.Rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	return manifest.New(a.Manifest, a.grants...)
}

// Position returns the agent's position in the order in which agents were created. Newer agents have higher positions.
func (a *Agent) Position() int64 { return a.position }

// Size returns the size of the agent in memory, in bytes.
func (a *Agent) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.Instructions) + a.messageBytes + a.files.Bytes() + len(a.memory) + a.snapshotBytes + a.inventoryBytes
	for _, todo := range a.todos {
		n += len(todo.GetContent())
	}
	return n
}

// IsStale reports whether the agent must be loaded again.
func (a *Agent) IsStale() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stale
}

// Damage returns the error that prevents changes to the agent because its journal is damaged or because the stored
// agent differs from its journal. It returns nil if no such problem is known.
func (a *Agent) Damage() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.damage
}

// HasTurn reports whether a turn of the agent is running in this process.
func (a *Agent) HasTurn() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn != nil
}

// RunsElsewhere reports whether a turn of the agent is running in another process.
func (a *Agent) RunsElsewhere() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runsElsewhere
}

// Version returns the version of the agent's database row when this process last read or wrote the row. The version
// also increases while a turn is running.
func (a *Agent) Version() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.journal.version
}

// IsGone reports whether the agent has ended and can no longer be resumed.
func (a *Agent) IsGone(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorableUntil)
}

// HasEnded reports whether the agent has ended. An agent that has ended can be resumed for some time.
func (a *Agent) HasEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// UpdateFiles calls do with a copy of the agent's files. If do returns a message, UpdateFiles stores the copy and
// records the message in the journal. If the message is empty, UpdateFiles stores nothing. It returns [ErrTerminated],
// [ErrBusy] if a turn is running, or the error that do returned.
func (a *Agent) UpdateFiles(caller Caller, do func(f *files.Files) (message string, err error)) error {
	return a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.files = next.files.Clone()
		message, err := do(next.files)
		if err != nil || message == "" {
			return nil, err
		}
		return lifecycleEvent(next, caller, message), nil
	})
}

// SetTodos replaces the todo list. It returns [ErrTodosInvalid], [ErrTodosFull], [ErrTerminated] or [ErrBusy].
func (a *Agent) SetTodos(caller Caller, todos []*wasmagentv1.Todo) error {
	if err := checkTodos(todos); err != nil {
		return err
	}
	return a.changeState(caller.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.todos = todos
		return lifecycleEvent(next, caller, fmt.Sprintf("write_todos: %d", len(todos))), nil
	})
}

func checkTodos(todos []*wasmagentv1.Todo) error {
	if len(todos) > maxTodos {
		return ErrTodosFull
	}
	for i, t := range todos {
		switch {
		case t.GetContent() == "" || len(t.GetContent()) > maxTodoBytes:
			return fmt.Errorf("%w: the content of entry %d must have 1 to %d bytes", ErrTodosInvalid, i, maxTodoBytes)
		case t.GetStatus() == wasmagentv1.TodoStatus_TODO_STATUS_UNSPECIFIED:
			return fmt.Errorf("%w: the status of entry %d must be pending, in_progress or completed", ErrTodosInvalid, i)
		}
	}
	return nil
}
