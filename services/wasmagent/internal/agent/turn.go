package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/timestamppb"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

const (
	// maxEnvelope is how long an envelope of a guest may be, in bytes.
	maxEnvelope = 1 << 20
	// maxCancels is how often a guest is told that nobody waits any more.
	maxCancels = 3
	// maxSleep is how long a turn may sleep in all: its guest keeps its memory meanwhile.
	maxSleep = 10 * time.Minute
	// maxResult is how long what an effect answers may be, in bytes; as JSON it may have four
	// times as much, and so may a tool's answer.
	maxResult = 256 << 10
)

// A turn is a prompt that an agent works on.
type turn struct {
	// ctx ends with the turn; cut ends it for a reason. caller ends with whoever prompts, as
	// long as the turn follows that one.
	ctx    context.Context //nolint:containedctx // it is the turn's, which is one call
	cut    context.CancelCauseFunc
	caller context.Context //nolint:containedctx // see above
	follow func() (stopped bool)
	tell   func(string)
	// leave gives the guest's place to others; nil where it has none. parked is closed once
	// whoever prompts need not wait any more.
	leave  func()
	parked chan struct{}
	// alone says that it goes on without whoever prompted, and called that it made a call,
	// or may have; done is closed behind its end.
	alone, called bool
	done          chan struct{}
	// before is what is gone back to where the turn is undone.
	before state
	// waiting is what it waits for; nil where it does not. The agent's lock guards it.
	waiting *wasmagentv1.Waiting

	instance *worker.Instance
	effects  int
	fuel     int64
	worked   time.Duration
	slept    time.Duration
}

// Answer is what came of a prompt.
type Answer struct {
	// Text is what the agent answered; empty where Parked.
	Text string
	// Parked says that people have to decide on something first: the turn goes on by itself
	// then.
	Parked bool
	// Agent is the agent behind the turn.
	Agent *wasmagentv1.Agent
}

var (
	errSleep     = fmt.Errorf("a turn sleeps for %s at the most", maxSleep)
	errLarge     = fmt.Errorf("what comes of it has more than %d bytes: read a file by offset and limit", maxResult)
	errEffects   = errors.New("the turn has more effects than it may have")
	errCancelled = errors.New("whoever prompted has given up")
)

// Prompt has the agent take a turn. What it does is told, in words for people. With ctx
// the turn ends, unless people were asked about a call of it: for them whoever prompts waits
// for as long as hold, and the turn goes on alone. Errors: [ErrBusy], [ErrTerminated], [ErrStopped],
// [ErrFailed], [ErrTurn], [ErrAway], the host's, and ctx's.
func (a *Agent) Prompt(ctx context.Context, input string, hold time.Duration, tell func(string)) (Answer, error) {
	leave, err := a.host.Enter(a)
	if err != nil {
		return Answer{}, err
	}
	t, err := a.begin(ctx, input, tell)
	if err != nil {
		leave()
		return Answer{}, err
	}
	t.leave = leave
	var answer Answer
	go func() {
		defer close(t.done)
		defer t.cut(nil)
		answer, err = a.take(t, input)
		if t.alone {
			a.host.Alone(t.ctx, a, err)
		}
	}()
	select {
	case <-t.done:
		return answer, err
	case <-t.parked:
	}
	select {
	case <-t.done:
	case <-time.After(hold):
	case <-ctx.Done():
	}
	select {
	case <-t.done:
		return answer, err
	default:
		return Answer{Parked: true, Agent: a.Proto()}, nil
	}
}

// take takes the turn, and says what came of it. What goes wrong in this program undoes it,
// as what goes wrong in the guest.
func (a *Agent) take(t *turn, input string) (Answer, error) {
	out, snapshot, err := func() (out abi.Out, snapshot []byte, err error) {
		defer func() {
			if said := recover(); said != nil {
				err = fmt.Errorf("a turn panicked: %v\n%s", said, debug.Stack())
			}
		}()
		return a.run(t, input)
	}()
	if t.leave != nil {
		t.leave()
	}
	return a.end(t, out, snapshot, err)
}

