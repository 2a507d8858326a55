package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// rerun runs an agent's modules again with the inputs in the journal.
type rerun struct {
	*Agent
	replayPlan

	resp *wasmagentv1.VerifyAgentResponse
	// current is the next event to process. It is processed when the event after it is known.
	current  *wasmstorev1.StoredEvent
	instance *worker.Instance
	// startFuel is the fuel that the guest used while it started. answer and fuel are the results of the newest step.
	startFuel int64
	answer    []byte
	fuel      int64
	// undoneMemory is the guest's memory before a turn that is undone later. memories contains the guest's memory at
	// each journal position to which the agent returns later. In both fields, nil means that the guest had not been
	// started yet.
	undoneMemory []byte
	memories     map[journalPosition][]byte
	// memoryDiffers is true if the guest's memory differs from the stored memory.
	memoryDiffers bool
	// memoryBytes is the total size of memories, in bytes.
	memoryBytes int
}

// addEvent adds an event, and processes the event that was added before. At the end of the journal, the caller passes
// nil.
func (r *rerun) addEvent(ctx context.Context, next *wasmstorev1.StoredEvent) error {
	e := r.current
	if r.current = next; e == nil || r.resp.GetFirstDifference() != nil {
		return nil
	}
	if err := r.process(ctx, e, next); err != nil {
		return err
	}
	if r.returnPoints[positionOf(e.GetEvent())] {
		memory, err := r.guestMemory(ctx)
		if err != nil {
			return err
		}
		r.memories[positionOf(e.GetEvent())] = memory
		if r.memoryBytes += len(memory); r.memoryBytes > maxReturnBytes {
			return fmt.Errorf("%w: the states to which its journal returns have more than %d MiB in total", ErrUnavailable, maxReturnBytes>>20)
		}
	}
	return nil
}

// process processes an event. next is the event after it, or nil at the end of the journal.
func (r *rerun) process(ctx context.Context, e, next *wasmstorev1.StoredEvent) (err error) {
	switch event := e.GetEvent(); event.GetKind() { //nolint:exhaustive // events of other kinds do not concern the guest
	case wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE:
		if event.GetModuleDigest() != "" {
			r.module = event.GetModuleDigest()
			return r.restoreGuest(ctx, r.memories[journalPosition{event.GetFromEpoch(), event.GetFromSequence()}])
		}
	case wasmagentv1.EventKind_EVENT_KIND_UNDONE:
		return r.restoreGuest(ctx, r.undoneMemory)
	case wasmagentv1.EventKind_EVENT_KIND_INPUT, wasmagentv1.EventKind_EVENT_KIND_RESULT:
		if r.undoneTurns[positionOf(event)] {
			if r.undoneMemory, err = r.guestMemory(ctx); err != nil {
				return err
			}
		}
		switch next.GetEvent().GetKind() { //nolint:exhaustive // every other kind is a difference
		case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE: // the step was not completed
			return nil
		default:
			r.resp.FirstDifference = events.Proto(e)
			return nil
		}
		return r.step(ctx, e, next.GetEvent())
	case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		r.resp.FuelReplayed += r.fuel
		if !bytes.Equal(r.answer, e.GetEnvelope()) || r.fuel != event.GetFuel() {
			r.resp.FirstDifference = events.Proto(e)
			return nil
		}
		r.answer, r.fuel = nil, 0
		if event.GetEffect() != wasmagentv1.EffectKind_EFFECT_KIND_FINISH && event.GetEffect() != wasmagentv1.EffectKind_EFFECT_KIND_FAIL {
			r.resp.Effects++
		}
	}
	return nil
}

// compare records whether the guest's memory differs from the stored memory. It first restores both memories and takes
// new snapshots, because two snapshots of the same memory may be encoded differently.
func (r *rerun) compare(ctx context.Context, storedState *wasmstorev1.State) error {
	if r.resp.GetFirstDifference() != nil {
		return nil
	}
	memory, err := r.guestMemory(ctx)
	if err != nil {
		return err
	}
	if storedState.GetMemory() == nil {
		r.memoryDiffers = memory != nil
		return nil
	}
	if err := r.restoreGuest(ctx, storedState.GetMemory()); err != nil {
		return err
	}
	storedMemory, err := r.guestMemory(ctx)
	r.memoryDiffers = !bytes.Equal(memory, storedMemory)
	return err
}

func (r *rerun) step(ctx context.Context, e *wasmstorev1.StoredEvent, emitted *wasmagentv1.Event) (err error) {
	r.answer, r.fuel = nil, 0
	if r.instance == nil {
		if r.instance, r.startFuel, err = r.Workers.Start(ctx, r.module, r.engineLimits(), r.guestOrigin(), r.Limits.Fuel, r.Limits.Deadline); err != nil {
			return r.hostError(err)
		}
	}
	r.resp.Steps++
	r.answer, r.fuel, err = r.instance.Step(ctx, e.GetEnvelope(), min(max(r.Limits.Fuel, emitted.GetFuel()), maxRerunFuel), r.Limits.Deadline)
	r.fuel += r.startFuel
	r.startFuel = 0
	return r.hostError(err)
}

// hostError returns err, or nil if the guest has caused err. An error that the guest has caused shows up in the
// comparison with the journal instead.
func (r *rerun) hostError(err error) error {
	switch {
	case errors.Is(err, engine.ErrFuel), errors.Is(err, engine.ErrMemory), errors.Is(err, engine.ErrTrap):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return nil
}

// guestMemory returns a snapshot of the guest, or nil if the guest has not been started yet.
func (r *rerun) guestMemory(ctx context.Context) ([]byte, error) {
	if r.instance == nil {
		return nil, nil
	}
	memory, err := r.instance.Snapshot(ctx)
	return memory, r.hostError(err)
}

// restoreGuest replaces the guest with a guest that has the given memory. If the memory is nil, the next step starts a
// new guest.
func (r *rerun) restoreGuest(ctx context.Context, memory []byte) (err error) {
	r.closeGuest(ctx)
	if memory != nil {
		if r.instance, err = r.Workers.Restore(ctx, r.module, r.engineLimits(), memory); err != nil {
			return r.hostError(err)
		}
	}
	return nil
}

func (r *rerun) closeGuest(ctx context.Context) {
	if r.instance != nil {
		_ = r.instance.Close(ctx) // fails if the worker has ended, which also ends the instance
		r.instance = nil
	}
}
