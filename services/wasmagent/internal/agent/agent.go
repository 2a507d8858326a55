// Package agent implements a single agent: its states, its turns, and its stored form. It carries out or refuses each
// effect that the agent's guest asks for, and records the effect in the agent's journal. The wasmagent service uses the
// package.
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

// Tombstone is how long a terminated agent can be resumed.
const Tombstone = time.Hour

// Errors of an agent, for [errors.Is].
var (
	// ErrBusy means that the agent works on another prompt.
	ErrBusy = errors.New("the agent works on another prompt")
	// ErrTerminated means that the agent has ended.
	ErrTerminated = errors.New("the agent has ended")
	// ErrStopped means that the agent does not take prompts. [Agent.Proto] has the reason.
	ErrStopped = errors.New("the agent is stopped")
	// ErrFailed means that the guest failed and the turn was undone.
	ErrFailed = errors.New("the agent failed")
	// ErrTurnFailed means that the guest reported the failure of its turn. The turn counts.
	ErrTurnFailed = errors.New("the turn failed")
	// ErrTurnsSpent means that the agent has used all turns of its max_turns.
	ErrTurnsSpent = errors.New("the agent has used all of its turns: raise max_turns")
	// ErrStoppedByOperator means that an operator stopped the agent. Only an operator can resume it.
	ErrStoppedByOperator = errors.New("an operator stopped the agent, and only an operator resumes it")
	// ErrPromptsFull means that too many prompts wait, or that the wait for a slot took too long. Nothing was changed.
	ErrPromptsFull = errors.New("the prompt can't start")
	// ErrUnavailable means that guests can't be run now. Nothing was changed.
	ErrUnavailable = errors.New("agents can't be run now")
	// ErrNotStored means that storing failed. The change may have been stored or not.
	ErrNotStored = errors.New("agents can't be stored now")
	// ErrTurnLost means the same as [ErrUnavailable] or [ErrNotStored] for a turn that made calls. The calls can't be
	// undone.
	ErrTurnLost = errors.New("the turn was undone, except for the calls that it made: agents can't be run now")
	// ErrTodosInvalid means that a todo list is invalid, and ErrTodosFull that it has too many entries.
	ErrTodosInvalid = errors.New("is not a valid todo list")
	ErrTodosFull    = fmt.Errorf("a todo list has at most %d entries", maxTodos)
	// ErrSnapshotUnknown means that the agent does not have the snapshot, and ErrSnapshotsFull that it has the maximum
	// number.
	ErrSnapshotUnknown = errors.New("the agent has no such snapshot")
	ErrSnapshotsFull   = fmt.Errorf("the agent has the maximum of %d snapshots", maxSnapshots)
	// ErrJournalTooLarge means that the agent's journal is too large to be copied to a fork.
	ErrJournalTooLarge = fmt.Errorf("the agent can't be forked: its journal has more than %d MiB", maxForkedJournal>>20)
	// ErrGrantUnknown means that the agent does not have the grant, and ErrGrantsFull that it has the maximum number.
	ErrGrantUnknown = errors.New("the agent has no such grant")
	ErrGrantsFull   = fmt.Errorf("the agent has the maximum of %d grants: withdraw some", maxGrants)
	// ErrStateDiffers means that the stored agent differs from what its journal records.
	ErrStateDiffers = errors.New("the stored agent differs from its journal")
	// ErrNotCovered means that the journal does not record the content of all stored parts.
	ErrNotCovered = errors.New("the agent's journal does not record all of its stored parts, because an earlier release created it: an archive of the agent is signed only with accept_not_covered (agents export --not-covered)")
)

// Limits bound the work of an agent.
type Limits struct {
	// Memory bounds the memory of the guest, in bytes.
	Memory int64
	// Fuel, Effects and Deadline apply to each turn. The deadline does not count the time in which the turn waits.
	Fuel     int64
	Effects  int
	Deadline time.Duration
}