// Shut ends the turn that it takes, if any, and waits for that: the role stops.
func (a *Agent) Shut() {
	a.mu.Lock()
	t := a.turn
	a.mu.Unlock()
	if t != nil {
		t.cut(ErrAway)
		<-t.done
	}
}

func (a *Agent) begin(ctx context.Context, input string, tell func(string)) (*turn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return nil, ErrTerminated
	case a.turn != nil:
		return nil, ErrBusy
	case a.at == wasmagentv1.AgentState_AGENT_STATE_STOPPED:
		return nil, fmt.Errorf("%w: %s", ErrStopped, stopName(a.stop))
	case a.at == wasmagentv1.AgentState_AGENT_STATE_FAILED:
		return nil, fmt.Errorf("%w: %s", ErrFailed, a.failure.GetMessage())
	}
	t := &turn{tell: tell, before: a.state, parked: make(chan struct{}), done: make(chan struct{})}
	var gone context.CancelCauseFunc
	t.caller, gone = context.WithCancelCause(context.WithoutCancel(ctx))
	t.follow = context.AfterFunc(ctx, func() { gone(context.Cause(ctx)) })
	t.before.files, t.before.messages = a.files.Clone(), slices.Clone(a.messages)
	t.ctx, t.cut = context.WithCancelCause(context.WithoutCancel(ctx)) // it ends with the turn, not with whoever prompts
	a.turn, a.at = t, wasmagentv1.AgentState_AGENT_STATE_RUNNING
	a.say(wasmagentv1.MessageRole_MESSAGE_ROLE_USER, input)
	return t, nil
}

// run takes the turn, to its last envelope, and keeps the guest.
func (a *Agent) run(t *turn, input string) (out abi.Out, snapshot []byte, err error) {
	if err := a.start(t); err != nil {
		return out, nil, err
	}
	defer func() {
		if t.instance != nil { // else it gave its place away, and did not come back
			_ = t.instance.Close(context.WithoutCancel(t.ctx)) // or the worker is gone, and it too
		}
	}()
	if out, err = a.step(t, abi.In{Kind: abi.Prompt, Input: input}); err != nil {
		return out, nil, err
	}
	for cancels := 0; out.Kind != abi.Finish && out.Kind != abi.Fail; {
		if t.effects++; t.effects > a.Limits.Effects {
			return out, nil, errEffects
		}
		next := abi.In{Kind: abi.Cancel, Reason: "nobody waits any more"}
		if t.caller.Err() == nil {
			if next, err = a.effect(t, out); err != nil {
				return out, nil, err
			}
		}
		if t.caller.Err() != nil {
			if cancels++; cancels > maxCancels {
				return out, nil, errCancelled
			}
			next = abi.In{Kind: abi.Cancel, Reason: "nobody waits any more"}
		}
		if out, err = a.step(t, next); err != nil {
			return out, nil, err
		}
	}
	if t.caller.Err() != nil {
		return out, nil, errCancelled
	}
	snapshot, err = t.instance.Snapshot(t.ctx)
	return out, snapshot, err
}

// start has a guest go on where it was, or begin.
func (a *Agent) start(t *turn) (err error) {
	if t.before.snapshot != nil {
		t.instance, err = a.workers.Restore(t.ctx, a.Digest, a.engineLimits(), t.before.snapshot)
		return err
	}
	from := engine.Origin{Clock: uint64(a.Created.UnixNano()), Seed: sha256.Sum256([]byte(a.ID))}
	t.instance, t.fuel, err = a.workers.Start(t.ctx, a.Digest, a.engineLimits(), from, a.Limits.Fuel, a.Limits.Deadline)
	if err != nil {
		return err
	}
	out, err := a.step(t, abi.In{Kind: abi.Start, Instructions: a.Instructions, MaxTurns: t.before.maxTurns, Model: a.Config.GetModel()})
	if err == nil && out.Kind != abi.Finish {
		err = fmt.Errorf("%w: it answers its start with %q", engine.ErrTrap, out.Kind)
	}
	if err != nil {
		_ = t.instance.Close(context.WithoutCancel(t.ctx)) // it failed already
	}
	return err
}

