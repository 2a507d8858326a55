// Package agent is one agent: its life, its turns, and what it keeps. Whatever a guest asks
// for is done here or not at all, and stands in its journal.
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

// Tombstone is how long an agent that was ended can be brought back.
const Tombstone = time.Hour

// Errors of an agent, for [errors.Is].
var (
	// ErrBusy: it works on another prompt.
	ErrBusy = errors.New("the agent works on another prompt")
	// ErrTerminated: it has ended.
	ErrTerminated = errors.New("the agent has ended")
	// ErrStopped: it takes no prompts; [Agent.Proto] says why.
	ErrStopped = errors.New("the agent is stopped")
	// ErrFailed: its guest failed; what the turn did was undone.
	ErrFailed = errors.New("the agent failed")
	// ErrTurn: the guest says that its turn failed.
	ErrTurn = errors.New("the turn failed")
	// ErrTurns: it has taken all turns that it may.
	ErrTurns = errors.New("the agent has taken all turns that it may: raise max_turns")
	// ErrOperator: an operator stopped it, and only one resumes it.
	ErrOperator = errors.New("an operator stopped the agent, and only an operator resumes it")
	// ErrPlaces: as many agents work, and as many prompts wait, as may; nothing was changed.
	ErrPlaces = errors.New("the prompt has no place among those that are worked on")
	// ErrAway: agents can't be run now; nothing was changed.
	ErrAway = errors.New("agents can't be run now")
	// ErrKeep: what happened could not be kept; whether it was is not known.
	ErrKeep = errors.New("what agents do can't be kept now")
	// ErrCalled: as [ErrAway] and [ErrKeep], but calls were made that can't be undone.
	ErrCalled = errors.New("what the turn did was undone, but not the calls that it made: agents can't be run now")
	// ErrTodos: it is no todo list, and ErrTodosFull: it is too long.
	ErrTodos     = errors.New("is no todo list")
	ErrTodosFull = fmt.Errorf("there may be %d todos", maxTodos)
	// ErrSnapshot: the agent has no such snapshot, and ErrSnapshots: it has as many as it may.
	ErrSnapshot  = errors.New("the agent has no such snapshot")
	ErrSnapshots = fmt.Errorf("the agent has %d snapshots, and may have no more", maxKept)
	// ErrForked: its journal is too large for a fork to begin with.
	ErrForked = fmt.Errorf("the agent's journal has more than %d MiB: a fork would begin with it", maxForked>>20)
	// ErrGrant: the agent has no such grant, and ErrGrants: it has as many as it may.
	ErrGrant  = errors.New("the agent has no such grant")
	ErrGrants = fmt.Errorf("the agent has %d grants, and may have no more: take some back", maxGrants)
	// ErrDiffers: what is stored of it is not what its journal says.
	ErrDiffers = errors.New("what is stored of the agent is not what its journal says")
	// ErrNotCovered: its journal does not cover all of what is stored.
	ErrNotCovered = errors.New("the agent is older than journals that cover all of what is stored of an agent, so an archive of it is signed only where accept_not_covered asks for that (agents export --not-covered)")
)

// Limits bound an agent's work.
type Limits struct {
	// Memory is what its guest may have, in bytes.
	Memory int64
	// Fuel, Effects and Deadline are for one turn; the last without what it waits.
	Fuel     int64
	Effects  int
	Deadline time.Duration
}

// Spec is how an agent was made. It does not change.
type Spec struct {
	ID string
	// Creator is who made it.
	Creator *identityv1.Principal
	// Template is what it was made from; may be empty.
	Template string
	// Guest is what it runs, and Digest its module's as it was made.
	Guest, Digest string
	// Instructions may be empty.
	Instructions string
	// MaxTurns is how many turns it may take unless it is resumed with more.
	MaxTurns int
	// Config is what was asked for.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Manifest is what it may do beyond that; it may be nil.
	Manifest *wasmagentv1.Manifest
	Created  time.Time
	// ForkedFrom is the agent that it was forked from, and Imported the digest of the archive
	// that it was imported from; may be empty.
	ForkedFrom, Imported string
	// JournalID is the agent whose making its journal begins with, and Origin when that was.
	JournalID string
	Origin    time.Time
}

// Deps are what agents work with. All are required.
type Deps struct {
	Workers *worker.Supervisor
	Host    Host
	Store   *store.Store
	// Yield is how long a turn waits for a call, or sleeps, until its guest gives its place to others;
	// 0 means at once.
	Yield time.Duration
}

func (d Deps) validate() error {
	if d.Workers == nil || d.Host == nil || d.Store == nil {
		return errors.New("agent: workers, a host and a store are required")
	}
	return nil
}

// Agent is an agent. It is safe for concurrent use: reads wait for no turn.
type Agent struct {
	Spec
	Deps

	// made is its place among all agents.
	made int64

	mu sync.Mutex
	state
	// saved is how it was kept last.
	saved *wasmstorev1.Record
	// turn is what it works on; nil where it does not. changing is closed once nobody changes
	// it for a moment; nil where nobody does.
	turn     *turn
	changing chan struct{}
	// parked is how large what is kept of its guest is while that has no place, and listed how large the
	// list of what is stored, in bytes.
	parked, listed int
	// elsewhere says that another process works on its turn, and waits what that waits for, if
	// people decide on it.
	elsewhere bool
	waits     *wasmagentv1.Waiting
	// lost says that what is known of it here is not what is kept: it is to be read again.
	lost bool
	// broken is why nothing of it can be changed: its journal does not hold, or is not what is stored.
	broken error

	// moved is closed once there is more of its journal; nil where nobody waits for that.
	moved chan struct{}

	// Who has the turn, or changes it, has this, too.
	journal journal
}

// Rights are what it may do beyond its limits.
func (a *Agent) Rights() *rights.Rights {
	a.mu.Lock()
	defer a.mu.Unlock()
	return rights.Of(a.Manifest, a.grants...)
}

// Made is its place among all agents: the newest has the highest.
func (a *Agent) Made() int64 { return a.made }

// Size is how much of it is in memory, in bytes.
func (a *Agent) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := len(a.Instructions) + a.talk + a.files.Bytes() + len(a.memory) + a.parked + a.listed
	for _, todo := range a.todos {
		n += len(todo.GetContent())
	}
	return n
}

// IsLost reports whether it is to be read again.
func (a *Agent) IsLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lost
}

// Broken is why nothing of it can be changed any more: its journal does not hold, or is not what is
// stored; nil where neither is known.
func (a *Agent) Broken() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.broken
}

// Works reports whether it works on a prompt here.
func (a *Agent) Works() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.turn != nil
}

// IsElsewhere reports whether another process works on it.
func (a *Agent) IsElsewhere() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.elsewhere
}

// Version is that of the row that it was read from or written to last. It rises while it works.
func (a *Agent) Version() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.journal.version
}

// Gone reports whether it has ended for good.
func (a *Agent) Gone(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorable)
}

// Ended reports whether it has ended; it may be brought back.
func (a *Agent) Ended() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// Do does something with its files as the tools of its sandbox do; said is what for, for its
// journal, and empty where nothing is changed. Errors: what do says, [ErrTerminated], [ErrBusy]
// where it works.
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

// SetTodos replaces its todo list. Errors: [ErrTodos], [ErrTerminated], [ErrBusy].
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
