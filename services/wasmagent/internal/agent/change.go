package agent

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// take makes others wait who want to change the agent; give lets them. One that works is
// [ErrBusy], but elsewhere not for whoever takes over. A journal that does not hold is not changed.
func (a *Agent) take(ctx context.Context, over bool) error {
	if err := a.takeUnchecked(ctx, over); err != nil {
		return err
	}
	if err := a.checkOnce(ctx); err != nil {
		a.give()
		return err
	}
	return nil
}

func (a *Agent) takeUnchecked(ctx context.Context, over bool) error {
	for {
		a.mu.Lock()
		wait := a.changing
		switch {
		case a.turn != nil, a.elsewhere && !over && a.broken == nil:
			a.mu.Unlock()
			return ErrBusy
		case a.broken != nil:
			a.mu.Unlock()
			return a.broken
		case a.lost:
			a.mu.Unlock()
			return fmt.Errorf("%w: it is to be read anew", ErrKeep)
		case wait == nil:
			a.changing = make(chan struct{})
			a.mu.Unlock()
			return nil
		}
		a.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *Agent) give() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changing)
	a.changing = nil
}

// change changes an agent that does not work, and keeps that with the event that do returns.
// Where that is nil nothing is changed.
func (a *Agent) change(ctx context.Context, do func(next *state) (*wasmagentv1.Event, error)) error {
	if err := a.take(ctx, false); err != nil {
		return err
	}
	defer a.give()
	a.mu.Lock()
	next := a.state
	a.mu.Unlock()
	event, err := do(&next)
	if err != nil || event == nil {
		return err
	}
	a.journal.note(event, nil)
	if err := a.save(ctx, &next, store.NoTurn); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = next
	return nil
}

// forced is why a turn is cut: something else is to be done with the agent. The turn does it as
// it ends, so that nothing comes between.
type forced struct {
	error
	do func(next *state) (*wasmagentv1.Event, error)
	// done says that it was done, and failed why it could not be.
	done   bool
	failed error
}

// Unwrap is the reason.
func (f *forced) Unwrap() error { return f.error }

// force is change for what waits for no turn: that is cut, for a reason, and undone.
func (a *Agent) force(ctx context.Context, cause error, do func(next *state) (*wasmagentv1.Event, error)) error {
	for {
		err := a.change(ctx, do)
		if !errors.Is(err, ErrBusy) {
			return err
		}
		a.mu.Lock()
		t, elsewhere := a.turn, a.elsewhere
		a.mu.Unlock()
		switch {
		case t != nil:
			why := &forced{error: cause, do: do}
			t.cut(why)
			select {
			case <-t.done:
			case <-ctx.Done(): // the turn ends so all the same
				return ctx.Err()
			}
			if why.done || why.failed != nil {
				return why.failed
			}
		case elsewhere:
			if err := a.takeOver(ctx, cause.Error()); err != nil {
				return err
			}
		}
	}
}

// takeOver undoes a turn of another process, which can keep nothing of that any more.
func (a *Agent) takeOver(ctx context.Context, why string) error {
	if err := a.take(ctx, true); err != nil {
		return err
	}
	defer a.give()
	a.mu.Lock()
	elsewhere := a.elsewhere
	a.mu.Unlock()
	if !elsewhere {
		return nil
	}
	row, err := a.Store.Seize(ctx, a.ID)
	if err != nil {
		return keepError(err)
	}
	a.mu.Lock()
	a.journal.version = row.Version
	a.lost = a.lost || row.Turn == store.NoTurn || row.GetHead().GetPlace() != a.saved.GetHead().GetPlace()
	lost := a.lost
	a.mu.Unlock()
	if lost {
		return fmt.Errorf("%w: the other process has kept something since", ErrKeep)
	}
	return a.abandon(ctx, why)
}

// Lose ends its turn: another process has changed the agent, and nothing of the turn can be kept.
func (a *Agent) Lose() {
	a.mu.Lock()
	t := a.turn
	a.lost = true
	a.mu.Unlock()
	if t != nil {
		t.cut(errLost)
	}
}
