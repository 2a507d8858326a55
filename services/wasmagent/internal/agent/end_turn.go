package agent

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

func (a *Agent) endTurn(t *turn, envelope abi.GuestEnvelope, memory []byte, err error) (Answer, error) {
	cause := context.Cause(t.ctx)
	if t.detached && errors.Is(cause, errShutdown) {
		return Answer{}, a.leaveTurn(t)
	}
	a.mu.Lock()
	next := a.state
	a.mu.Unlock()
	next.usage.fuel += t.fuelUsed
	next.usage.effects += int64(t.effectCount)
	if err != nil || cause != nil {
		next, err = undoTurn(t, &next, err, cause)
	} else {
		next.memory = memory
		err = next.finishTurn(t, envelope)
	}
	forced, _ := errors.AsType[*changeError](cause)
	a.recordEnd(t, &next, forced, err)
	if storeErr := a.saveEnd(t, &next); storeErr != nil {
		next, err = t.stateBefore, storeErr
		if t.madeCalls {
			err = fmt.Errorf("%w: %w", ErrTurnLost, storeErr)
		}
		if forced != nil {
			forced.err = storeErr
		}
	}
	if forced != nil {
		forced.isMade = true
	}
	isStale := a.setEndState(next)
	if err == nil {
		return Answer{Text: envelope.Text, Agent: a.Proto()}, nil
	}
	if t.approval != "" && !isStale { // another process may continue the turn of a stale agent
		a.Host.WithdrawApproval(context.WithoutCancel(t.ctx), a, t.approval, WithdrawalReason(undoReason(err)))
	}
	return Answer{}, err
}

// leaveTurn stores a turn that has no caller, so that the next process can continue it. leaveTurn is called when this
// process stops.
func (a *Agent) leaveTurn(t *turn) error {
	err := a.flushEvents(t.ctx, store.DetachedTurn)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn, a.stale = nil, true
	return errors.Join(ErrUnavailable, err)
}

// recordEnd records the end of a turn. If they apply, it records that the turn was undone, what a failed step printed,
// and that the agent's state changed. err is the turn's error, or nil. If forced is not nil, recordEnd also makes the
// change that forced the turn to end.
func (a *Agent) recordEnd(t *turn, next *state, forced *changeError, err error) {
	if isUndone := err != nil && !errors.Is(err, ErrTurnFailed); isUndone && t.eventBytes > 0 {
		a.recordEvent(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_UNDONE, Message: undoReason(err)}, nil)
	}
	if t.failedOutput != "" { // follows UNDONE, because the event that ends a turn must directly follow the guest's input
		a.recordEvent(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_PRINTED, Message: t.failedOutput}, nil)
	}
	var event *wasmagentv1.Event
	switch {
	case forced != nil:
		event, forced.err = forced.change(next)
	case next.refusesPrompts():
		event = &wasmagentv1.Event{
			Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, State: next.status, Message: withReason(stateName(next.status), next.refusalReason()),
		}
	}
	if event != nil {
		a.recordEvent(t, event, nil)
	}
}

// saveEnd stores the state at the end of a turn. A turn without events has changed nothing, so saveEnd then stores
// nothing unless the turn has continued without its caller.
func (a *Agent) saveEnd(t *turn, next *state) error {
	if t.eventBytes == 0 && !t.detached {
		return nil
	}
	return a.saveState(t.ctx, next, store.NoTurn)
}

// setEndState sets the state of the agent at the end of its turn. It reports whether the agent is stale.
func (a *Agent) setEndState(next state) (isStale bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.turn = nil
	if a.damage != nil && next.status != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		next.status, next.failure = wasmagentv1.AgentState_AGENT_STATE_FAILED, a.failure
	}
	a.state = next
	return a.stale
}

// finishTurn updates the state at the end of a turn that is not undone. It returns [ErrTurnFailed] if the guest
// reported that the turn failed.
func (s *state) finishTurn(t *turn, envelope abi.GuestEnvelope) (err error) {
	s.status = wasmagentv1.AgentState_AGENT_STATE_IDLE
	s.turns++
	switch {
	case envelope.Kind != abi.Fail:
		s.addMessage(wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, envelope.Text)
	case t.modelMissing:
		err = fmt.Errorf("%w: %w", ErrTurnFailed, ErrNoModel)
	default:
		err = fmt.Errorf("%w: %s", ErrTurnFailed, envelope.Text)
	}
	if envelope.Done {
		s.status, s.stopReason = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED
	} else {
		s.stopIfTurnsSpent()
	}
	return err
}

// WithdrawalReason returns the message that approvers see when an approval is withdrawn. reason states why the agent no
// longer waits for the approval.
func WithdrawalReason(reason string) string {
	return "the agent no longer waits for the call, so the call would not run: " + reason
}

// undoReason returns the reason for undoing a turn as it appears in the journal. The text contains no internal errors,
// because callers can read the journal.
func undoReason(err error) string {
	for _, known := range []error{ErrFailed, ErrStopped, ErrCallsStopped, ErrTerminated, context.Canceled, context.DeadlineExceeded, errCancelled} {
		if errors.Is(err, known) {
			return err.Error()
		}
	}
	return "agents can't be run now"
}

// undoTurn returns the state before the turn, changed so that it shows why the turn was undone. It also returns the
// error for the caller.
func undoTurn(t *turn, current *state, err, cause error) (next state, _ error) {
	next = t.stateBefore
	next.usage = current.usage
	fail := func(failureCause wasmagentv1.FailureCause) (state, error) {
		if t.failedOutput != "" {
			err = fmt.Errorf("%w (the journal has the output of the guest: sluice agents events)", err)
		}
		next.status, next.failure = wasmagentv1.AgentState_AGENT_STATE_FAILED, &wasmagentv1.Failure{Cause: failureCause, Message: err.Error()}
		return next, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	switch {
	case errors.Is(cause, ErrTerminated): // takes precedence over every other reason
		return next, ErrTerminated
	case errors.Is(cause, ErrStopped):
		return next, fmt.Errorf("%w: %s", ErrStopped, stopReasonText(wasmagentv1.StopReason_STOP_REASON_EXPLICIT))
	case errors.Is(err, errTooManyEffects):
		next.status, next.stopReason = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS
		return next, fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, errDenied):
		next.status, next.stopReason = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED
		return next, fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, ErrPromptsFull), errors.Is(err, ErrCallsStopped):
		return next, err
	case errors.Is(err, errCancelled), t.callerCtx.Err() != nil: // the guest did not end its turn after the cancellation
		return next, context.Cause(t.callerCtx)
	case errors.Is(err, errPanic):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_INTERNAL)
	case errors.Is(err, engine.ErrFuel):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_FUEL)
	case errors.Is(err, engine.ErrMemory):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_MEMORY)
	case errors.Is(err, engine.ErrDeadline):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_DEADLINE)
	case errors.Is(err, engine.ErrTrap), errors.Is(err, engine.ErrSnapshot):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_TRAP)
	case t.madeCalls:
		return next, fmt.Errorf("%w: %w", ErrTurnLost, errors.Join(err, cause))
	case errors.Is(err, ErrNotStored):
		return next, err
	}
	return next, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(err, cause))
}
