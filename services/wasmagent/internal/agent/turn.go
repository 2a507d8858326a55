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
	// maxEnvelope bounds an envelope of a guest, in bytes.
	maxEnvelope = 1 << 20
	// maxCancels is how many cancel envelopes a guest gets after its caller gave up. After that, the turn is undone.
	maxCancels = 3
	// maxSleep bounds the total time that a turn sleeps.
	maxSleep = 10 * time.Minute
	// maxResult bounds the result of an effect, in bytes. The JSON of a result, and the answer of a tool, may have four
	// times as many bytes.
	maxResult = 256 << 10
	// maxNoted bounds the total size of one turn's events, in bytes.
	maxNoted = 32 << 20
	// flushTime is how long events of a turn may wait until they are stored, and maxWaiting is how many events may
	// wait. Readers of the journal see only stored events.
	flushTime  = time.Second
	maxWaiting = 64
	// maxPrinted bounds the output of a guest that the journal records in one turn, in bytes. The output of a step that
	// fails is recorded in addition.
	maxPrinted = 64 << 10
)

// A turn is the work of an agent on one prompt.
type turn struct {
	// ctx ends with the turn; cut cancels it with a cause. caller ends when the caller of the prompt gives up; follow
	// detaches the turn from its caller.
	ctx    context.Context //nolint:containedctx // it is the context of one turn
	cut    context.CancelCauseFunc
	caller context.Context //nolint:containedctx // see above
	follow func() (stopped bool)
	tell   func(string)
	// leave gives the guest's place back; nil if the guest has no place. parked is closed when the caller of the prompt
	// need not wait any longer, because the turn waits for an approval.
	leave  func()
	parked chan struct{}
	// alone is true if the turn continues without its caller. called is true if the turn made a call, or may have made
	// one. done is closed after the turn has ended.
	alone, called bool
	done          chan struct{}
	// noModel is true if the guest asked for a model and no model is configured.
	noModel bool
	// before is the state to which the agent returns if the turn is undone.
	before state
	// waiting describes what the turn waits for; nil if it does not wait. The mutex of the agent guards it.
	waiting *wasmagentv1.Waiting
	// approval is the id of the approval that the turn waits for; empty if there is none.
	approval string

	instance *worker.Instance
	effects  int
	fuel     int64
	worked   time.Duration
	slept    time.Duration

	// first is the fuel that the start of the guest used, and begun is the output of the start.
	first int64
	begun string
	// emitted is the event of the guest's newest envelope. about has the decision and the approval for the next event.
	// left describes the interrupted effect with which a continued turn begins.
	emitted *wasmagentv1.Event
	about   *wasmagentv1.Event
	left    left
	// flushed is the time at which events were last stored, and noted is the total size of the turn's events, in bytes.
	flushed time.Time
	noted   int64
	// printed is the size of the guest's output in this turn, in bytes. last is the output of a step that failed.
	printed int
	last    string
}

// kind returns the kind of the turn as the store records it.
func (t *turn) kind() store.Turn {
	if t.alone {
		return store.Alone
	}
	return store.Follows
}

// A Prompt is input for an agent.
type Prompt struct {
	Input string
	// By is the caller. If the caller's context ends, the turn is undone, unless it waits for an approval. A caller
	// whose turn waits for an approval waits at most for Hold; the turn then continues without it.
	By   By
	Hold time.Duration
	// Tell receives the agent's progress as texts for people. It must not block. It is not called after [Agent.Prompt]
	// has returned. It may be nil.
	Tell func(string)
}

// Answer is the result of a prompt.
type Answer struct {
	// Text is the agent's answer; empty if Parked is set.
	Text string
	// Parked is true if the turn waits for an approval. It continues by itself.
	Parked bool
	// Agent describes the agent after the turn, or at the time of the return if Parked is set.
	Agent *wasmagentv1.Agent
}

var (
	errSleep     = fmt.Errorf("a turn may sleep for %s at most", maxSleep)
	errLarge     = fmt.Errorf("the result has more than %d bytes: read the file in parts, with offset and limit", maxResult)
	errEffects   = errors.New("the turn has reached its maximum number of effects")
	errNoted     = fmt.Errorf("%w: all effects and results of a turn may have %d MiB", errEffects, maxNoted>>20)
	errCancelled = errors.New("the caller of the prompt has given up")
	errShut      = errors.New("the service stops")
	errLost      = errors.New("another process has changed the agent")
	errFault     = errors.New("the program that runs agents has a fault: the log of the wasmagent role has the details")
)

