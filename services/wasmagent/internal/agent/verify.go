package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/abi"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

// maxPoints bounds the number of positions to which a journal returns, and maxHeld the total size of their memories, in
// bytes. maxRerun bounds the fuel of a journal that is run again; that much takes some minutes.
const (
	maxPoints = 64
	maxHeld   = 128 << 20
	maxRerun  = 500_000_000_000
)

// point is a position in a journal.
type point struct {
	epoch    int32
	sequence int64
}

func pointOf(e *wasmagentv1.Event) point { return point{e.GetEpoch(), e.GetSequence()} }

// plan has the facts about a journal that are needed before it is run again.
type plan struct {
	// undone has the first input of each turn that was undone. points has the positions to which the journal returns.
	undone, points map[point]bool
	// module is the digest of the newest module that ran, and modules has the digests of all modules.
	module  string
	modules map[string]bool
	// otherMeter is true if the fuel was counted by another version of the meter.
	otherMeter bool
}

// Verify checks the hash chain of the journal, compares the stored agent with the journal, and runs the guest again:
// each effect and the fuel must be the same. It does not change the stored agent. An agent that differs takes no more
// prompts.
func (a *Agent) Verify(ctx context.Context) (*wasmagentv1.VerifyAgentResponse, error) {
	leave, err := a.Host.Enter(ctx, a, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	saved, kept, err := a.current(ctx)
	if err != nil {
		return nil, err
	}
	resp := &wasmagentv1.VerifyAgentResponse{AgentId: a.ID, ModuleDigest: saved.GetModuleDigest(), MeterVersion: wasmmeter.MeterVersion}
	p, err := a.whole(ctx, saved, kept, resp)
	switch {
	case isBroken(err):
		a.doubt(err)
		return resp, a.tellOthers(ctx)
	case err != nil:
		return nil, err
	}
	limit := ""
	switch {
	case len(p.points) > maxPoints:
		limit = "the journal is complete, but it returns to earlier states too often to be run again"
	case p.otherMeter || !a.haveModules(ctx, p.modules):
		limit = "the journal is complete, but its module or its meter is not available to run it again"
	case resp.GetFuelRecorded() > maxRerun:
		limit = fmt.Sprintf("the journal is complete, but it has %d million instructions, and at most %d million are run again", resp.GetFuelRecorded()/1e6, int64(maxRerun/1e6))
	}
	if limit != "" {
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_NOT_COMPARABLE, limit
		return resp, nil
	}
	return resp, a.runAgain(ctx, p, saved, kept, resp)
}

// haveModules reports whether all of these modules can run here.
func (a *Agent) haveModules(ctx context.Context, modules map[string]bool) bool {
	for digest := range modules {
		if a.Host.Ready(ctx, a, digest) != nil {
			return false
		}
	}
	return true
}

// tellOthers makes the other processes load the agent again.
func (a *Agent) tellOthers(ctx context.Context) error {
	if !a.Store.Shared {
		return nil
	}
	return keepError(a.Store.Touch(ctx, a.ID))
}

// current returns the agent from the store. It may be newer than the agent in memory.
func (a *Agent) current(ctx context.Context) (r *wasmstorev1.Record, s *wasmstorev1.State, err error) {
	for range 2 { // the end of a turn may replace the state between the two reads
		row, err := a.Store.Get(ctx, a.ID)
		if err != nil {
			return nil, nil, keepError(err)
		}
		s, err = a.Store.State(ctx, a.ID, row.GetStateKey(), row.GetStateDigest())
		if err == nil {
			return row.Record, s, nil
		}
		if !errors.Is(err, store.ErrState) {
			return nil, nil, keepError(err)
		}
	}
	return nil, nil, store.ErrState
}

// whole checks the hash chain of the journal, and compares the stored agent with the journal. Errors: [events.ErrChain]
// and [ErrDiffers], which it also writes to the response; the store's.
func (a *Agent) whole(ctx context.Context, saved *wasmstorev1.Record, kept *wasmstorev1.State, resp *wasmagentv1.VerifyAgentResponse) (plan, error) {
	p := plan{undone: make(map[point]bool), points: make(map[point]bool), modules: make(map[string]bool)}
	found, err := a.check(ctx, saved.GetHead(), &p, resp)
	a.mu.Lock()
	if err == nil && errors.Is(a.broken, events.ErrChain) {
		err = a.broken
	}
	a.mu.Unlock()
	if errors.Is(err, events.ErrChain) {
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN, err.Error()
	}
	if err != nil {
		return p, err
	}
	resp.NotCovered = found.notCovered()
	if resp.StoredDifference = found.compare(saved, kept); resp.GetStoredDifference() == nil {
		if resp.StoredDifference, err = a.compareSnapshots(ctx, saved); err != nil {
			return p, err
		}
	}
	if err := differs(resp.GetStoredDifference()); err != nil {
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is complete, but the stored agent differs from it: " + resp.GetStoredDifference().GetMessage()
		return p, err
	}
	return p, nil
}

// compareSnapshots checks that the states of all snapshots have the digests in the record.
func (a *Agent) compareSnapshots(ctx context.Context, saved *wasmstorev1.Record) (*wasmagentv1.StoredDifference, error) {
	for _, k := range saved.GetKept() {
		_, err := a.Store.State(ctx, a.ID, k.GetStateKey(), k.GetSnapshot().GetDigest())
		switch {
		case errors.Is(err, store.ErrState):
			id := k.GetSnapshot().GetId()
			return &wasmagentv1.StoredDifference{Part: "snapshot", Name: id, Message: fmt.Sprintf("the state of the snapshot %q is missing, or differs", id)}, nil
		case err != nil:
			return nil, keepError(err)
		}
	}
	return nil, nil //nolint:nilnil // all snapshots are unchanged
}

// runAgain runs the guest again with the inputs from the journal, and writes the result to the response.
func (a *Agent) runAgain(ctx context.Context, p plan, saved *wasmstorev1.Record, kept *wasmstorev1.State, resp *wasmagentv1.VerifyAgentResponse) error {
	resp.ModuleDigest = p.module
	r := &rerun{Agent: a, plan: p, resp: resp, at: make(map[point][]byte)}
	defer r.drop(context.WithoutCancel(ctx))
	if err := a.events(ctx, a.ID, saved.GetHead().GetPlace(), func(e *wasmstorev1.StoredEvent) error { return r.event(ctx, e) }); err != nil {
		return err
	}
	if err := r.event(ctx, nil); err != nil {
		return err
	}
	if err := r.compare(ctx, kept); err != nil {
		return err
	}
	switch {
	case r.memoryDiffers:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is complete, but the stored memory of the guest differs from the memory after running it again"
	case resp.GetFirstDifference() != nil:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is complete, but the module behaved differently when it was run again"
	case len(resp.GetNotCovered()) > 0:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_NOT_COVERED
		resp.Message = "the journal is complete, and the module did the same when it was run again, but the journal does not cover everything that is stored: " +
			strings.Join(resp.GetNotCovered(), ", ") + "; create a new agent to have everything covered"
	default:
		resp.Verification = wasmagentv1.Verification_VERIFICATION_MATCHES
		resp.Message = "the journal is complete, the stored agent matches it, and the module did the same when it was run again"
	}
	return nil
}

// events calls do for the events of a journal up to a position, the oldest first.
func (a *Agent) events(ctx context.Context, id string, upTo int64, do func(e *wasmstorev1.StoredEvent) error) error {
	for behind := int64(0); behind < upTo; {
		some, _, err := a.Store.Events(ctx, id, behind, int(min(maxTail, upTo-behind)), maxTailBytes)
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

// check checks the hash chain of the journal and fills the plan.
func (a *Agent) check(ctx context.Context, head *wasmstorev1.Head, p *plan, resp *wasmagentv1.VerifyAgentResponse) (*coverage, error) {
	var first point // the first input of the present turn
	started := false
	c := &coverage{head: events.Start(a.JournalID)}
	err := a.events(ctx, a.ID, head.GetPlace(), func(e *wasmstorev1.StoredEvent) error {
		if err := c.add(e); err != nil {
			resp.FirstDifference = e.GetEvent()
			return err
		}
		resp.Events++
		resp.JournalHead = c.head.GetHash()
		resp.FuelRecorded += e.GetEvent().GetFuel()
		switch e.GetEvent().GetKind() { //nolint:exhaustive // events of other kinds do not concern the plan
		case wasmagentv1.EventKind_EVENT_KIND_INPUT:
			in, err := abi.ReadIn(e.GetEnvelope())
			if err != nil {
				return fmt.Errorf("event %d: %w: %w", c.head.GetPlace(), events.ErrChain, err)
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
	if err != nil {
		return c, err
	}
	return c, c.ends(head)
}

func (p *plan) lifecycle(e *wasmagentv1.Event) {
	if e.GetModuleDigest() == "" {
		return
	}
	p.otherMeter = p.otherMeter || e.GetMeterVersion() != wasmmeter.MeterVersion
	p.module = e.GetModuleDigest()
	p.modules[p.module] = true
	if e.GetFromEpoch() > 0 {
		p.points[point{e.GetFromEpoch(), e.GetFromSequence()}] = true
	}
}
