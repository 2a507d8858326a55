package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

const (
	// maxEnvelope limits the size of an envelope from a guest, in bytes.
	maxEnvelope = 1 << 20
	// maxCancels limits how many cancel envelopes a guest receives after its caller has given up. If the guest still
	// does not end its turn, the turn is undone.
	maxCancels = 3
	// maxSleep limits how long a guest may sleep in total during one turn.
	maxSleep = 10 * time.Minute
	// maxResultBytes limits the size of the result of an effect, in bytes. The JSON encoding of a result, and the
	// answer of a tool, may be four times as large.
	maxResultBytes = 256 << 10
	// maxTurnEventBytes limits the total size of one turn's events, in bytes.
	maxTurnEventBytes = 32 << 20
	// flushInterval limits how long a turn's events are buffered before they are stored. maxWaitingEvents limits how
	// many events are buffered. Readers of the journal see only stored events.
	flushInterval    = time.Second
	maxWaitingEvents = 64
	// maxPrintedBytes limits how much of the guest's output the journal records per turn, in bytes. The output of a
	// failed step does not count toward this limit.
	maxPrintedBytes = 64 << 10
)

type turn struct {
	// ctx is cancelled when the turn ends, and cancel cancels it with a cause. callerCtx is cancelled when the caller
	// of the prompt gives up. unfollow detaches the turn from its caller.
	ctx       context.Context //nolint:containedctx // it is the context of one turn
	cancel    context.CancelCauseFunc
	callerCtx context.Context //nolint:containedctx // see above
	unfollow  func() (stopped bool)
	progress  func(string)
	// releaseSlot releases the guest's slot. It is nil if the guest has no slot. parked is closed when the turn waits
	// for an approval, so that the caller of the prompt no longer needs to wait.
	releaseSlot func()
	parked      chan struct{}
	// detached is true if the turn continues without its caller. madeCalls is true if the turn has made or may have
	// made a call. done is closed after the turn has ended.
	detached, madeCalls bool
	done                chan struct{}
	// modelMissing is true if the guest has asked a model although no model is configured.
	modelMissing bool
	// stateBefore is the state to which the agent returns if the turn is undone.
	stateBefore state
	// waiting describes why the turn waits. It is nil if the turn does not wait. The agent's mutex guards this field.
	waiting *wasmagentv1.Waiting
	// approval is the id of the approval for which the turn waits. It is empty if the turn does not wait for an
	// approval.
	approval string

	instance    *worker.Instance
	effectCount int
	fuelUsed    int64
	workTime    time.Duration
	sleepTime   time.Duration

	// startFuel is the fuel that the guest used while it started, and startOutput is the output that it printed while
	// it started.
	startFuel   int64
	startOutput string
	// lastEmitted is the event that records the guest's newest envelope. eventContext contains the decision id and the
	// approval id for the next event. interrupted describes the effect of a resumed turn that was running when the
	// turn's process exited.
	lastEmitted  *wasmagentv1.Event
	eventContext *wasmagentv1.Event
	interrupted  interruptedCall
	// flushedAt is when events were last stored. eventBytes is the total size of the turn's events, in bytes.
	flushedAt  time.Time
	eventBytes int64
	// printedBytes is the size of the guest's output in this turn, in bytes. failedOutput is the output of the step
	// that failed.
	printedBytes int
	failedOutput string
}

func (t *turn) storeTurn() store.Turn {
	if t.detached {
		return store.DetachedTurn
	}
	return store.AttachedTurn
}

// A Prompt is input for an agent.
type Prompt struct {
	Input string
	// Caller describes the caller. If the caller's context is cancelled, the turn is undone, unless the turn waits for
	// an approval. ApprovalWait limits how long the caller waits for an approval. After that, the turn continues
	// without the caller.
	Caller       Caller
	ApprovalWait time.Duration
	// Progress receives progress messages for people. It must not block, and it may be nil. It is not called after
	// [Agent.Prompt] has returned.
	Progress func(string)
}

// Answer is the result of a prompt.
type Answer struct {
	// Text is the agent's answer. It is empty if IsParked is set.
	Text string
	// IsParked is true if the turn waits for an approval. The turn then continues in the background.
	IsParked bool
	// Agent describes the agent after the turn. If IsParked is set, it describes the agent when [Agent.Prompt]
	// returned.
	Agent *wasmagentv1.Agent
}

var (
	errSleepTooLong   = fmt.Errorf("a turn may sleep for %s at most", maxSleep)
	errResultTooLarge = fmt.Errorf("the result has more than %d bytes: read the file in parts, with offset and limit", maxResultBytes)
	errTooManyEffects = errors.New("the turn has reached its maximum number of effects")
	errTurnTooLarge   = fmt.Errorf("%w: all effects and results of a turn may have %d MiB", errTooManyEffects, maxTurnEventBytes>>20)
	errCancelled      = errors.New("the caller of the prompt has given up")
	errShutdown       = errors.New("the service stops")
	errStale          = errors.New("another process has changed the agent")
	errPanic          = errors.New("the program that runs agents has a fault: the log of the wasmagent role has the details")
)

