package agent

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// take locks the agent for a change; give unlocks it. It refuses an agent whose journal is damaged. It returns
// [ErrBusy] if a turn runs. If over is set, a turn may run in another process.
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
			return fmt.Errorf("%w: the agent has to be loaded again", ErrKeep)
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

// change changes an agent that has no running turn. do changes a copy of the state and returns the event that records
// the change. If the event is nil, nothing is stored.
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

// forced is the cause of a cancelled turn if the cancellation is to change the agent. The turn makes the change when it
// ends, so that no other change comes between.
type forced struct {
	error
	do func(next *state) (*wasmagentv1.Event, error)
	// done is true if the change was made, and failed the error if it could not be made.
	done   bool
	failed error
}

// Unwrap returns the cause.
func (f *forced) Unwrap() error { return f.error }

// force is like change, but does not wait for a running turn: it cancels the turn with cause, so that the turn is
// undone.
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
			case <-ctx.Done(): // the turn ends nevertheless
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

// takeOver undoes a turn that runs in another process. That process can't store changes of the agent any more.
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
		return fmt.Errorf("%w: the other process has stored a change meanwhile", ErrKeep)
	}
	return a.abandon(ctx, why)
}

// Lose cancels the running turn after another process has changed the agent, because the turn can't be stored any more.
func (a *Agent) Lose() {
	a.mu.Lock()
	t := a.turn
	a.lost = true
	a.mu.Unlock()
	if t != nil {
		t.cut(errLost)
	}
}
