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

// rerun runs the modules of an agent again with the inputs from its journal.
type rerun struct {
	*Agent
	plan

	resp *wasmagentv1.VerifyAgentResponse
	// now is the event to be processed. It is processed when the event after it is known.
	now *wasmstorev1.StoredEvent
	in  *worker.Instance
	// first is the fuel that the start of the guest used. answer and fuel are the results of the newest step.
	first  int64
	answer []byte
	fuel   int64
	// base is the guest's memory before a turn that is undone later. at has the guest's memories at the positions to
	// which the journal returns. In both, nil means that the guest was not started yet.
	base []byte
	at   map[point][]byte
	// memoryDiffers is true if the guest's memory differs from the stored one.
	memoryDiffers bool
	// held is the total size of the memories in at, in bytes.
	held int
}

// event takes the next event, and processes the one before it. A nil event means the end of the journal.
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
			return fmt.Errorf("%w: the states to which its journal returns have more than %d MiB in total", ErrAway, maxHeld>>20)
		}
	}
	return nil
}

// one processes an event. next is the event after it; nil at the end of the journal.
func (r *rerun) one(ctx context.Context, e, next *wasmstorev1.StoredEvent) (err error) {
	switch event := e.GetEvent(); event.GetKind() { //nolint:exhaustive // events of other kinds do not concern the guest
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
		switch next.GetEvent().GetKind() { //nolint:exhaustive // the default is a difference
		case wasmagentv1.EventKind_EVENT_KIND_EMITTED:
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE: // the step did not complete
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

// compare compares the guest's memory with the stored memory. Both are restored and written again first, because the
// form of a snapshot may differ.
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

// step gives the guest the envelope that the journal records.
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

// failed returns err, or nil if the guest itself caused it. The comparison with the journal finds failures of the
// guest.
func (r *rerun) failed(err error) error {
	switch {
	case errors.Is(err, engine.ErrFuel), errors.Is(err, engine.ErrMemory), errors.Is(err, engine.ErrTrap):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	return nil
}

// memory returns a snapshot of the guest; nil if the guest was not started yet.
func (r *rerun) memory(ctx context.Context) ([]byte, error) {
	if r.in == nil {
		return nil, nil
	}
	memory, err := r.in.Snapshot(ctx)
	return memory, r.failed(err)
}

// restore replaces the guest by one with this memory. If the memory is nil, the guest starts with the next step.
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