// Prompt runs a turn of the agent. It returns [ErrBusy], [ErrTerminated], [ErrStopped], [ErrFailed], [ErrTurnFailed],
// [ErrCallsStopped], [ErrPromptsFull], [ErrUnavailable], [ErrNotStored], [ErrTurnLost], or an error from the host or
// the context.
func (a *Agent) Prompt(p Prompt) (Answer, error) {
	listens := &progressListener{progress: p.Progress}
	defer listens.stop()
	p.Progress = listens.send
	t, err := a.beginTurn(p)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	go func() {
		defer close(t.done)
		defer t.cancel(nil)
		answer, err = a.runTurn(t, func() (envelope abi.GuestEnvelope, memory []byte, err error) {
			if err := a.acquireSlot(t, false); err != nil {
				return envelope, nil, err
			}
			return a.runPrompt(t, p.Input)
		})
	}()
	select {
	case <-t.done:
		return answer, err
	case <-t.parked:
	}
	select {
	case <-t.done:
	case <-time.After(p.ApprovalWait):
	case <-p.Caller.Context.Done():
	}
	select {
	case <-t.done:
		return answer, err
	default:
		return Answer{IsParked: true, Agent: a.Proto()}, nil
	}
}

// runTurn runs a turn to its end and returns the answer. If this program panics, the turn fails as if the guest had
// trapped.
func (a *Agent) runTurn(t *turn, run func() (abi.GuestEnvelope, []byte, error)) (answer Answer, err error) {
	envelope, memory, err := func() (envelope abi.GuestEnvelope, memory []byte, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				a.Host.LogPanic(t.ctx, a, fault, debug.Stack())
				err = errPanic
			}
			if t.instance != nil { // nil if the guest has released its slot and could not be restored
				_ = t.instance.Close(context.WithoutCancel(t.ctx)) // fails if the worker has ended, which also ends the instance
			}
		}()
		return run()
	}()
	if t.releaseSlot != nil {
		t.releaseSlot()
	}
	answer, err = a.endTurnSafely(t, envelope, memory, err)
	if t.detached {
		a.Host.DetachedTurnEnded(t.ctx, a, err)
	}
	return answer, err
}

// endTurnSafely ends the turn. If ending the turn panics, endTurnSafely marks the agent as stale, so that the agent is
// loaded again. Otherwise the agent in memory would have a turn that never ends.
func (a *Agent) endTurnSafely(t *turn, envelope abi.GuestEnvelope, memory []byte, cause error) (answer Answer, err error) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		a.Host.LogPanic(t.ctx, a, fault, debug.Stack())
		answer, err = Answer{}, fmt.Errorf("%w: %w", ErrFailed, errPanic)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.turn, a.stale = nil, true
	}()
	return a.endTurn(t, envelope, memory, cause)
}

// Shutdown cancels the running turn because the service is stopping, and waits until the turn has ended. If the turn
// has no caller, the next process continues it.
func (a *Agent) Shutdown() {
	a.mu.Lock()
	t := a.turn
	a.mu.Unlock()
	if t != nil {
		t.cancel(errShutdown)
		<-t.done
	}
}

// beginTurn starts a turn. It returns an error if the agent's state does not allow prompts.
func (a *Agent) beginTurn(p Prompt) (*turn, error) {
	ctx := p.Caller.Context
	if err := a.lockForChange(ctx, false); err != nil {
		return nil, err
	}
	defer a.unlockChange()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.status { //nolint:exhaustive // in all other states the agent takes prompts
	case wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return nil, ErrTerminated
	case wasmagentv1.AgentState_AGENT_STATE_STOPPED:
		return nil, fmt.Errorf("%w: %s", ErrStopped, stopReasonText(a.stopReason))
	case wasmagentv1.AgentState_AGENT_STATE_FAILED:
		return nil, fmt.Errorf("%w: %s", ErrFailed, a.failure.GetMessage())
	}
	t := a.newTurn(ctx)
	t.progress, t.eventContext = p.Progress, &wasmagentv1.Event{Actor: p.Caller.Subject}
	var cancelCaller context.CancelCauseFunc
	t.callerCtx, cancelCaller = context.WithCancelCause(context.WithoutCancel(ctx))
	t.unfollow = context.AfterFunc(ctx, func() { cancelCaller(context.Cause(ctx)) })
	return t, nil
}

