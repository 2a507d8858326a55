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
	// maxEnvelope is how long an envelope of a guest may be, in bytes.
	maxEnvelope = 1 << 20
	// maxCancels is how often a guest is told that nobody waits any more.
	maxCancels = 3
	// maxSleep is how long a turn may sleep in all.
	maxSleep = 10 * time.Minute
	// maxResult is how long what an effect answers may be, in bytes; as JSON it may have four
	// times as much, and so may a tool's answer.
	maxResult = 256 << 10
	// maxNoted is how large the events of one turn may be together, in bytes.
	maxNoted = 32 << 20
	// flushTime is how long events of a turn wait until they are kept, and maxWaiting how many
	// do: those that read the journal see no later ones.
	flushTime  = time.Second
	maxWaiting = 64
	// maxPrinted is how much of what a guest prints in a turn stands in the journal, in bytes. The
	// step that fails is not counted.
	maxPrinted = 64 << 10
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
	// noModel says that its guest asked for a model where none is configured.
	noModel bool
	// before is what is gone back to where the turn is undone.
	before state
	// waiting is what it waits for; nil where it does not. The agent's lock guards it.
	waiting *wasmagentv1.Waiting
	// approval is the one that the turn waits for; empty when the turn waits for none.
	approval string

	instance *worker.Instance
	effects  int
	fuel     int64
	worked   time.Duration
	slept    time.Duration

	// first is what the guest's start took of its fuel, and begun what the guest printed then.
	first int64
	begun string
	// emitted is the newest event of the guest's, about what is known for the next one, and
	// left what the journal says of an effect that is gone on with.
	emitted *wasmagentv1.Event
	about   *wasmagentv1.Event
	left    left
	// flushed is when its events were kept last, and noted how large all are, in bytes.
	flushed time.Time
	noted   int64
	// printed is how much the guest printed, in bytes, and last what it printed in the step that
	// failed.
	printed int
	last    string
}

// kind is what the store is told of the turn.
func (t *turn) kind() store.Turn {
	if t.alone {
		return store.Alone
	}
	return store.Follows
}

// A Prompt is work for an agent.
type Prompt struct {
	Input string
	// By is who gives it. With its context the turn ends, unless people were asked about a
	// call of it: for them whoever prompts waits for as long as Hold, and the turn goes on
	// alone.
	By   By
	Hold time.Duration
	// Tell is told what the agent does, in words for people. It must not block, and is not
	// called after [Agent.Prompt] has returned. It may be nil.
	Tell func(string)
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
	errNoted     = fmt.Errorf("%w: all that it asks for and is told may have %d MiB", errEffects, maxNoted>>20)
	errCancelled = errors.New("whoever prompted has given up")
	errShut      = errors.New("the role stops")
	errLost      = errors.New("another process has changed the agent")
	errFault     = errors.New("the program that runs agents has a fault: the log of the wasmagent role has the details")
)

// Prompt has the agent take a turn. Errors: [ErrBusy], [ErrTerminated], [ErrStopped],
// [ErrFailed], [ErrTurn], [ErrPlaces], [ErrAway], [ErrKeep], [ErrCalled], the host's, and the context's.
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

