package agent

import (
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

// lockForChange locks the agent for a change. The caller must unlock the agent with unlockChange. lockForChange returns
// an error if the journal is damaged, and [ErrBusy] if a turn is running. If allowElsewhere is true, a turn may be
// running in another process.
func (a *Agent) lockForChange(ctx context.Context, allowElsewhere bool) error {
	if err := a.lockUnchecked(ctx, allowElsewhere); err != nil {
		return err
	}
	if err := a.checkJournalOnce(ctx); err != nil {
		a.unlockChange()
		return err
	}
	return nil
}

func (a *Agent) lockUnchecked(ctx context.Context, allowElsewhere bool) error {
	for {
		a.mu.Lock()
		wait := a.changeDone
		switch {
		case a.turn != nil, a.runsElsewhere && !allowElsewhere && a.damage == nil:
			a.mu.Unlock()
			return ErrBusy
		case a.damage != nil:
			a.mu.Unlock()
			return a.damage
		case a.stale:
			a.mu.Unlock()
			return fmt.Errorf("%w: the agent has to be loaded again", ErrNotStored)
		case wait == nil:
			a.changeDone = make(chan struct{})
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

func (a *Agent) unlockChange() {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.changeDone)
	a.changeDone = nil
}

// changeState changes an agent that has no running turn. It calls do, which changes a copy of the state and returns the
// event that records the change. If do returns a nil event, changeState stores nothing.
func (a *Agent) changeState(ctx context.Context, do func(next *state) (*wasmagentv1.Event, error)) error {
	if err := a.lockForChange(ctx, false); err != nil {
		return err
	}
	defer a.unlockChange()
	a.mu.Lock()
	next := a.state
	a.mu.Unlock()
	event, err := do(&next)
	if err != nil || event == nil {
		return err
	}
	a.journal.add(event, nil)
	if err := a.saveState(ctx, &next, store.NoTurn); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = next
	return nil
}

// changeError is the cancellation cause of a turn that was cancelled because the agent must be changed. The turn itself
// makes the change when it ends, so that no other change can come first.
type changeError struct {
	error
	change func(next *state) (*wasmagentv1.Event, error)
	// isMade is true if the change was made. If it is false, err is the reason.
	isMade bool
	err    error
}

// Unwrap returns the error that the changeError wraps.
func (f *changeError) Unwrap() error { return f.error }

// forceChange changes the agent as changeState does. If a turn is running, forceChange cancels it with the given cause.
// The cancelled turn is undone.
func (a *Agent) forceChange(ctx context.Context, cause error, do func(next *state) (*wasmagentv1.Event, error)) error {
	for {
		err := a.changeState(ctx, do)
		if !errors.Is(err, ErrBusy) {
			return err
		}
		a.mu.Lock()
		t, elsewhere := a.turn, a.runsElsewhere
		a.mu.Unlock()
		switch {
		case t != nil:
			forced := &changeError{error: cause, change: do}
			t.cancel(forced)
			select {
			case <-t.done:
			case <-ctx.Done(): // the turn still ends and makes the change
				return ctx.Err()
			}
			if forced.isMade || forced.err != nil {
				return forced.err
			}
		case elsewhere:
			if err := a.takeOverTurn(ctx, cause.Error()); err != nil {
				return err
			}
		}
	}
}

// takeOverTurn undoes a turn that is running in another process. After that, the other process can't store changes to
// the agent.
func (a *Agent) takeOverTurn(ctx context.Context, reason string) error {
	if err := a.lockForChange(ctx, true); err != nil {
		return err
	}
	defer a.unlockChange()
	a.mu.Lock()
	elsewhere := a.runsElsewhere
	a.mu.Unlock()
	if !elsewhere {
		return nil
	}
	row, err := a.Store.TakeOverTurn(ctx, a.ID)
	if err != nil {
		return storeError(err)
	}
	a.mu.Lock()
	a.journal.version = row.Version
	a.stale = a.stale || row.Turn == store.NoTurn || row.GetHead().GetPlace() != a.savedRecord.GetHead().GetPlace()
	mayBeLost := a.stale
	a.mu.Unlock()
	if mayBeLost {
		return fmt.Errorf("%w: the other process has stored a change meanwhile", ErrNotStored)
	}
	return a.undoAbandoned(ctx, reason)
}

// Invalidate cancels the running turn. It is called when another process has changed the agent, because the turn can
// then no longer be stored.
func (a *Agent) Invalidate() {
	a.mu.Lock()
	t := a.turn
	a.stale = true
	a.mu.Unlock()
	if t != nil {
		t.cancel(errStale)
	}
}
