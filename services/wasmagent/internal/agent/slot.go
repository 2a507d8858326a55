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

// queueProgressInterval is how often a prompt that waits for a slot sends progress messages to its caller. The messages
// are necessary because the gateway extends the deadline of a call that reports progress.
const queueProgressInterval = 10 * time.Second

// acquireSlot waits for a slot in which the guest can run. hadSlot is true if the turn had a slot before.
func (a *Agent) acquireSlot(t *turn, hadSlot bool) (err error) {
	ctx, cancel := context.WithCancel(t.ctx)
	defer cancel()
	if !hadSlot { // otherwise the guest gets a cancel envelope when the caller gives up
		defer context.AfterFunc(t.callerCtx, cancel)()
	}
	a.setWaiting(t, &wasmagentv1.Waiting{WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_QUOTA})
	defer a.setWaiting(t, nil)
	defer a.reportQueued(ctx, t)()
	t.releaseSlot, err = a.Host.AcquireSlot(ctx, a, hadSlot)
	switch {
	case err == nil:
		return nil
	case t.callerCtx.Err() != nil && t.ctx.Err() == nil:
		return errCancelled
	}
	return err
}

// reportQueued sends progress messages to the caller of a prompt that waits for a slot, until the returned function is
// called.
func (a *Agent) reportQueued(ctx context.Context, t *turn) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(queueProgressInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				t.progress("waits, because too many agents work now")
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

// awaitCall runs a function that makes a call for the guest, and waits until the function returns. If this takes longer
// than YieldAfter, the guest releases its slot until the call ends. If awaitCall returns an error, the guest can't
// continue, although the call may have run.
func (a *Agent) awaitCall(t *turn, call func()) (err error) {
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
	timer := time.NewTimer(a.YieldAfter)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		err = a.yieldSlot(t, done)
	}
	if fault != nil {
		panic(fault) // so that the turn fails as if its own goroutine had panicked
	}
	return err
}

// yieldSlot releases the guest's slot until done is closed. If the guest's snapshot can't be taken, or if there is not
// enough memory for it, yieldSlot only waits, and the guest keeps its slot.
func (a *Agent) yieldSlot(t *turn, done <-chan struct{}) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		<-done
		return nil // the next step returns the error
	}
	giveBack, ok := a.Host.ReserveSnapshot(a, len(snapshot))
	if !ok {
		<-done
		return nil
	}
	defer giveBack()
	return a.withoutSlot(t, snapshot, func() error {
		<-done
		return nil
	})
}

// parkTurn releases the guest's slot, and calls wait, which waits for an approval. Then it acquires a slot again.
func (a *Agent) parkTurn(t *turn, wait func() error) error {
	snapshot, err := t.instance.Snapshot(t.ctx)
	if err != nil {
		return err
	}
	return a.withoutSlot(t, snapshot, wait)
}

// withoutSlot closes the guest's instance, releases its slot, and calls wait. After wait has returned, withoutSlot
// acquires a slot and restores the guest from the snapshot.
func (a *Agent) withoutSlot(t *turn, snapshot []byte, wait func() error) error {
	_ = t.instance.Close(context.WithoutCancel(t.ctx)) // fails if the worker has ended, which also ends the instance
	t.instance = nil
	a.setSnapshotBytes(len(snapshot))
	defer a.setSnapshotBytes(0)
	t.releaseSlot()
	t.releaseSlot = nil
	if err := wait(); err != nil {
		return err
	}
	if err := a.acquireSlot(t, true); err != nil {
		return err
	}
	var err error
	for range maxRestores {
		if t.instance, err = a.Workers.Restore(t.ctx, a.module, a.engineLimits(), snapshot); !errors.Is(err, worker.ErrWorkerLost) {
			return err
		}
		t.instance = nil
	}
	return err
}

// setSnapshotBytes records the size of the guest's snapshot, in bytes. The size is 0 if there is no snapshot.
func (a *Agent) setSnapshotBytes(bytes int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.snapshotBytes = bytes
}
