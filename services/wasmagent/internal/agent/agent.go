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
	// ErrTurn means that the guest reported the failure of its turn. The turn counts.
	ErrTurn = errors.New("the turn failed")
	// ErrTurns means that the agent has used all turns of its max_turns.
	ErrTurns = errors.New("the agent has used all of its turns: raise max_turns")
	// ErrOperator means that an operator stopped the agent. Only an operator can resume it.
	ErrOperator = errors.New("an operator stopped the agent, and only an operator resumes it")
	// ErrPlaces means that too many prompts wait, or that the wait for a place took too long. Nothing was changed.
	ErrPlaces = errors.New("the prompt can't start")
	// ErrAway means that guests can't be run now. Nothing was changed.
	ErrAway = errors.New("agents can't be run now")
	// ErrKeep means that storing failed. The change may have been stored or not.
	ErrKeep = errors.New("agents can't be stored now")
	// ErrCalled means the same as [ErrAway] or [ErrKeep] for a turn that made calls. The calls can't be undone.
	ErrCalled = errors.New("the turn was undone, except for the calls that it made: agents can't be run now")
	// ErrTodos means that a todo list is invalid, and ErrTodosFull that it has too many entries.
	ErrTodos     = errors.New("is not a valid todo list")
	ErrTodosFull = fmt.Errorf("a todo list has at most %d entries", maxTodos)
	// ErrSnapshot means that the agent does not have the snapshot, and ErrSnapshots that it has the maximum number.
	ErrSnapshot  = errors.New("the agent has no such snapshot")
	ErrSnapshots = fmt.Errorf("the agent has the maximum of %d snapshots", maxKept)
	// ErrForked means that the agent's journal is too large to be copied to a fork.
	ErrForked = fmt.Errorf("the agent can't be forked: its journal has more than %d MiB", maxForked>>20)
	// ErrGrant means that the agent does not have the grant, and ErrGrants that it has the maximum number.
	ErrGrant  = errors.New("the agent has no such grant")
	ErrGrants = fmt.Errorf("the agent has the maximum of %d grants: withdraw some", maxGrants)
	// ErrDiffers means that the stored agent differs from what its journal records.
	ErrDiffers = errors.New("the stored agent differs from its journal")
	// ErrNotCovered means that the journal does not cover everything that is stored.
	ErrNotCovered = errors.New("the agent is older than journals that cover everything that is stored, so an archive of it is signed only with accept_not_covered (agents export --not-covered)")
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
	// Guest is the name of the guest. Digest is the digest of the guest's module when the agent was created.
	Guest, Digest string
	// Instructions are the first message of each conversation; they may be empty.
	Instructions string
	// MaxTurns bounds the turns of the agent, unless it is resumed with more.
	MaxTurns int
	// Config is the configuration from the request.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Manifest has the agent's rights; nil means none.
	Manifest *wasmagentv1.Manifest
	Created  time.Time
	// ForkedFrom is the id of the agent from which this one was forked. Imported is the digest of the archive from
	// which this one was imported. Both may be empty.
	ForkedFrom, Imported string
	// JournalID is the id of the agent whose creation is the first event of the journal, and Origin is the time of that
	// creation. For a copy, this is the original agent.
	JournalID string
	Origin    time.Time
}