func (a *Agent) engineLimits() engine.Limits {
	return engine.Limits{Memory: a.Limits.Memory, Envelope: maxEnvelope}
}

// step gives the guest an envelope.
func (a *Agent) step(t *turn, in abi.In) (abi.Out, error) {
	a.mu.Lock()
	a.sequence++
	in.Sequence = a.sequence
	a.mu.Unlock()
	text, err := abi.Write(in)
	if err != nil {
		return abi.Out{}, err
	}
	left := a.Limits.Deadline - t.worked
	if left <= 0 {
		return abi.Out{}, engine.ErrDeadline
	}
	begin := time.Now()
	answer, fuel, err := t.instance.Step(t.ctx, text, a.Limits.Fuel-t.fuel, left)
	t.worked += time.Since(begin)
	t.fuel += fuel
	if err != nil {
		return abi.Out{}, err
	}
	out, err := abi.Read(answer)
	if err != nil {
		return abi.Out{}, fmt.Errorf("%w: %w", engine.ErrTrap, err)
	}
	return out, nil
}

// end says what came of a turn: it counts, or it is undone.
func (a *Agent) end(t *turn, out abi.Out, snapshot []byte, err error) (Answer, error) {
	a.mu.Lock()
	cause := context.Cause(t.ctx)
	a.turn = nil
	a.usage.fuel += t.fuel
	a.usage.effects += int64(t.effects)
	if err != nil || cause != nil {
		err = a.undo(t, err, cause)
	} else {
		a.snapshot, a.at = snapshot, wasmagentv1.AgentState_AGENT_STATE_IDLE
		a.turns++
		if out.Kind == abi.Fail {
			err = fmt.Errorf("%w: %s", ErrTurn, out.Text)
		} else {
			a.say(wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, out.Text)
		}
		if out.Done {
			a.at, a.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED
		} else {
			a.spend()
		}
	}
	a.mu.Unlock()
	if err != nil {
		return Answer{}, err
	}
	return Answer{Text: out.Text, Agent: a.Proto()}, nil
}

// undo goes back to before the turn, and says why.
func (a *Agent) undo(t *turn, err, cause error) error {
	at, used := a.at, a.usage
	a.state = t.before
	a.usage = used
	if at == wasmagentv1.AgentState_AGENT_STATE_TERMINATED { // whatever else befell it
		a.at = at
		return ErrTerminated
	}
	fail := func(why wasmagentv1.FailureCause) error {
		a.at, a.failure = wasmagentv1.AgentState_AGENT_STATE_FAILED, &wasmagentv1.Failure{Cause: why, Message: err.Error()}
		return fmt.Errorf("%w: %w", ErrFailed, err)
	}
	switch {
	case errors.Is(cause, ErrStopped):
		a.stopped()
		return fmt.Errorf("%w: %s", ErrStopped, stopName(a.stop))
	case errors.Is(err, errEffects):
		a.at, a.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS
		return fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, errDenied):
		a.at, a.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED
		return fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, errCancelled), t.caller.Err() != nil: // it may have worked on until it was cut
		return context.Cause(t.caller)
	case errors.Is(err, engine.ErrFuel):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_FUEL)
	case errors.Is(err, engine.ErrMemory):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_MEMORY)
	case errors.Is(err, engine.ErrDeadline):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_DEADLINE)
	case errors.Is(err, engine.ErrTrap):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_TRAP)
	}
	if t.called {
		return fmt.Errorf("%w: %w", ErrCalled, err)
	}
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// effect does what a guest asks for, and returns what it is told. An error ends the turn.
func (a *Agent) effect(t *turn, out abi.Out) (abi.In, error) {
	in := abi.In{Kind: abi.Result}
	var err error
	switch out.Kind {
	case abi.Tool:
		return a.tool(t, out)
	case abi.FS:
		in.Result, err = a.fs(out)
	case abi.Todo:
		err = a.todo(out)
	case abi.Emit:
		t.tell(out.Text)
	case abi.Sleep:
		d := time.Duration(min(max(out.Milliseconds, 0), maxSleep.Milliseconds()+1)) * time.Millisecond
		if t.slept += d; t.slept > maxSleep {
			err = errSleep
		} else {
			a.sleep(t, d)
		}
	case abi.Model:
		in.Error = &abi.Error{Code: "no_model_configured", Message: "no model is configured: this version runs guests without one"}
	}
	if err != nil {
		in.Error = &abi.Error{Code: Code(err), Message: err.Error()}
	}
	return in, nil
}

