package agent

import (
	"bytes"
	"context"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// continueDetached continues a turn whose process has exited. It runs the guest again with the inputs in the journal,
// up to the end of the journal, and then continues the turn. It sends no call twice. No other goroutine may be using
// the agent yet.
func (a *Agent) continueDetached() {
	a.mu.Lock()
	t := a.newTurn(context.Background())
	a.mu.Unlock()
	t.detached, t.progress, t.callerCtx, t.unfollow = true, func(string) {}, context.Background(), func() bool { return true }
	t.eventContext = new(wasmagentv1.Event)
	close(t.parked)
	go func() {
		defer close(t.done)
		defer t.cancel(nil)
		_, _ = a.runTurn(t, func() (envelope abi.GuestEnvelope, memory []byte, err error) { // no caller needs the result
			if err := a.flushEvents(t.ctx, store.DetachedTurn); err != nil { // another process will continue the turn
				return envelope, nil, err
			}
			before := a.journal.head
			head, err := a.readTail(t.ctx, before, func(e *wasmstorev1.StoredEvent) { t.approval = approvalAfter(e.GetEvent(), t.approval) })
			if err != nil {
				a.markDamaged(err) // nothing can be appended to a journal whose end is unknown
				return envelope, nil, err
			}
			a.journal.head, a.journal.storedPosition, t.eventBytes = head, head.GetPlace(), head.GetBytes()-before.GetBytes()
			if err := a.acquireSlot(t, true); err != nil {
				return envelope, nil, err
			}
			var tail []*wasmstorev1.StoredEvent // read as late as possible, because the events need memory
			if _, err := a.readTail(t.ctx, before, func(e *wasmstorev1.StoredEvent) { tail = append(tail, e) }); err != nil {
				return envelope, nil, err
			}
			if envelope, err = a.replayTurn(t, tail); err != nil {
				return envelope, nil, err
			}
			return a.runEffects(t, envelope)
		})
	}()
}

// replayTurn runs the guest again with the turn's inputs from the journal. It returns the last envelope from the guest.
func (a *Agent) replayTurn(t *turn, tail []*wasmstorev1.StoredEvent) (envelope abi.GuestEnvelope, err error) {
	if t.stateBefore.memory != nil {
		if t.instance, err = a.Workers.Restore(t.ctx, a.module, a.engineLimits(), t.stateBefore.memory); err != nil {
			return envelope, err
		}
	} else if err := a.startNewGuest(t); err != nil {
		return envelope, err
	}
	for i, e := range tail {
		switch e.GetEvent().GetKind() { //nolint:exhaustive // events of other kinds do not occur in an unfinished turn
		case wasmagentv1.EventKind_EVENT_KIND_INPUT, wasmagentv1.EventKind_EVENT_KIND_RESULT:
			t.interrupted = interruptedCall{}
			if e.GetEvent().GetKind() == wasmagentv1.EventKind_EVENT_KIND_RESULT {
				t.effectCount++
			}
			var emitted *wasmstorev1.StoredEvent
			if i+1 < len(tail) {
				emitted = tail[i+1]
			}
			if envelope, err = a.replayStep(t, e, emitted, envelope); err != nil {
				return envelope, err
			}
		case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
			t.lastEmitted = e.GetEvent()
		case wasmagentv1.EventKind_EVENT_KIND_SENT:
			t.madeCalls, t.interrupted.sent = true, true
		case wasmagentv1.EventKind_EVENT_KIND_PARKED:
			t.interrupted.approval = e.GetEvent().GetApprovalId()
		}
	}
	return envelope, nil
}

// replayStep sends the guest an envelope from the journal. input is the event that contains the envelope, and emitted
// is the event that contains the guest's answer. replayStep returns an error if the guest gives a different answer. If
// the journal does not contain an answer yet, emitted is nil, and replayStep records the new answer.
func (a *Agent) replayStep(t *turn, input, emitted *wasmstorev1.StoredEvent, asked abi.GuestEnvelope) (envelope abi.GuestEnvelope, err error) {
	in, err := abi.DecodeHost(input.GetEnvelope())
	if err != nil {
		return envelope, err
	}
	switch {
	case in.Kind == abi.Result && asked.Kind == abi.FS: // the files were reset to their state before the turn
		_, _ = a.fileEffect(asked, input.GetEvent().GetTime().AsTime()) // the guest gets the recorded result
	case in.Kind == abi.Result && asked.Kind == abi.Todo:
		_ = a.todoEffect(asked)
	case in.Kind == abi.Prompt:
		a.addPrompt(in.Input)
	}
	a.mu.Lock()
	a.sequence = in.Sequence
	a.mu.Unlock()
	if emitted == nil {
		return a.stepGuest(t, input.GetEnvelope())
	}
	answer, fuel, err := t.instance.Step(t.ctx, input.GetEnvelope(), a.Limits.Fuel-t.fuelUsed, a.Limits.Deadline)
	t.fuelUsed += fuel
	if err != nil {
		return envelope, err
	}
	if !bytes.Equal(answer, emitted.GetEnvelope()) || t.startFuel+fuel != emitted.GetEvent().GetFuel() {
		return envelope, fmt.Errorf("%w: the guest did not give the same answer when it was run again", engine.ErrTrap)
	}
	t.startFuel, t.startOutput = 0, ""
	return abi.Decode(answer)
}