// play takes the turn, and says what came of it. A panic in this program fails the turn, as a
// trap of the guest does.
func (a *Agent) play(t *turn, run func() (abi.Out, []byte, error)) (answer Answer, err error) {
	out, memory, err := func() (out abi.Out, memory []byte, err error) {
		defer func() {
			if fault := recover(); fault != nil {
				a.Host.Fault(t.ctx, a, fault, debug.Stack())
				err = errFault
			}
			if t.instance != nil { // else it gave its place away, and did not come back
				_ = t.instance.Close(context.WithoutCancel(t.ctx)) // or the worker is gone, and it too
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

// endSafely ends the turn. After a panic the agent is read from the store again, so that no agent
// is left with a turn that has ended.
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

// Shut ends the turn that it takes, if any, and waits for that: the role stops. A turn that
// goes on alone does so with the next process.
func (a *Agent) Shut() {
	a.mu.Lock()
	t := a.turn
	a.mu.Unlock()
	if t != nil {
		t.cut(errShut)
		<-t.done
	}
}

// begin begins a turn.
func (a *Agent) begin(p Prompt) (*turn, error) {
	ctx := p.By.Context
	if err := a.take(ctx, false); err != nil {
		return nil, err
	}
	defer a.give()
	a.mu.Lock()
	defer a.mu.Unlock()
	switch a.at { //nolint:exhaustive // all others take prompts
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

// newTurn needs the lock, and that nobody else changes the agent.
func (a *Agent) newTurn(ctx context.Context) *turn {
	t := &turn{before: a.state, parked: make(chan struct{}), done: make(chan struct{}), flushed: time.Now()}
	t.before.files = a.files.Clone()
	t.ctx, t.cut = context.WithCancelCause(context.WithoutCancel(ctx)) // it ends with the turn, not with whoever prompts
	a.turn, a.at = t, wasmagentv1.AgentState_AGENT_STATE_RUNNING
	return t
}

// run takes the turn, to its last envelope, and keeps the guest.
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

// hear adds a prompt to the conversation.
func (a *Agent) hear(input string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.say(wasmagentv1.MessageRole_MESSAGE_ROLE_USER, input)
}

// goOn does what the guest asks for, until its turn is done.
func (a *Agent) goOn(t *turn, out abi.Out) (_ abi.Out, memory []byte, err error) {
	for cancels := 0; out.Kind != abi.Finish && out.Kind != abi.Fail; {
		if t.effects++; t.effects > a.Limits.Effects {
			return out, nil, errEffects
		}
		next := abi.In{Kind: abi.Cancel, Reason: "nobody waits any more"}
		if t.caller.Err() == nil {
			t.about = new(wasmagentv1.Event)
			if next, err = a.effect(t, out); err != nil {
				return out, nil, err
			}
			t.left = left{}
		}
		if t.caller.Err() != nil { // what was decided on the effect stands in the journal all the same
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
	memory, err = t.instance.Snapshot(t.ctx)
	return out, memory, err
}

// start has a guest go on where it was, or begin.
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
		err = fmt.Errorf("%w: it answers its start with %q", engine.ErrTrap, out.Kind)
	}
	return err
}

// startAnew starts a guest.
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

// origin is what its guest is told of the world: the same each time.
func (a *Agent) origin() engine.Origin {
	return engine.Origin{Clock: uint64(a.Origin.UnixNano()), Seed: sha256.Sum256([]byte(a.JournalID))}
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

// flushSome keeps what waits, where that is much or has waited for long.
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

// stepped gives the guest an envelope that stands in the journal, where its answer will.
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

// notePrinted notes what the guest printed, as long as there is room for that.
func (a *Agent) notePrinted(t *turn, text string) {
	if text == "" || t.printed > maxPrinted {
		return
	}
	if t.printed += len(text); t.printed > maxPrinted {
		text = fmt.Sprintf("(it prints more than %d KiB in this turn; the rest is left out)", maxPrinted>>10)
	}
	a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_PRINTED, Message: text}, nil)
}

// noteTurn notes an event of a turn.
func (a *Agent) noteTurn(t *turn, e *wasmagentv1.Event, envelope []byte) *wasmagentv1.Event {
	e.Epoch = int32(a.epoch)
	before := a.journal.head.GetBytes()
	out := a.journal.note(e, envelope)
	t.noted += a.journal.head.GetBytes() - before
	return out
}

// effectEvent notes what becomes of the effect that the guest asked for last.
func (a *Agent) effectEvent(t *turn, kind wasmagentv1.EventKind) {
	a.noteTurn(t, &wasmagentv1.Event{
		Kind: kind, Effect: t.emitted.GetEffect(), EffectSequence: t.emitted.GetSequence(), ApprovalId: t.about.GetApprovalId(), DecisionId: t.about.GetDecisionId(),
	}, nil)
}

// effectKinds are what guests ask for as events have it.
var effectKinds = map[string]wasmagentv1.EffectKind{
	abi.Model: wasmagentv1.EffectKind_EFFECT_KIND_MODEL, abi.Tool: wasmagentv1.EffectKind_EFFECT_KIND_TOOL, abi.FS: wasmagentv1.EffectKind_EFFECT_KIND_FS,
	abi.Todo: wasmagentv1.EffectKind_EFFECT_KIND_TODO, abi.Emit: wasmagentv1.EffectKind_EFFECT_KIND_EMIT, abi.Tools: wasmagentv1.EffectKind_EFFECT_KIND_TOOLS, abi.Sleep: wasmagentv1.EffectKind_EFFECT_KIND_SLEEP,
	abi.Finish: wasmagentv1.EffectKind_EFFECT_KIND_FINISH, abi.Fail: wasmagentv1.EffectKind_EFFECT_KIND_FAIL,
}