// Prompt runs a turn of the agent. Errors: [ErrBusy], [ErrTerminated], [ErrStopped], [ErrFailed], [ErrTurn],
// [ErrPlaces], [ErrAway], [ErrKeep], [ErrCalled], those of the host and of the context.
func (a *Agent) Prompt(p Prompt) (Answer, error) {
	listens := &listener{tell: p.Tell}
	defer listens.end()
	p.Tell = listens.hear
	t, err := a.begin(p)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	go func() {
		defer close(t.done)
		defer t.cut(nil)
		answer, err = a.play(t, func() (out abi.Out, memory []byte, err error) {
			if err := a.enter(t, false); err != nil {
				return out, nil, err
			}
			return a.run(t, p.Input)
		})
	}()
	select {
	case <-t.done:
		return answer, err
	case <-t.parked:
	}
	select {
	case <-t.done:
	case <-time.After(p.Hold):
	case <-p.By.Context.Done():
	}
	select {
	case <-t.done:
		return answer, err
	default:
		return Answer{Parked: true, Agent: a.Proto()}, nil
	}
}

// play runs a turn to its end and returns the answer. If this program panics, the turn fails in the same way as after a
// trap of the guest.
func (a *Agent) play(t *turn, run func() (abi.Out, []byte, error)) (answer Answer, err error) {
	out, memory, err := func() (out abi.Out, memory []byte, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				a.Host.Fault(t.ctx, a, fault, debug.Stack())
				err = errFault
			}
			if t.instance != nil { // otherwise the guest gave its place away and was not restored
				_ = t.instance.Close(context.WithoutCancel(t.ctx)) // if its worker is gone, so is the instance
			}
		}()
		return run()
	}()
	if t.leave != nil {
		t.leave()
	}
	answer, err = a.endSafely(t, out, memory, err)
	if t.alone {
		a.Host.Alone(t.ctx, a, err)
	}
	return answer, err
}

// endSafely ends the turn. If that panics, endSafely marks the agent as lost. Otherwise the agent in memory would keep
// a turn that never ends.
func (a *Agent) endSafely(t *turn, out abi.Out, memory []byte, cause error) (answer Answer, err error) {
	defer func() {
		fault := recover()
		if fault == nil {
			return
		}
		a.Host.Fault(t.ctx, a, fault, debug.Stack())
		answer, err = Answer{}, fmt.Errorf("%w: %w", ErrFailed, errFault)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.turn, a.lost = nil, true
	}()
	return a.end(t, out, memory, cause)
}

// Shut cancels the running turn because the service stops, and waits for its end. A turn without a caller is continued
// by the next process.
func (a *Agent) Shut() {
	a.mu.Lock()
	t := a.turn
	a.mu.Unlock()
	if t != nil {
		t.cut(errShut)
		<-t.done
	}
}

// begin starts a turn, unless the state of the agent does not allow prompts.
func (a *Agent) begin(p Prompt) (*turn, error) {
	ctx := p.By.Context
	if err := a.take(ctx, false); err != nil {
		return nil, err
	}
	defer a.give()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.at { //nolint:exhaustive // in all other states the agent takes prompts
	case wasmagentv1.AgentState_AGENT_STATE_TERMINATED:
		return nil, ErrTerminated
	case wasmagentv1.AgentState_AGENT_STATE_STOPPED:
		return nil, fmt.Errorf("%w: %s", ErrStopped, stopName(a.stop))
	case wasmagentv1.AgentState_AGENT_STATE_FAILED:
		return nil, fmt.Errorf("%w: %s", ErrFailed, a.failure.GetMessage())
	}
	t := a.newTurn(ctx)
	t.tell, t.about = p.Tell, &wasmagentv1.Event{Actor: p.By.Actor}
	var gone context.CancelCauseFunc
	t.caller, gone = context.WithCancelCause(context.WithoutCancel(ctx))
	t.follow = context.AfterFunc(ctx, func() { gone(context.Cause(ctx)) })
	return t, nil
}

