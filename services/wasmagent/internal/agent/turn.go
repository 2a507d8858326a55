package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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
	// maxResult is how long what an effect answers may be, in bytes, as it is and as JSON.
	maxResult = 256 << 10
)

// A turn is a prompt that an agent works on.
type turn struct {
	// ctx ends with the turn; cut ends it for a reason. caller ends with whoever prompts.
	ctx    context.Context //nolint:containedctx // it is the turn's, which is one call
	cut    context.CancelCauseFunc
	caller context.Context //nolint:containedctx // see above
	tell   func(string)
	// before is what is gone back to where the turn is undone.
	before state
	// waits is since when an effect is outstanding; zero where none is. The agent's lock
	// guards it.
	waits time.Time

	instance *worker.Instance
	effects  int
	fuel     int64
	worked   time.Duration
	slept    time.Duration
}

// Answer is what came of a prompt.
type Answer struct {
	// Text is what the agent answered.
	Text string
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
// the turn ends. Errors: [ErrBusy], [ErrTerminated], [ErrStopped], [ErrFailed], [ErrTurn],
// [ErrAway], and ctx's.
func (a *Agent) Prompt(ctx context.Context, input string, tell func(string)) (Answer, error) {
	t, err := a.begin(ctx, input, tell)
	if err != nil {
		return Answer{}, err
	}
	defer t.cut(nil)
	out, snapshot, err := a.run(t, input)
	return a.end(t, out, snapshot, err)
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
	t := &turn{caller: ctx, tell: tell, before: a.state}
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
	defer func() { _ = t.instance.Close(context.WithoutCancel(t.ctx)) }() // or the worker is gone, and it too
	if out, err = a.step(t, abi.In{Kind: abi.Prompt, Input: input}); err != nil {
		return out, nil, err
	}
	for cancels := 0; out.Kind != abi.Finish && out.Kind != abi.Fail; {
		if t.effects++; t.effects > a.Limits.Effects {
			return out, nil, errEffects
		}
		next := abi.In{Kind: abi.Cancel, Reason: "nobody waits any more"}
		if t.caller.Err() == nil {
			next = a.effect(t, out)
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
	limits := engine.Limits{Memory: a.Limits.Memory, Envelope: maxEnvelope}
	if t.before.snapshot != nil {
		t.instance, err = a.workers.Restore(t.ctx, a.Digest, limits, t.before.snapshot)
		return err
	}
	from := engine.Origin{Clock: uint64(a.Created.UnixNano()), Seed: sha256.Sum256([]byte(a.ID))}
	t.instance, t.fuel, err = a.workers.Start(t.ctx, a.Digest, limits, from, a.Limits.Fuel, a.Limits.Deadline)
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
	return fmt.Errorf("%w: %w", ErrAway, err)
}

// effect does what a guest asks for, and returns what it is told.
func (a *Agent) effect(t *turn, out abi.Out) abi.In {
	in := abi.In{Kind: abi.Result}
	var err error
	switch out.Kind {
	case abi.FS:
		in.Result, err = a.fs(out)
	case abi.Todo:
		err = a.todo(out)
	case abi.Emit:
		t.tell(out.Text)
	case abi.Sleep:
		err = a.sleep(t, time.Duration(min(max(out.Milliseconds, 0), maxSleep.Milliseconds()+1))*time.Millisecond)
	case abi.Model:
		in.Error = &abi.Error{Code: "no_model_configured", Message: "no model is configured: this version runs guests without one"}
	case abi.Tool:
		in.Error = &abi.Error{Code: "not_offered", Message: "tools of servers are not offered to agents in this version"}
	}
	if err != nil {
		in.Error = &abi.Error{Code: Code(err), Message: err.Error()}
	}
	return in
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
func (a *Agent) sleep(t *turn, d time.Duration) error {
	if t.slept += d; t.slept > maxSleep {
		return errSleep
	}
	a.wait(t, true)
	defer a.wait(t, false)
	select {
	case <-time.After(d):
	case <-t.ctx.Done():
	case <-t.caller.Done():
	}
	return nil
}

// wait says that an effect is outstanding, or no more.
func (a *Agent) wait(t *turn, waits bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.turn != t || a.takesNone() {
		return
	}
	if waits {
		a.at, t.waits = wasmagentv1.AgentState_AGENT_STATE_WAITING, time.Now()
	} else {
		a.at, t.waits = wasmagentv1.AgentState_AGENT_STATE_RUNNING, time.Time{}
	}
}

func stopName(r wasmagentv1.StopReason) string {
	if names := map[wasmagentv1.StopReason]string{
		wasmagentv1.StopReason_STOP_REASON_MAX_TURNS: "it has taken all its turns", wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS: "a turn had too many effects",
		wasmagentv1.StopReason_STOP_REASON_EXPLICIT: "somebody stopped it", wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED: "it is done",
	}; names[r] != "" {
		return names[r]
	}
	return strconv.Itoa(int(r))
}
