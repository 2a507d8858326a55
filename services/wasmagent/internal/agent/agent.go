// Package agent is one agent: its life, its turns, and what it keeps. Whatever a guest asks
// for is done here or not at all.
package agent

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/rights"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// Tombstone is how long an agent that was ended can be brought back.
const Tombstone = time.Hour

const (
	// maxMessages and maxMessageBytes bound a conversation: the oldest go, but never the
	// instructions.
	maxMessages     = 1000
	maxMessageBytes = 4 << 20
	// maxTodos and maxTodo bound a todo list, in entries and bytes of one.
	maxTodos = 1000
	maxTodo  = 4096
)

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
	// ErrAway: guests can't be run now; nothing was changed.
	ErrAway = errors.New("agents can't be run now")
	// ErrCalled: as [ErrAway], but calls were made that can't be undone.
	ErrCalled = errors.New("what the turn did was undone, but not the calls that it made: agents can't be run now")
	// ErrTodos: it is no todo list, and ErrTodosFull: it is too long.
	ErrTodos     = errors.New("is no todo list")
	ErrTodosFull = fmt.Errorf("there may be %d todos", maxTodos)
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
	// Guest is what it runs, and Digest its module's.
	Guest, Digest string
	// Instructions may be empty.
	Instructions string
	// MaxTurns is how many turns it may take unless it is resumed with more.
	MaxTurns int
	// Config is what was asked for.
	Config *wasmagentv1.AgentConfig
	Limits Limits
	Files  files.Bounds
	// Rights are what it may do beyond that; never nil.
	Rights  *rights.Rights
	Created time.Time
}

// Agent is an agent. It is safe for concurrent use: reads wait for no turn.
type Agent struct {
	Spec

	workers *worker.Supervisor
	host    Host

	mu sync.Mutex
	state
	// turn is what it works on; nil where it does not.
	turn *turn
	// parked is how large what is kept of its guest is while that has no place, in bytes.
	parked int
	// byOperator says that an operator stopped it.
	byOperator bool
	// restorable is until when it can be brought back; zero where it has not ended.
	restorable time.Time
}

// state is what a turn changes, and what is undone with it.
type state struct {
	at       wasmagentv1.AgentState
	stop     wasmagentv1.StopReason
	failure  *wasmagentv1.Failure
	epoch    int
	turns    int
	maxTurns int
	messages []*wasmagentv1.Message
	// talk is how much the messages have, in bytes.
	talk  int
	todos []*wasmagentv1.Todo
	files *files.Files
	usage usage
	// sequence is that of the newest envelope that its guest was given.
	sequence int64
	// snapshot is all that its guest is; nil before its first turn.
	snapshot []byte
}

type usage struct{ fuel, effects, denied int64 }

// New returns an agent that has not run yet.
func New(s Spec, workers *worker.Supervisor, host Host) (*Agent, error) {
	if workers == nil || host == nil || s.Creator == nil || s.Config == nil || s.Rights == nil || s.ID == "" {
		return nil, errors.New("agent: workers, a host, an id, a creator, rights and a configuration are required")
	}
	a := &Agent{Spec: s, workers: workers, host: host}
	a.state = state{at: wasmagentv1.AgentState_AGENT_STATE_IDLE, epoch: 1, maxTurns: s.MaxTurns, files: files.New(s.Files)}
	a.greet()
	a.spend()
	return a, nil
}

// greet begins a conversation.
func (a *Agent) greet() {
	a.messages, a.talk = nil, 0
	if a.Instructions != "" {
		a.say(wasmagentv1.MessageRole_MESSAGE_ROLE_SYSTEM, a.Instructions)
	}
}

// say adds to the conversation.
func (a *Agent) say(role wasmagentv1.MessageRole, text string) {
	a.messages = append(a.messages, &wasmagentv1.Message{Role: role, Content: text})
	a.talk += len(text)
	first := 0
	if a.Instructions != "" {
		first = 1
	}
	for len(a.messages) > first+1 && (len(a.messages) > maxMessages || a.talk > maxMessageBytes) {
		a.talk -= len(a.messages[first].GetContent())
		a.messages = slices.Concat(a.messages[:first], a.messages[first+1:]) // others may read the old one
	}
}

// spend stops an agent that has taken its last turn.
func (a *Agent) spend() {
	if a.turns >= a.maxTurns {
		a.at, a.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_TURNS
	}
}

// Stop stops it at once, until it is resumed: a step that runs is discarded.
func (a *Agent) Stop(operator bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		return ErrTerminated
	}
	if a.turn != nil {
		a.turn.cut(ErrStopped)
	}
	a.stopped()
	a.byOperator = a.byOperator || operator
	return nil
}

// stopped makes it stopped by somebody.
func (a *Agent) stopped() {
	a.at, a.stop, a.failure = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_EXPLICIT, nil
}

// ErrOperator is an error of [Agent.Resume]: an operator stopped it, and only one resumes
// it.
var ErrOperator = errors.New("an operator stopped the agent, and only an operator resumes it")

