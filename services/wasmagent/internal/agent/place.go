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

// queueTick is how often the caller of a prompt is told that it waits for a place: the gateway extends
// a call that reports progress.
const queueTick = 10 * time.Second

// enter waits for a place for the guest; back says that the turn had one before.
func (a *Agent) enter(t *turn, back bool) (err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	if !back { // otherwise a caller that has given up is told by the guest's turn
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

// tellQueued tells the caller of a prompt from time to time that it waits for a place, until stop is called.
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
				t.tell("waits for a place: other agents work")
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

// await makes a call for the guest, which gives its place to others if that takes long. It returns once the call has
// ended. An error says that the guest can't go on; the call may have been made.
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
		panic(fault) // as if the turn itself had made the call
	}
	return err
}

// yield gives the guest's place to others until done is closed. If its snapshot has no room, or can't be taken, the guest
// keeps its place.
func (a *Agent) yield(t *turn, done <-chan struct{}) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		<-done
		return nil // the next step has the error
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

// park gives the guest's place to others while people decide.
func (a *Agent) park(t *turn, wait func() error) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		return err
	}
	return a.apart(t, snapshot, wait)
}

// apart ends the guest's instance, gives its place to others while wait runs, and has the guest go on from its snapshot.
func (a *Agent) apart(t *turn, snapshot []byte, wait func() error) error {
	_ = t.instance.Close(context.WithoutCancel(t.ctx)) // or the worker is gone, and it too
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

// keepParked says how large what is kept of a guest is that has no place, in bytes.
func (a *Agent) keepParked(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parked = bytes
}