// newTurn returns a new turn. The caller holds the agent's mutex and prevents other changes of the agent.
func (a *Agent) newTurn(ctx context.Context) *turn {
	t := &turn{before: a.state, parked: make(chan struct{}), done: make(chan struct{}), flushed: time.Now()}
	t.before.files = a.files.Clone()
	t.ctx, t.cut = context.WithCancelCause(context.WithoutCancel(ctx)) // ends with the turn, not with the call
	a.turn, a.at = t, wasmagentv1.AgentState_AGENT_STATE_RUNNING
	return t
}

// run runs a turn up to the guest's last envelope. It returns that envelope and the guest's memory.
func (a *Agent) run(t *turn, input string) (out abi.Out, memory []byte, err error) {
	if err := a.start(t); err != nil {
		return out, nil, err
	}
	a.hear(input)
	if out, err = a.step(t, abi.In{Kind: abi.Prompt, Input: input}); err != nil {
		return out, nil, err
	}
	return a.goOn(t, out)
}

// hear adds the input of a prompt to the conversation.
func (a *Agent) hear(input string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.say(wasmagentv1.MessageRole_MESSAGE_ROLE_USER, input)
}

// goOn carries out the effects that the guest asks for, until the guest finishes its turn.
func (a *Agent) goOn(t *turn, out abi.Out) (_ abi.Out, memory []byte, err error) {
	for cancels := 0; out.Kind != abi.Finish && out.Kind != abi.Fail; {
		if t.effects++; t.effects > a.Limits.Effects {
			return out, nil, errEffects
		}
		next := abi.In{Kind: abi.Cancel, Reason: "the caller has given up"}
		if t.caller.Err() == nil {
			t.about = new(wasmagentv1.Event)
			if next, err = a.effect(t, out); err != nil {
				return out, nil, err
			}
			t.left = left{}
		}
		if t.caller.Err() != nil { // the caller gave up during the effect, which the journal has
			if cancels++; cancels > maxCancels {
				return out, nil, errCancelled
			}
			next = abi.In{Kind: abi.Cancel, Reason: "the caller has given up"}
		}
		if out, err = a.step(t, next); err != nil {
			return out, nil, err
		}
	}
	if t.caller.Err() != nil {
		return out, nil, errCancelled
	}
	memory, err = t.instance.Snapshot(t.ctx)
	return out, memory, err
}

// start restores the guest from its memory, or starts a new guest if there is no memory yet.
func (a *Agent) start(t *turn) (err error) {
	if t.before.memory != nil {
		t.instance, err = a.Workers.Restore(t.ctx, a.module, a.engineLimits(), t.before.memory)
		return err
	}
	if err = a.startAnew(t); err != nil {
		return err
	}
	actor := t.about
	model, _ := a.Host.Model(a, "")
	out, err := a.step(t, abi.In{
		Kind: abi.Start, Instructions: a.Instructions, MaxTurns: t.before.maxTurns, Model: model, Messages: t.before.told(), Todos: t.before.listed(),
	})
	t.about = actor
	if err == nil && out.Kind != abi.Finish {
		err = fmt.Errorf("%w: its answer to the start is %q", engine.ErrTrap, out.Kind)
	}
	return err
}

func (a *Agent) startAnew(t *turn) (err error) {
	t.instance, t.first, err = a.Workers.Start(t.ctx, a.module, a.engineLimits(), a.origin(), a.Limits.Fuel, a.Limits.Deadline)
	t.fuel += t.first
	if err != nil {
		t.last = worker.PrintedOf(err)
		return err
	}
	t.begun = t.instance.Printed()
	return nil
}

// origin returns the clock and the random seed of the guest at its start. They are always the same, so that the guest
// can be run again from its journal.
func (a *Agent) origin() engine.Origin {
	return engine.Origin{Clock: uint64(a.Origin.UnixNano()), Seed: sha256.Sum256([]byte(a.JournalID))}
}

func (a *Agent) engineLimits() engine.Limits {
	return engine.Limits{Memory: a.Limits.Memory, Envelope: maxEnvelope}
}

