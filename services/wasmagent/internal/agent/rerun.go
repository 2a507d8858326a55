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

// rerun runs a module by a journal.
type rerun struct {
	*Agent
	plan

	resp *wasmagentv1.VerifyAgentResponse
	// now is the event that is looked at once the next one is known.
	now *wasmstorev1.StoredEvent
	in  *worker.Instance
	// first is the fuel of the guest's start, and answer and fuel what came of the newest step.
	first  int64
	answer []byte
	fuel   int64
	// base is the guest before a turn that was undone, and at are guests at places that are
	// gone back to; nil stands for one that was not started.
	base []byte
	at   map[point][]byte
	// memoryDiffers says that the guest is another than the one that is kept.
	memoryDiffers bool
	// held is how large all in at are, in bytes.
	held int
}

// event takes the next event; nil is the end.
func (r *rerun) event(ctx context.Context, next *wasmstorev1.StoredEvent) error {
	e := r.now
	if r.now = next; e == nil || r.resp.GetFirstDifference() != nil {
		return nil
	}
	if err := r.one(ctx, e, next); err != nil {
		return err
	}
	if r.points[pointOf(e.GetEvent())] {
		memory, err := r.memory(ctx)
		if err != nil {
			return err
		}
		r.at[pointOf(e.GetEvent())] = memory
		if r.held += len(memory); r.held > maxHeld {
			return fmt.Errorf("%w: the states that its journal goes back to have more than %d MiB", ErrAway, maxHeld>>20)
		}
	}
	return nil
}

func (r *rerun) one(ctx context.Context, e, next *wasmstorev1.StoredEvent) (err error) {
	switch event := e.GetEvent(); event.GetKind() { //nolint:exhaustive // the others are not the guest's
	case wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE:
		if event.GetModuleDigest() != "" {
			r.module = event.GetModuleDigest()
			return r.restore(ctx, r.at[point{event.GetFromEpoch(), event.GetFromSequence()}])
		}
	case wasmagentv1.EventKind_EVENT_KIND_UNDONE:
		return r.restore(ctx, r.base)
	case wasmagentv1.EventKind_EVENT_KIND_INPUT, wasmagentv1.EventKind_EVENT_KIND_RESULT:
		if r.undone[pointOf(event)] {
			if r.base, err = r.memory(ctx); err != nil {
				return err
			}
		}
		switch next.GetEvent().GetKind() { //nolint:exhaustive // all others do not follow it
		case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE: // it never came back
			return nil
		default:
			r.resp.FirstDifference = events.Shown(e)
			return nil
		}
		return r.step(ctx, e, next.GetEvent())
	case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		r.resp.FuelReplayed += r.fuel
		if !bytes.Equal(r.answer, e.GetEnvelope()) || r.fuel != event.GetFuel() {
			r.resp.FirstDifference = events.Shown(e)
			return nil
		}
		r.answer, r.fuel = nil, 0
		if event.GetEffect() != wasmagentv1.EffectKind_EFFECT_KIND_FINISH && event.GetEffect() != wasmagentv1.EffectKind_EFFECT_KIND_FAIL {
			r.resp.Effects++
		}
	}
	return nil
}

// compare compares the guest with what is kept of it: both as they are written now.
func (r *rerun) compare(ctx context.Context, kept *wasmstorev1.State) error {
	if r.resp.GetFirstDifference() != nil {
		return nil
	}
	is, err := r.memory(ctx)
	if err != nil {
		return err
	}
	if kept.GetMemory() == nil {
		r.memoryDiffers = is != nil
		return nil
	}
	if err := r.restore(ctx, kept.GetMemory()); err != nil {
		return err
	}
	was, err := r.memory(ctx)
	r.memoryDiffers = !bytes.Equal(is, was)
	return err
}

// step gives the guest what it was given.
func (r *rerun) step(ctx context.Context, e *wasmstorev1.StoredEvent, emitted *wasmagentv1.Event) (err error) {
	r.answer, r.fuel = nil, 0
	if r.in == nil {
		if r.in, r.first, err = r.Workers.Start(ctx, r.module, r.engineLimits(), r.origin(), r.Limits.Fuel, r.Limits.Deadline); err != nil {
			return r.failed(err)
		}
	}
	r.resp.Steps++
	r.answer, r.fuel, err = r.in.Step(ctx, e.GetEnvelope(), min(max(r.Limits.Fuel, emitted.GetFuel()), maxRerun), r.Limits.Deadline)
	r.fuel += r.first
	r.first = 0
	return r.failed(err)
}

// failed is an error that says nothing of the guest; what it did wrong is compared.
func (r *rerun) failed(err error) error {
	switch {
	case errors.Is(err, engine.ErrFuel), errors.Is(err, engine.ErrMemory), errors.Is(err, engine.ErrTrap):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return nil
}

// memory is all that the guest is; nil before its start.
func (r *rerun) memory(ctx context.Context) ([]byte, error) {
	if r.in == nil {
		return nil, nil
	}
	memory, err := r.in.Snapshot(ctx)
	return memory, r.failed(err)
}

// restore makes the guest what it was.
func (r *rerun) restore(ctx context.Context, memory []byte) (err error) {
	r.drop(ctx)
	if memory != nil {
		if r.in, err = r.Workers.Restore(ctx, r.module, r.engineLimits(), memory); err != nil {
			return r.failed(err)
		}
	}
	return nil
}

// drop ends the guest.
func (r *rerun) drop(ctx context.Context) {
	if r.in != nil {
		_ = r.in.Close(ctx) // or its worker is gone, and it too
		r.in = nil
	}
}
