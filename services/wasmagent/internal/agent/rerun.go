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

// rerun runs the modules of an agent again by its journal.
type rerun struct {
	*Agent
	plan

	resp *wasmagentv1.VerifyAgentResponse
	// now is the event that is processed when the next one is known.
	now *wasmstorev1.StoredEvent
	in  *worker.Instance
	// first is the fuel of the guest's start. answer and fuel are the result of the newest step.
	first  int64
	answer []byte
	fuel   int64
	// base is the guest's memory before an undone turn. at has the memory at places to which the journal goes back. nil
	// stands for a guest that was not started.
	base []byte
	at   map[point][]byte
	// memoryDiffers is true if the guest's memory differs from the stored one.
	memoryDiffers bool
	// held is the size of all memories in at, in bytes.
	held int
}

// event processes an event; nil is the end of the journal.
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
	switch event := e.GetEvent(); event.GetKind() { //nolint:exhaustive // the others don't concern the guest
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
		switch next.GetEvent().GetKind() { //nolint:exhaustive // no other kind follows
		case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE: // the step did not return
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

// compare compares the guest's memory with the stored one, both as snapshots that are written now.
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

// step gives the guest the recorded envelope.
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

// failed returns err unless the guest itself caused it. The guest's failures show up in the comparison.
func (r *rerun) failed(err error) error {
	switch {
	case errors.Is(err, engine.ErrFuel), errors.Is(err, engine.ErrMemory), errors.Is(err, engine.ErrTrap):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return nil
}

// memory returns a snapshot of the guest; nil before its start.
func (r *rerun) memory(ctx context.Context) ([]byte, error) {
	if r.in == nil {
		return nil, nil
	}
	memory, err := r.in.Snapshot(ctx)
	return memory, r.failed(err)
}

// restore replaces the guest by one with this memory.
func (r *rerun) restore(ctx context.Context, memory []byte) (err error) {
	r.drop(ctx)
	if memory != nil {
		if r.in, err = r.Workers.Restore(ctx, r.module, r.engineLimits(), memory); err != nil {
			return r.failed(err)
		}
	}
	return nil
}

func (r *rerun) drop(ctx context.Context) {
	if r.in != nil {
		_ = r.in.Close(ctx) // if its worker is gone, so is the instance
		r.in = nil
	}
}