// newTurn returns a new turn. The caller must hold the agent's mutex and prevent other changes to the agent.
func (a *Agent) newTurn(ctx context.Context) *turn {
	t := &turn{stateBefore: a.state, parked: make(chan struct{}), done: make(chan struct{}), flushedAt: time.Now()}
	t.stateBefore.files = a.files.Clone()
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // ends with the turn, not with the call
	a.turn, a.status = t, wasmagentv1.AgentState_AGENT_STATE_RUNNING
	return t
}

// runPrompt runs a turn until the guest returns its last envelope. It returns that envelope and the guest's memory.
func (a *Agent) runPrompt(t *turn, input string) (envelope abi.GuestEnvelope, memory []byte, err error) {
	if err := a.startGuest(t); err != nil {
		return envelope, nil, err
	}
	a.addPrompt(input)
	if envelope, err = a.giveEnvelope(t, abi.HostEnvelope{Kind: abi.Prompt, Input: input}); err != nil {
		return envelope, nil, err
	}
	return a.runEffects(t, envelope)
}

func (a *Agent) addPrompt(input string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addMessage(wasmagentv1.MessageRole_MESSAGE_ROLE_USER, input)
}

// runEffects carries out the effects that the guest requests, until the guest ends its turn.
func (a *Agent) runEffects(t *turn, envelope abi.GuestEnvelope) (_ abi.GuestEnvelope, memory []byte, err error) {
	for cancels := 0; envelope.Kind != abi.Finish && envelope.Kind != abi.Fail; {
		if t.effectCount++; t.effectCount > a.Limits.Effects {
			return envelope, nil, errTooManyEffects
		}
		next := abi.HostEnvelope{Kind: abi.Cancel, Reason: "the caller has given up"}
		if t.callerCtx.Err() == nil {
			t.eventContext = new(wasmagentv1.Event)
			if next, err = a.runEffect(t, envelope); err != nil {
				return envelope, nil, err
			}
			t.interrupted = interruptedCall{}
		}
		if t.callerCtx.Err() != nil { // the caller has given up during the effect, which is already in the journal
			if cancels++; cancels > maxCancels {
				return envelope, nil, errCancelled
			}
			next = abi.HostEnvelope{Kind: abi.Cancel, Reason: "the caller has given up"}
		}
		if envelope, err = a.giveEnvelope(t, next); err != nil {
			return envelope, nil, err
		}
	}
	if t.callerCtx.Err() != nil {
		return envelope, nil, errCancelled
	}
	memory, err = t.instance.Snapshot(t.ctx)
	return envelope, memory, err
}

// startGuest restores the guest from its stored memory. If there is none, it starts a new guest.
func (a *Agent) startGuest(t *turn) (err error) {
	if t.stateBefore.memory != nil {
		t.instance, err = a.Workers.Restore(t.ctx, a.module, a.engineLimits(), t.stateBefore.memory)
		return err
	}
	if err = a.startNewGuest(t); err != nil {
		return err
	}
	actor := t.eventContext
	model, _ := a.Host.Model(a, "")
	envelope, err := a.giveEnvelope(t, abi.HostEnvelope{
		Kind: abi.Start, Instructions: a.Instructions, MaxTurns: t.stateBefore.maxTurns, Model: model, Messages: t.stateBefore.startMessages(), Todos: t.stateBefore.startTodos(),
	})
	t.eventContext = actor
	if err == nil && envelope.Kind != abi.Finish {
		err = fmt.Errorf("%w: its answer to the start is %q", engine.ErrTrap, envelope.Kind)
	}
	return err
}

func (a *Agent) startNewGuest(t *turn) (err error) {
	t.instance, t.startFuel, err = a.Workers.Start(t.ctx, a.module, a.engineLimits(), a.guestOrigin(), a.Limits.Fuel, a.Limits.Deadline)
	t.fuelUsed += t.startFuel
	if err != nil {
		t.failedOutput = worker.PrintedOf(err)
		return err
	}
	t.startOutput = t.instance.Printed()
	return nil
}

// guestOrigin returns the guest's start time and random seed. They depend only on the creation of the original agent,
// so that a rerun from the journal has the same result.
func (a *Agent) guestOrigin() engine.Origin {
	return engine.Origin{Clock: uint64(a.JournalCreatedAt.UnixNano()), Seed: sha256.Sum256([]byte(a.JournalID))}
}

func (a *Agent) engineLimits() engine.Limits {
	return engine.Limits{Memory: a.Limits.Memory, Envelope: maxEnvelope}
}