// Spec describes an agent as it was created. It does not change.
type Spec struct {
	ID string
	// Creator is the principal that created the agent.
	Creator *identityv1.Principal
	// Template is the id of the template that the agent was created from; it may be empty.
	Template string
	// Guest is the name of the guest. ModuleDigest is the digest of the guest's module when the agent was created.
	Guest, ModuleDigest string
	// Instructions are the first message of each conversation; they may be empty.
	Instructions string
	// MaxTurns bounds the turns of the agent, unless it is resumed with more.
	MaxTurns int
	// Config is the configuration from the request.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Manifest has the agent's rights; nil means none.
	Manifest  *wasmagentv1.Manifest
	CreatedAt time.Time
	// ForkedFrom is the id of the agent from which this one was forked. ImportedDigest is the digest of the archive
	// from which this one was imported. Both may be empty.
	ForkedFrom, ImportedDigest string
	// JournalID is the id of the agent whose creation is the first event of the journal, and JournalCreatedAt is the
	// time of that creation. For a copy, this is the original agent.
	JournalID        string
	JournalCreatedAt time.Time
}

// Deps are the objects that agents work with. All except YieldAfter are required.
type Deps struct {
	Workers *worker.Supervisor
	Host    Host
	Store   *store.Store
	// YieldAfter is how long a turn waits for a call, or sleeps, before its guest gives its slot to other guests. 0
	// means that the guest does so at once.
	YieldAfter time.Duration
}

func (d Deps) validate() error {
	if d.Workers == nil || d.Host == nil || d.Store == nil {
		return errors.New("agent: workers, a host and a store are required")
	}
	return nil
}

// Agent is an agent. It is safe for concurrent use. Methods that read do not wait for the end of a turn.
type Agent struct {
	Spec
	Deps

	// position is the position of the agent in the order of creation, from 1.
	position int64

	mu sync.Mutex
	state
	// savedRecord is the record that was stored last.
	savedRecord *wasmstorev1.Record
	// turn is the running turn; nil if no turn runs in this process. changeDone is closed when the present change of
	// the agent ends; nil if the agent is not being changed.
	turn       *turn
	changeDone chan struct{}
	// snapshotBytes is the size of the snapshot of a guest that has no slot, and inventoryBytes is the size of the
	// journal's inventory, both in bytes.
	snapshotBytes, inventoryBytes int
	// runsElsewhere is true if another process runs the agent's turn. elsewhereWaiting is then the approval for which
	// the turn waits; nil if it waits for none.
	runsElsewhere    bool
	elsewhereWaiting *wasmagentv1.Waiting
	// stale is true if the agent in memory may differ from the stored one, so that it has to be loaded again.
	stale bool
	// damage is the reason why the agent can't be changed any more: its journal is damaged, or the stored agent differs
	// from its journal. It is nil otherwise.
	damage error

	// eventsStored is closed when events were stored; nil if no caller waits for that.
	eventsStored chan struct{}

	// journal may be used only by the turn, or by the holder of changeDone. mu does not guard it.
	journal journal
}

// Rights returns the rights of the manifest and of the grants.
func (a *Agent) Rights() *manifest.Rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	return manifest.New(a.Manifest, a.grants...)
}

// Position returns the position of the agent in the order of creation. A later agent has a higher position.
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

// IsStale reports whether the agent has to be loaded again.
func (a *Agent) IsStale() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stale
}

// Damage returns the reason why the agent can't be changed any more: its journal is damaged, or the stored agent
// differs from its journal. It returns nil if no such damage is known.
func (a *Agent) Damage() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.damage
}

// HasTurn reports whether a turn of the agent runs in this process.
func (a *Agent) HasTurn() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn != nil
}

// RunsElsewhere reports whether another process runs a turn of the agent.
func (a *Agent) RunsElsewhere() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.runsElsewhere
}

// Version returns the version of the agent's row when this process last read or wrote it. The version also rises while
// a turn runs.
func (a *Agent) Version() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.journal.version
}

// IsGone reports whether the agent has ended and can't be resumed any more.
func (a *Agent) IsGone(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorableUntil)
}

// HasEnded reports whether the agent has ended. It may still be resumed.
func (a *Agent) HasEnded() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.status == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// UpdateFiles calls do with a copy of the agent's files, and stores the copy unless do returns an empty text. The
// journal records the text. Errors: those of do, [ErrTerminated], and [ErrBusy] while a turn runs.
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

// SetTodos replaces the todo list. Errors: [ErrTodosInvalid], [ErrTodosFull], [ErrTerminated], [ErrBusy].
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
