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

// end ends a turn: the turn counts, or it is undone. end stores the result and returns the answer.
func (a *Agent) end(t *turn, out abi.Out, memory []byte, err error) (Answer, error) {
	cause := context.Cause(t.ctx)
	if t.alone && errors.Is(cause, errShut) { // the next process continues the turn
		kept := a.flush(t.ctx, store.Alone)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.turn, a.lost = nil, true
		return Answer{}, errors.Join(ErrAway, kept)
	}
	a.mu.Lock()
	next := a.state
	a.mu.Unlock()
	next.usage.fuel += t.fuel
	next.usage.effects += int64(t.effects)
	if err != nil || cause != nil {
		next, err = undone(t, &next, err, cause)
	} else {
		next.memory = memory
		err = next.finish(t, out)
	}
	if isUndone := err != nil && !errors.Is(err, ErrTurn); isUndone && t.noted > 0 {
		a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_UNDONE, Message: whyUndone(err)}, nil)
	}
	if t.last != "" { // this event comes last, because the event that ends a turn must directly follow the guest's input
		a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_PRINTED, Message: t.last}, nil)
	}
	why, isForced := errors.AsType[*forced](cause)
	if isForced {
		var event *wasmagentv1.Event
		if event, why.failed = why.do(&next); event != nil {
			a.noteTurn(t, event, nil)
		}
	} else if next.takesNone() {
		a.noteTurn(t, &wasmagentv1.Event{Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, State: next.at, Message: because(atName(next.at), next.why())}, nil)
	}
	if t.noted > 0 || t.alone {
		if kept := a.save(t.ctx, &next, store.NoTurn); kept != nil {
			next, err = t.before, kept
			if t.called {
				err = fmt.Errorf("%w: %w", ErrCalled, kept)
			}
			if isForced {
				why.failed = kept
			}
		}
	}
	if isForced {
		why.done = true
	}
	a.mu.Lock()
	a.turn = nil
	if a.broken != nil && next.at != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		next.at, next.failure = wasmagentv1.AgentState_AGENT_STATE_FAILED, a.failure
	}
	a.state = next
	lost := a.lost
	a.mu.Unlock()
	if err == nil {
		return Answer{Text: out.Text, Agent: a.Proto()}, nil
	}
	if t.approval != "" && !lost { // another process may continue the turn of a lost agent
		a.Host.Withdraw(context.WithoutCancel(t.ctx), a, t.approval, Withdrawn(whyUndone(err)))
	}
	return Answer{}, err
}

// finish changes the state at the end of a turn that counts. Errors: [ErrTurn] if the guest reports that the turn
// failed.
func (s *state) finish(t *turn, out abi.Out) (err error) {
	s.at = wasmagentv1.AgentState_AGENT_STATE_IDLE
	s.turns++
	switch {
	case out.Kind != abi.Fail:
		s.say(wasmagentv1.MessageRole_MESSAGE_ROLE_ASSISTANT, out.Text)
	case t.noModel:
		err = fmt.Errorf("%w: %w", ErrTurn, ErrNoModel)
	default:
		err = fmt.Errorf("%w: %s", ErrTurn, out.Text)
	}
	if out.Done {
		s.at, s.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_GOAL_REACHED
	} else {
		s.spend()
	}
	return err
}

// Withdrawn returns the reason of a withdrawn approval, as approvers read it. why says why the agent does not wait any
// more.
func Withdrawn(why string) string {
	return "the agent does not wait for the call any more, so the call would not run: " + why
}

// whyUndone returns the reason for undoing a turn, as the journal records it. It leaves out internal errors, because
// callers can read the journal.
func whyUndone(err error) string {
	for _, own := range []error{ErrFailed, ErrStopped, ErrTerminated, context.Canceled, context.DeadlineExceeded, errCancelled} {
		if errors.Is(err, own) {
			return err.Error()
		}
	}
	return "agents can't be run now"
}

// undone returns the state before the turn, with the reason for undoing the turn, and the error that callers get.
func undone(t *turn, now *state, err, cause error) (next state, _ error) {
	next = t.before
	next.usage = now.usage
	fail := func(why wasmagentv1.FailureCause) (state, error) {
		if t.last != "" {
			err = fmt.Errorf("%w (the journal has the output of the guest: sluice agents events)", err)
		}
		next.at, next.failure = wasmagentv1.AgentState_AGENT_STATE_FAILED, &wasmagentv1.Failure{Cause: why, Message: err.Error()}
		return next, fmt.Errorf("%w: %w", ErrFailed, err)
	}
	switch {
	case errors.Is(cause, ErrTerminated): // takes precedence over every other reason
		return next, ErrTerminated
	case errors.Is(cause, ErrStopped):
		return next, fmt.Errorf("%w: %s", ErrStopped, stopName(wasmagentv1.StopReason_STOP_REASON_EXPLICIT))
	case errors.Is(err, errEffects):
		next.at, next.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_MAX_EFFECTS
		return next, fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, errDenied):
		next.at, next.stop = wasmagentv1.AgentState_AGENT_STATE_STOPPED, wasmagentv1.StopReason_STOP_REASON_POLICY_DENIED
		return next, fmt.Errorf("%w: %w", ErrStopped, err)
	case errors.Is(err, ErrPlaces):
		return next, err
	case errors.Is(err, errCancelled), t.caller.Err() != nil: // the guest did not end its turn after the cancellation
		return next, context.Cause(t.caller)
	case errors.Is(err, errFault):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_INTERNAL)
	case errors.Is(err, engine.ErrFuel):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_FUEL)
	case errors.Is(err, engine.ErrMemory):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_MEMORY)
	case errors.Is(err, engine.ErrDeadline):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_DEADLINE)
	case errors.Is(err, engine.ErrTrap), errors.Is(err, engine.ErrSnapshot):
		return fail(wasmagentv1.FailureCause_FAILURE_CAUSE_TRAP)
	case t.called:
		return next, fmt.Errorf("%w: %w", ErrCalled, errors.Join(err, cause))
	case errors.Is(err, ErrKeep):
		return next, err
	}
	return next, fmt.Errorf("%w: %w", ErrAway, errors.Join(err, cause))
}