// Deps are the objects that agents work with. All but Yield are required.
type Deps struct {
	Workers *worker.Supervisor
	Host    Host
	Store   *store.Store
	// Yield is how long a turn waits for a call, or sleeps, before its guest gives its place to other guests. 0 means
	// that the guest does so at once.
	Yield time.Duration
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

	// made is the position of the agent in the order of creation, from 1.
	made int64

	mu sync.Mutex
	state
	// saved is the record that was stored last.
	saved *wasmstorev1.Record
	// turn is the running turn; nil if no turn runs in this process. changing is closed when the present change of the
	// agent ends; nil if the agent is not being changed.
	turn     *turn
	changing chan struct{}
	// parked is the size of the snapshot of a guest that has no place, and listed is the size of the journal's
	// inventory, both in bytes.
	parked, listed int
	// elsewhere is true if another process runs the agent's turn. waits is then the approval for which the turn waits;
	// nil if it waits for none.
	elsewhere bool
	waits     *wasmagentv1.Waiting
	// lost is true if the agent in memory may differ from the stored one, so that it has to be loaded again.
	lost bool
	// broken is the reason why the agent can't be changed any more: its journal is damaged, or the stored agent differs
	// from its journal. It is nil otherwise.
	broken error

	// moved is closed when events were stored; nil if no caller waits for that.
	moved chan struct{}

	// journal may be used only by the turn, or by the holder of changing. mu does not guard it.
	journal journal
}

// Rights returns the rights of the manifest and of the grants.
func (a *Agent) Rights() *manifest.Rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	return manifest.Of(a.Manifest, a.grants...)
}

// Made returns the position of the agent in the order of creation. A later agent has a higher position.
func (a *Agent) Made() int64 { return a.made }

// Size returns the size of the agent in memory, in bytes.
func (a *Agent) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.Instructions) + a.talk + a.files.Bytes() + len(a.memory) + a.parked + a.listed
	for _, todo := range a.todos {
		n += len(todo.GetContent())
	}
	return n
}

// IsLost reports whether the agent has to be loaded again.
func (a *Agent) IsLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// Broken returns the reason why the agent can't be changed any more: its journal is damaged, or the stored agent
// differs from its journal. It returns nil if no such damage is known.
func (a *Agent) Broken() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken
}

// Works reports whether a turn of the agent runs in this process.
func (a *Agent) Works() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn != nil
}

// IsElsewhere reports whether another process runs a turn of the agent.
func (a *Agent) IsElsewhere() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.elsewhere
}

// Version returns the version of the agent's row when this process last read or wrote it. The version also rises while
// a turn runs.
func (a *Agent) Version() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.journal.version
}

// Gone reports whether the agent has ended and can't be resumed any more.
func (a *Agent) Gone(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorable)
}

// Ended reports whether the agent has ended. It may still be resumed.
func (a *Agent) Ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// Do calls do with a copy of the agent's files, and stores the copy unless do returns an empty text. The journal
// records the text. Errors: those of do, [ErrTerminated], and [ErrBusy] while a turn runs.
func (a *Agent) Do(by By, do func(f *files.Files) (said string, err error)) error {
	return a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.files = next.files.Clone()
		said, err := do(next.files)
		if err != nil || said == "" {
			return nil, err
		}
		return lifecycle(next, by, said), nil
	})
}

// SetTodos replaces the todo list. Errors: [ErrTodos], [ErrTodosFull], [ErrTerminated], [ErrBusy].
func (a *Agent) SetTodos(by By, todos []*wasmagentv1.Todo) error {
	if err := checkTodos(todos); err != nil {
		return err
	}
	return a.change(by.Context, func(next *state) (*wasmagentv1.Event, error) {
		if next.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
			return nil, ErrTerminated
		}
		next.todos = todos
		return lifecycle(next, by, fmt.Sprintf("write_todos: %d", len(todos))), nil
	})
}

func checkTodos(todos []*wasmagentv1.Todo) error {
	if len(todos) > maxTodos {
		return ErrTodosFull
	}
	for i, t := range todos {
		switch {
		case t.GetContent() == "" || len(t.GetContent()) > maxTodo:
			return fmt.Errorf("%w: the content of entry %d must have 1 to %d bytes", ErrTodos, i, maxTodo)
		case t.GetStatus() == wasmagentv1.TodoStatus_TODO_STATUS_UNSPECIFIED:
			return fmt.Errorf("%w: the status of entry %d must be pending, in_progress or completed", ErrTodos, i)
		}
	}
	return nil
}