// Resume lets it go on; with maxTurns above 0 it may take so many in all.
func (a *Agent) Resume(operator bool, maxTurns int, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.turn != nil:
		return ErrBusy
	case a.byOperator && !operator:
		return ErrOperator
	case a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorable):
		return ErrTerminated
	}
	if maxTurns == 0 {
		maxTurns = a.maxTurns
	}
	if a.turns >= maxTurns {
		return ErrTurns
	}
	a.maxTurns = maxTurns
	a.at, a.stop, a.failure = wasmagentv1.AgentState_AGENT_STATE_IDLE, wasmagentv1.StopReason_STOP_REASON_UNSPECIFIED, nil
	a.byOperator, a.restorable = false, time.Time{}
	return nil
}

// Reset clears messages, todos and the count of turns, and begins a new epoch. Files stay,
// and so does an explicit stop.
func (a *Agent) Reset() (epoch int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.turn != nil:
		return 0, ErrBusy
	case a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return 0, ErrTerminated
	}
	a.epoch++
	a.turns, a.todos, a.snapshot, a.sequence = 0, nil, nil, 0
	a.greet()
	if a.stop != wasmagentv1.StopReason_STOP_REASON_EXPLICIT {
		a.at, a.stop, a.failure = wasmagentv1.AgentState_AGENT_STATE_IDLE, wasmagentv1.StopReason_STOP_REASON_UNSPECIFIED, nil
		a.spend()
	}
	return a.epoch, nil
}

// Terminate ends it. It can be brought back for a while.
func (a *Agent) Terminate(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		return
	}
	if a.turn != nil {
		a.turn.cut(ErrTerminated)
	}
	a.at, a.restorable = wasmagentv1.AgentState_AGENT_STATE_TERMINATED, now.Add(Tombstone)
}

// Size is how much is kept of it, in bytes.
func (a *Agent) Size() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.Instructions) + a.talk + a.files.Bytes() + len(a.snapshot) + a.parked
}

// Ended is when it was ended; zero where it was not.
func (a *Agent) Ended() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		return time.Time{}
	}
	return a.restorable.Add(-Tombstone)
}

// Gone tells whether it has ended for good.
func (a *Agent) Gone(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED && !now.Before(a.restorable)
}

// Proto is the agent as its owner sees it.
func (a *Agent) Proto() *wasmagentv1.Agent {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := &wasmagentv1.Agent{
		Id: a.ID, State: a.at, Config: a.Config, Model: a.Config.GetModel(), TurnCount: int32(a.turns), FileCount: int32(a.files.Count()),
		IsStopped: a.takesNone(), CreatedAt: timestamppb.New(a.Created), StopReason: a.stop, Failure: a.failure, Epoch: int32(a.epoch),
		Template: a.Template, Guest: a.Guest, ModuleDigest: a.Digest, Creator: a.Creator.GetSubject(), Depth: int32(len(a.Creator.GetChain())), JournalId: a.ID,
	}
	if !a.restorable.IsZero() {
		out.RestorableUntil = timestamppb.New(a.restorable)
	}
	if a.turn != nil {
		out.Waiting = a.turn.waiting
	}
	return out
}

// takesNone tells whether it takes no prompts.
func (a *Agent) takesNone() bool {
	return a.at == wasmagentv1.AgentState_AGENT_STATE_STOPPED || a.at == wasmagentv1.AgentState_AGENT_STATE_FAILED ||
		a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED
}

// MaxTurnsNow is how many turns it may take.
func (a *Agent) MaxTurnsNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.maxTurns
}

// Conversation is what was said.
func (a *Agent) Conversation() *wasmagentv1.Conversation {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &wasmagentv1.Conversation{Messages: slices.Clone(a.messages), TurnCount: int32(a.turns), Stopped: a.takesNone()}
}

// Todos is its todo list.
func (a *Agent) Todos() []*wasmagentv1.Todo {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.todos // it is replaced, never changed
}

// Usage is what it has spent.
func (a *Agent) Usage() *wasmagentv1.Usage {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &wasmagentv1.Usage{
		Fuel: a.usage.fuel, Effects: a.usage.effects, Denied: a.usage.denied, Cost: "0", MemoryBytes: int64(len(a.snapshot)), FileBytes: int64(a.files.Bytes()),
	}
}

// List lists its files: those below a folder, or all where it is empty.
func (a *Agent) List(below string) ([]files.File, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.files.List(below)
}

// Do does something with its files as the tools of its sandbox do. Errors: what do says,
// [ErrTerminated], [ErrBusy] where it works.
func (a *Agent) Do(do func(f *files.Files) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return ErrTerminated
	case a.turn != nil:
		return ErrBusy
	}
	return do(a.files)
}

// SetTodos replaces its todo list. Errors: [ErrTodos], [ErrTerminated], [ErrBusy].
func (a *Agent) SetTodos(todos []*wasmagentv1.Todo) error {
	if err := checkTodos(todos); err != nil {
		return err
	}
	return a.Do(func(*files.Files) error {
		a.todos = todos
		return nil
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
