package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/engine"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/module"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/worker"
)

// maxPoints is how many states are held at a time that the journal goes back to, and maxHeld how
// large they may be together, in bytes.
const (
	maxPoints = 64
	maxHeld   = 128 << 20
)

// point is a place in a journal, by epoch and sequence.
type point struct {
	epoch    int32
	sequence int64
}

func pointOf(e *wasmagentv1.Event) point { return point{e.GetEpoch(), e.GetSequence()} }

// plan is what is to be known of a journal before it is run again.
type plan struct {
	// undone are the turns that were undone, by their first inputs, and points the places
	// that are gone back to.
	undone, points map[point]bool
	module         string
	// mixed says that more than one module, or another meter, was at work.
	mixed bool
}

// Verify checks the chain of its journal, as it was kept last, and runs its module again by
// that: each effect and the fuel have to come out the same. It changes nothing.
func (a *Agent) Verify(ctx context.Context) (*wasmagentv1.VerifyAgentResponse, error) {
	leave, err := a.Host.Enter(a)
	if err != nil {
		return nil, err
	}
	defer leave()
	saved := a.Saved()
	head := saved.GetHead()
	resp := &wasmagentv1.VerifyAgentResponse{AgentId: a.ID, ModuleDigest: a.Saved().GetModuleDigest(), MeterVersion: module.MeterVersion}
	p, err := a.check(ctx, head, resp)
	if err == nil {
		a.mu.Lock()
		err = a.broken
		a.mu.Unlock()
	}
	switch {
	case errors.Is(err, events.ErrChain):
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN, err.Error()
		return resp, nil
	case err != nil:
		return nil, err
	case len(p.points) > maxPoints:
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_NOT_COMPARABLE, "the journal is whole, but it goes back too often to be run again"
		return resp, nil
	case p.mixed || !a.Workers.Knows(p.module):
		resp.Verification = wasmagentv1.Verification_VERIFICATION_NOT_COMPARABLE
		resp.Message = "the journal is whole, but the module or the meter that it was written with is not there to run it again"
		return resp, nil
	}
	resp.ModuleDigest = p.module
	r := &rerun{Agent: a, plan: p, resp: resp, at: make(map[point][]byte)}
	defer r.drop(context.WithoutCancel(ctx))
	if err := a.events(ctx, head.GetPlace(), func(e *wasmstorev1.StoredEvent) error { return r.event(ctx, e) }); err != nil {
		return nil, err
	}
	if err := r.event(ctx, nil); err != nil {
		return nil, err
	}
	if err := r.compare(ctx, saved); err != nil {
		return nil, err
	}
	resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_MATCHES, "the journal is whole, and run again the module did the same"
	switch {
	case r.memoryDiffers:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is whole, but what is kept of the guest is not what it leads to"
	case resp.GetFirstDifference() != nil:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is whole, but run again the module did something else"
	}
	return resp, nil
}

// events reads the events up to a place, oldest first.
func (a *Agent) events(ctx context.Context, upTo int64, do func(e *wasmstorev1.StoredEvent) error) error {
	for behind := int64(0); behind < upTo; {
		some, _, err := a.Store.Events(ctx, a.ID, behind, int(min(maxTail, upTo-behind)), maxTailBytes)
		if err != nil {
			return keepError(err)
		}
		for _, e := range some {
			if err := do(e); err != nil {
				return err
			}
		}
		if behind += int64(len(some)); len(some) == 0 {
			return nil
		}
	}
	return nil
}

// check checks the chain, and learns what running it again has to know.
func (a *Agent) check(ctx context.Context, head *wasmstorev1.Head, resp *wasmagentv1.VerifyAgentResponse) (plan, error) {
	p := plan{undone: make(map[point]bool), points: make(map[point]bool)}
	at := events.Start(a.JournalID)
	var first point // of the turn
	started := false
	err := a.events(ctx, head.GetPlace(), func(e *wasmstorev1.StoredEvent) (err error) {
		was := at
		if at, err = events.Check(at, e); err != nil {
			resp.FirstDifference = e.GetEvent()
			return fmt.Errorf("event %d: %w", was.GetPlace()+1, err)
		}
		resp.Events++
		resp.JournalHead = at.GetHash()
		resp.FuelRecorded += e.GetEvent().GetFuel()
		switch e.GetEvent().GetKind() { //nolint:exhaustive // the others say nothing of this
		case wasmagentv1.EventKind_EVENT_KIND_INPUT:
			in, err := abi.ReadIn(e.GetEnvelope())
			if err != nil {
				return fmt.Errorf("event %d: %w: %w", at.GetPlace(), events.ErrChain, err)
			}
			if in.Kind == abi.Start || in.Kind == abi.Prompt && !started {
				first = pointOf(e.GetEvent())
			}
			if in.Kind != abi.Cancel {
				started = in.Kind == abi.Start
			}
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE:
			p.undone[first], started = true, false
		case wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE:
			p.lifecycle(e.GetEvent())
		}
		return nil
	})
	if err == nil && at.GetHash() != head.GetHash() {
		err = fmt.Errorf("%w: its end is missing", events.ErrChain)
	}
	return p, err
}

func (p *plan) lifecycle(e *wasmagentv1.Event) {
	if e.GetModuleDigest() == "" {
		return
	}
	p.mixed = p.mixed || p.module != "" && p.module != e.GetModuleDigest() || e.GetMeterVersion() != module.MeterVersion
	p.module = e.GetModuleDigest()
	if e.GetFromEpoch() > 0 {
		p.points[point{e.GetFromEpoch(), e.GetFromSequence()}] = true
	}
}

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
func (r *rerun) compare(ctx context.Context, saved *wasmstorev1.Record) error {
	if r.resp.GetFirstDifference() != nil {
		return nil
	}
	is, err := r.memory(ctx)
	if err != nil {
		return err
	}
	kept, err := r.Store.State(ctx, r.ID, saved.GetStateKey(), saved.GetStateDigest())
	if err != nil {
		return keepError(err)
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
	r.answer, r.fuel, err = r.in.Step(ctx, e.GetEnvelope(), max(r.Limits.Fuel, emitted.GetFuel()), r.Limits.Deadline)
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
