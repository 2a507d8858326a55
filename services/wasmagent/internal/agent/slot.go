package agent

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// queueTick is the interval at which the caller of a prompt gets progress while the prompt waits for a place. The
// gateway extends the time limit of a call that reports progress.
const queueTick = 10 * time.Second

// enter waits for a place in which the guest can run. back is true if the turn had a place before.
func (a *Agent) enter(t *turn, back bool) (err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	if !back { // otherwise the guest gets a cancel envelope when the caller gives up
		defer context.AfterFunc(t.caller, cancel)()
	}
	a.wait(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_QUOTA})
	defer a.wait(t, nil)
	defer a.tellQueued(ctx, t)()
	t.leave, err = a.Host.Enter(ctx, a, back)
	switch {
	case err == nil:
		return nil
	case t.caller.Err() != nil && t.ctx.Err() == nil:
		return errCancelled
	}
	return err
}

// tellQueued sends progress to the caller of a prompt that waits for a place, until stop is called.
func (a *Agent) tellQueued(ctx context.Context, t *turn) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(queueTick)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				t.tell("waits, because too many agents work now")
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// await runs call, which makes a call for the guest, and returns when it has ended. If that takes longer than the
// agent's Yield, the guest gives its place to other guests meanwhile. After an error the guest can't continue, and the
// call may have been made.
func (a *Agent) await(t *turn, call func()) (err error) {
	done := make(chan struct{})
	var fault any
	go func() {
		defer close(done)
		defer func() {
			if fault = recover(); fault != nil {
				fault = fmt.Sprintf("%v in a call: %s", fault, debug.Stack())
			}
		}()
		call()
	}()
	timer := time.NewTimer(a.Yield)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		err = a.yield(t, done)
	}
	if fault != nil {
		panic(fault) // so that the turn fails, as after a panic in its own goroutine
	}
	return err
}

// yield gives the guest's place to other guests until done is closed. The guest stays in its place if its snapshot
// can't be taken, or if the memory for snapshots is used up.
func (a *Agent) yield(t *turn, done <-chan struct{}) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		<-done
		return nil // the next step returns the error
	}
	giveBack, ok := a.Host.Hold(a, len(snapshot))
	if !ok {
		<-done
		return nil
	}
	defer giveBack()
	return a.apart(t, snapshot, func() error {
		<-done
		return nil
	})
}

// park gives the guest's place to other guests while wait runs, which waits for an approval.
func (a *Agent) park(t *turn, wait func() error) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		return err
	}
	return a.apart(t, snapshot, wait)
}

// apart closes the guest's instance, gives its place to other guests while wait runs, and then restores the guest from
// its snapshot.
func (a *Agent) apart(t *turn, snapshot []byte, wait func() error) error {
	_ = t.instance.Close(context.WithoutCancel(t.ctx)) // if its worker is gone, so is the instance
	t.instance = nil
	a.keepParked(len(snapshot))
	defer a.keepParked(0)
	t.leave()
	t.leave = nil
	if err := wait(); err != nil {
		return err
	}
	if err := a.enter(t, true); err != nil {
		return err
	}
	var err error
	for range maxRestores {
		if t.instance, err = a.Workers.Restore(t.ctx, a.module, a.engineLimits(), snapshot); !errors.Is(err, worker.ErrLost) {
			return err
		}
		t.instance = nil
	}
	return err
}

// keepParked sets the size of the snapshot of a guest without a place, in bytes; 0 if there is no snapshot.
func (a *Agent) keepParked(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parked = bytes
}