// step records an envelope in the journal and gives it to the guest.
func (a *Agent) step(t *turn, in abi.In) (abi.Out, error) {
	a.mu.Lock()
	a.sequence++
	in.Sequence = a.sequence
	a.mu.Unlock()
	text, err := abi.Write(in)
	if err != nil {
		return abi.Out{}, err
	}
	given := &wasmagentv1.Event{
		Kind: wasmagentv1.EventKind_EVENT_KIND_INPUT, DecisionId: t.about.GetDecisionId(), Code: t.about.GetCode(), ApprovalId: t.about.GetApprovalId(), Actor: t.about.GetActor(),
	}
	if in.Kind == abi.Result || in.Kind == abi.Cancel {
		given.Effect, given.EffectSequence = t.emitted.GetEffect(), t.emitted.GetSequence()
	}
	if in.Kind == abi.Result {
		given.Kind = wasmagentv1.EventKind_EVENT_KIND_RESULT
	}
	a.noteTurn(t, given, text)
	if err := a.flushSome(t); err != nil {
		return abi.Out{}, err
	}
	return a.stepped(t, text)
}

// flushSome stores the waiting events if there are too many, or if they have waited too long.
func (a *Agent) flushSome(t *turn) error {
	if t.noted > maxNoted {
		return errNoted
	}
	if len(a.journal.waiting) < maxWaiting && time.Since(t.flushed) < flushTime {
		return nil
	}
	t.flushed = time.Now()
	return a.flush(t.ctx, t.kind())
}

// stepped gives the guest an envelope that is in the journal already, and records the guest's answer.
func (a *Agent) stepped(t *turn, text []byte) (abi.Out, error) {
	left := a.Limits.Deadline - t.worked
	if left <= 0 {
		return abi.Out{}, engine.ErrDeadline
	}
	answer, fuel, err := t.instance.Step(t.ctx, text, a.Limits.Fuel-t.fuel, left)
	t.worked += t.instance.Took()
	t.fuel += fuel
	if err != nil {
		t.last = t.begun + worker.PrintedOf(err)
		return abi.Out{}, err
	}
	out, err := abi.Read(answer)
	if err != nil {
		t.last = t.begun + t.instance.Printed()
		return abi.Out{}, fmt.Errorf("%w: %w", engine.ErrTrap, err)
	}
	t.emitted = a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_EMITTED, Effect: effectKinds[out.Kind], Fuel: t.first + fuel}, answer)
	a.notePrinted(t, t.begun+t.instance.Printed())
	t.first, t.begun = 0, ""
	return out, nil
}

// notePrinted records the guest's output, up to maxPrinted bytes in a turn.
func (a *Agent) notePrinted(t *turn, text string) {
	if text == "" || t.printed > maxPrinted {
		return
	}
	if t.printed += len(text); t.printed > maxPrinted {
		text = fmt.Sprintf("(the guest printed more than %d KiB in this turn; the rest is left out)", maxPrinted>>10)
	}
	a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_PRINTED, Message: text}, nil)
}

// noteTurn appends an event of the turn to the journal and counts its size.
func (a *Agent) noteTurn(t *turn, e *wasmagentv1.Event, envelope []byte) *wasmagentv1.Event {
	e.Epoch = int32(a.epoch)
	before := a.journal.head.GetBytes()
	out := a.journal.note(e, envelope)
	t.noted += a.journal.head.GetBytes() - before
	return out
}

// effectEvent records an event about the effect that the guest asked for last.
func (a *Agent) effectEvent(t *turn, kind wasmagentv1.EventKind) {
	a.noteTurn(t, &wasmagentv1.Event{
		Kind: kind, Effect: t.emitted.GetEffect(), EffectSequence: t.emitted.GetSequence(), ApprovalId: t.about.GetApprovalId(), DecisionId: t.about.GetDecisionId(),
	}, nil)
}

// effectKinds maps the guest's messages to the kinds of effects in events.
var effectKinds = map[string]wasmagentv1.EffectKind{
	abi.Model: wasmagentv1.EffectKind_EFFECT_KIND_MODEL, abi.Tool: wasmagentv1.EffectKind_EFFECT_KIND_TOOL, abi.FS: wasmagentv1.EffectKind_EFFECT_KIND_FS,
	abi.Todo: wasmagentv1.EffectKind_EFFECT_KIND_TODO, abi.Emit: wasmagentv1.EffectKind_EFFECT_KIND_EMIT, abi.Tools: wasmagentv1.EffectKind_EFFECT_KIND_TOOLS, abi.Sleep: wasmagentv1.EffectKind_EFFECT_KIND_SLEEP,
	abi.Finish: wasmagentv1.EffectKind_EFFECT_KIND_FINISH, abi.Fail: wasmagentv1.EffectKind_EFFECT_KIND_FAIL,
}
