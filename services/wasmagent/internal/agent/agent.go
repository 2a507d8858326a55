// Package agent implements one agent: its states, its turns, and what is stored of it. Every effect that a guest asks
// for is carried out or refused here, and recorded in the agent's journal. The wasmagent service uses it.
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
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
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
	// ErrStopped means that the agent takes no prompts; [Agent.Proto] has the reason.
	ErrStopped = errors.New("the agent is stopped")
	// ErrFailed means that the guest failed and the turn was undone.
	ErrFailed = errors.New("the agent failed")
	// ErrTurn means that the guest reported the failure of its turn. The turn counts.
	ErrTurn = errors.New("the turn failed")
	// ErrTurns means that the agent has used all turns of its max_turns.
	ErrTurns = errors.New("the agent has used all of its turns: raise max_turns")
	// ErrOperator means that an operator stopped the agent, so only an operator can resume it.
	ErrOperator = errors.New("an operator stopped the agent, and only an operator resumes it")
	// ErrPlaces means that too many prompts wait, or that the wait for a place took too long. Nothing was changed.
	ErrPlaces = errors.New("the prompt can't start")
	// ErrAway means that agents can't be run now. Nothing was changed.
	ErrAway = errors.New("agents can't be run now")
	// ErrKeep means that storing failed. The change may have been stored or not.
	ErrKeep = errors.New("agents can't be stored now")
	// ErrCalled is like [ErrAway] and [ErrKeep], but the turn made calls that can't be undone.
	ErrCalled = errors.New("the turn was undone, except for the calls that it made: agents can't be run now")
	// ErrTodos means that a todo list is invalid, and ErrTodosFull that it is too long.
	ErrTodos     = errors.New("is no todo list")
	ErrTodosFull = fmt.Errorf("there may be %d todos", maxTodos)
	// ErrSnapshot means that the agent does not have the snapshot, and ErrSnapshots that it has the maximum number.
	ErrSnapshot  = errors.New("the agent has no such snapshot")
	ErrSnapshots = fmt.Errorf("the agent has the maximum of %d snapshots", maxKept)
	// ErrForked means that the journal is too large for a fork to begin with.
	ErrForked = fmt.Errorf("the agent's journal has more than %d MiB: a fork would begin with it", maxForked>>20)
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
	// Fuel, Effects and Deadline are for one turn. The deadline does not count the time in which the turn waits.
	Fuel     int64
	Effects  int
	Deadline time.Duration
}

// Spec describes how an agent was created. It does not change.
type Spec struct {
	ID string
	// Creator is the principal that created the agent.
	Creator *identityv1.Principal
	// Template is the id of the template that the agent was created from; it may be empty.
	Template string
	// Guest is the name of the guest, and Digest that of its module when the agent was created.
	Guest, Digest string
	// Instructions are the first message of each conversation; they may be empty.
	Instructions string
	// MaxTurns bounds the turns of the agent, unless it is resumed with more.
	MaxTurns int
	// Config is the configuration in the request.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Manifest has the agent's rights; nil means none.
	Manifest *wasmagentv1.Manifest
	Created  time.Time
	// ForkedFrom is the id of the agent that this one was forked from, and Imported the digest of the archive that it
	// was imported from. Both may be empty.
	ForkedFrom, Imported string
	// JournalID is the id of the agent whose creation is the first event of the journal, and Origin the time of its
	// creation.
	JournalID string
	Origin    time.Time
}

// Deps are the objects that agents work with. All but Yield are required.
type Deps struct {
	Workers *worker.Supervisor
	Host    Host
	Store   *store.Store
	// Yield is how long a turn waits for a call, or sleeps, before its guest gives its place to others. 0 means at
	// once.
	Yield time.Duration
}

func (d Deps) validate() error {
	if d.Workers == nil || d.Host == nil || d.Store == nil {
		return errors.New("agent: workers, a host and a store are required")
	}
	return nil
}

// Agent is an agent. It is safe for concurrent use. Reads do not wait for a turn.
type Agent struct {
	Spec
	Deps

	// made is the position of the agent among all agents in the order of their creation.
	made int64

	mu sync.Mutex
	state
	// saved is the record that was stored last.
	saved *wasmstorev1.Record
	// turn is the turn that runs; nil if none runs. changing is closed when the present change of the agent ends; nil
	// if there is no change under way.
	turn     *turn
	changing chan struct{}
	// parked is the size of the snapshot of a guest that has no place, and listed the size of the inventory of what is
	// stored, in bytes.
	parked, listed int
	// elsewhere is true if another process runs the turn. waits is then the approval that the turn waits for; nil if
	// there is none.
	elsewhere bool
	waits     *wasmagentv1.Waiting
	// lost is true if the agent in memory may differ from the stored one, so it has to be loaded again.
	lost bool
	// broken is the reason why the agent can't be changed: its journal is damaged, or differs from what is stored.
	broken error

	// moved is closed when events were stored; nil if no caller waits for that.
	moved chan struct{}

	// The journal may be used by the turn, or by the holder of changing. mu does not guard it.
	journal journal
}

// Rights returns the rights of the manifest and of the grants.
func (a *Agent) Rights() *rights.Rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	return rights.Of(a.Manifest, a.grants...)
}

// Made returns the position of the agent among all agents: the newest has the highest.
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

// Broken returns why the agent can't be changed any more: its journal is damaged, or differs from what is stored. It
// returns nil if neither is known.
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

// Version returns the version of the row that was last read or written. It rises while a turn runs.
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

// Do calls do with a copy of the agent's files, which it stores unless the returned text is empty. The journal records
// that text. Errors: do's, [ErrTerminated], [ErrBusy] while a turn runs.
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
			return fmt.Errorf("%w: entry %d has no content of 1 to %d bytes", ErrTodos, i, maxTodo)
		case t.GetStatus() == wasmagentv1.TodoStatus_TODO_STATUS_UNSPECIFIED:
			return fmt.Errorf("%w: entry %d has no status: pending, in_progress or completed", ErrTodos, i)
		}
	}
	return nil
}