// giveEnvelope records an envelope in the journal and sends it to the guest.
func (a *Agent) giveEnvelope(t *turn, in abi.HostEnvelope) (abi.GuestEnvelope, error) {
	a.mu.Lock()
	a.sequence++
	in.Sequence = a.sequence
	a.mu.Unlock()
	text, err := abi.Encode(in)
	if err != nil {
		return abi.GuestEnvelope{}, err
	}
	inputEvent := &wasmagentv1.Event{
		Kind: wasmagentv1.EventKind_EVENT_KIND_INPUT, DecisionId: t.eventContext.GetDecisionId(), Code: t.eventContext.GetCode(), ApprovalId: t.eventContext.GetApprovalId(), Actor: t.eventContext.GetActor(),
	}
	if in.Kind == abi.Result || in.Kind == abi.Cancel {
		inputEvent.Effect, inputEvent.EffectSequence = t.lastEmitted.GetEffect(), t.lastEmitted.GetSequence()
	}
	if in.Kind == abi.Result {
		inputEvent.Kind = wasmagentv1.EventKind_EVENT_KIND_RESULT
	}
	a.recordEvent(t, inputEvent, text)
	if err := a.flushIfDue(t); err != nil {
		return abi.GuestEnvelope{}, err
	}
	return a.stepGuest(t, text)
}

// flushIfDue stores the buffered events if there are too many of them, or if too much time has passed since events were
// last stored. It returns an error if the turn's events are too large together.
func (a *Agent) flushIfDue(t *turn) error {
	if t.eventBytes > maxTurnEventBytes {
		return errTurnTooLarge
	}
	if len(a.journal.waiting) < maxWaitingEvents && time.Since(t.flushedAt) < flushInterval {
		return nil
	}
	t.flushedAt = time.Now()
	return a.flushEvents(t.ctx, t.storeTurn())
}

// stepGuest sends the guest an envelope that is already in the journal, and records the guest's answer.
func (a *Agent) stepGuest(t *turn, text []byte) (abi.GuestEnvelope, error) {
	remaining := a.Limits.Deadline - t.workTime
	if remaining <= 0 {
		return abi.GuestEnvelope{}, engine.ErrDeadline
	}
	answer, fuel, err := t.instance.Step(t.ctx, text, a.Limits.Fuel-t.fuelUsed, remaining)
	t.workTime += t.instance.LastDuration()
	t.fuelUsed += fuel
	if err != nil {
		t.failedOutput = t.startOutput + worker.PrintedOf(err)
		return abi.GuestEnvelope{}, err
	}
	envelope, err := abi.Decode(answer)
	if err != nil {
		t.failedOutput = t.startOutput + t.instance.Printed()
		return abi.GuestEnvelope{}, fmt.Errorf("%w: %w", engine.ErrTrap, err)
	}
	t.lastEmitted = a.recordEvent(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_EMITTED, Effect: effectKinds[envelope.Kind], Fuel: t.startFuel + fuel}, answer)
	a.recordOutput(t, t.startOutput+t.instance.Printed())
	t.startFuel, t.startOutput = 0, ""
	return envelope, nil
}

func (a *Agent) recordOutput(t *turn, text string) {
	if text == "" || t.printedBytes > maxPrintedBytes {
		return
	}
	if t.printedBytes += len(text); t.printedBytes > maxPrintedBytes {
		text = fmt.Sprintf("(the guest printed more than %d KiB in this turn; the rest is left out)", maxPrintedBytes>>10)
	}
	a.recordEvent(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_PRINTED, Message: text}, nil)
}

// recordEvent appends an event of the turn to the journal and counts its size.
func (a *Agent) recordEvent(t *turn, e *wasmagentv1.Event, envelope []byte) *wasmagentv1.Event {
	e.Epoch = int32(a.epoch)
	before := a.journal.head.GetBytes()
	out := a.journal.add(e, envelope)
	t.eventBytes += a.journal.head.GetBytes() - before
	return out
}

// recordEffectEvent records an event about the effect that the guest has requested last.
func (a *Agent) recordEffectEvent(t *turn, kind wasmagentv1.EventKind) {
	a.recordEvent(t, &wasmagentv1.Event{
		Kind: kind, Effect: t.lastEmitted.GetEffect(), EffectSequence: t.lastEmitted.GetSequence(), ApprovalId: t.eventContext.GetApprovalId(), DecisionId: t.eventContext.GetDecisionId(),
	}, nil)
}

var effectKinds = map[string]wasmagentv1.EffectKind{
	abi.Model: wasmagentv1.EffectKind_EFFECT_KIND_MODEL, abi.Tool: wasmagentv1.EffectKind_EFFECT_KIND_TOOL, abi.FS: wasmagentv1.EffectKind_EFFECT_KIND_FS,
	abi.Todo: wasmagentv1.EffectKind_EFFECT_KIND_TODO, abi.Emit: wasmagentv1.EffectKind_EFFECT_KIND_EMIT, abi.Tools: wasmagentv1.EffectKind_EFFECT_KIND_TOOLS, abi.Sleep: wasmagentv1.EffectKind_EFFECT_KIND_SLEEP,
	abi.Finish: wasmagentv1.EffectKind_EFFECT_KIND_FINISH, abi.Fail: wasmagentv1.EffectKind_EFFECT_KIND_FAIL,
}