// Code is an error of files or todos as a word that does not change.
func Code(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		{files.ErrPath, "path_invalid"}, {files.ErrUnknown, "file_unknown"}, {files.ErrTarget, "edit_target_unknown"},
		{errLarge, "too_large"}, {errSleep, "sleep_spent"}, {ErrTodosFull, "todos_full"}, {files.ErrAmbiguous, "edit_ambiguous"}, {files.ErrFull, "files_full"}, {ErrTodos, "todos_invalid"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return "failed"
}

func (a *Agent) fs(out abi.Out) (result jsontext.Value, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var say any
	switch out.Op {
	case "read_file":
		var text string
		if text, err = a.files.Read(out.Path, out.Offset, out.Limit); len(text) > maxResult {
			err = errLarge
		}
		say = text
	case "write_file":
		_, err = a.files.Write(out.Path, out.Content, time.Now())
	case "edit_file":
		_, _, err = a.files.Edit(out.Path, out.OldString, out.NewString, out.ReplaceAll, time.Now())
	case "list_files":
		say, err = a.files.Paths(out.Path)
	default:
		err = fmt.Errorf("%q %w", out.Op, errors.New("is nothing that can be done with files"))
	}
	if err != nil || say == nil {
		return nil, err
	}
	if result, err = json.Marshal(say); len(result) > 4*maxResult { // escapes
		return nil, errLarge
	}
	return result, err
}

func (a *Agent) todo(out abi.Out) error {
	todos := make([]*wasmagentv1.Todo, 0, len(out.Todos))
	for _, t := range out.Todos {
		todos = append(todos, &wasmagentv1.Todo{Content: t.Content, Status: Status(t.Status)})
	}
	if err := checkTodos(todos); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.todos = todos
	return nil
}

// Status is the status of a todo by its name; unspecified for none.
func Status(name string) wasmagentv1.TodoStatus {
	return map[string]wasmagentv1.TodoStatus{
		"pending": wasmagentv1.TodoStatus_TODO_STATUS_PENDING, "in_progress": wasmagentv1.TodoStatus_TODO_STATUS_IN_PROGRESS,
		"completed": wasmagentv1.TodoStatus_TODO_STATUS_COMPLETED,
	}[name]
}

// sleep waits, or for the end of the turn or of whoever prompts.
func (a *Agent) sleep(t *turn, d time.Duration) {
	a.wait(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_EFFECT})
	defer a.wait(t, nil)
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	case <-t.caller.Done():
	}
}

// wait says what the turn waits for; nil: nothing any more.
func (a *Agent) wait(t *turn, on *wasmagentv1.Waiting) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turn != t || a.takesNone() {
		return
	}
	a.at, t.waiting = wasmagentv1.AgentState_AGENT_STATE_RUNNING, on
	if on != nil {
		on.Since = timestamppb.Now()
		a.at = wasmagentv1.AgentState_AGENT_STATE_WAITING
	}
}

func stopName(r wasmagentv1.StopReason) string {
	if names := map[wasmagentv1.StopReason]string{
		wasmagentv1.StopReason_STOP_REASON_MAX_TURNS: "it has taken all its turns", wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS: "a turn had too many effects",
		wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED: "policy denied what it asked for", wasmagentv1.StopReason_STOP_REASON_EXPLICIT: "somebody stopped it", wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED: "it is done",
	}; names[r] != "" {
		return names[r]
	}
	return strconv.Itoa(int(r))
}
