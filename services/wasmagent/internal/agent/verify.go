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

// maxReturnPoints limits how many journal positions an agent may return to. maxReturnBytes limits the total size, in
// bytes, of the guest's memory at these positions. maxRerunFuel limits the fuel for rerunning a journal. A rerun that
// uses that much fuel takes some minutes.
const (
	maxReturnPoints = 64
	maxReturnBytes  = 128 << 20
	maxRerunFuel    = 500_000_000_000
)

type journalPosition struct {
	epoch    int32
	sequence int64
}

func positionOf(e *wasmagentv1.Event) journalPosition {
	return journalPosition{e.GetEpoch(), e.GetSequence()}
}

// replayPlan contains what must be known before a rerun starts.
type replayPlan struct {
	// undoneTurns contains the position of the first input of each undone turn. returnPoints contains the positions to
	// which the agent returns later.
	undoneTurns, returnPoints map[journalPosition]bool
	// module is the digest of the module that ran last. modules contains the digests of all modules that ran.
	module  string
	modules map[string]bool
	// otherMeter is true if another version of the fuel meter counted the fuel in the journal.
	otherMeter bool
}

// Verify checks the hash chain of the journal, compares the stored agent with the journal, and reruns the guest. The
// rerun must request the same effects and use the same fuel as the journal records. Verify reports differences in its
// response. It does not change the stored agent, but an agent that differs from its journal accepts no more prompts.
func (a *Agent) Verify(ctx context.Context) (*wasmagentv1.VerifyAgentResponse, error) {
	leave, err := a.Host.AcquireSlot(ctx, a, false)
	if err != nil {
		return nil, err
	}
	defer leave()
	saved, storedState, err := a.readStored(ctx)
	if err != nil {
		return nil, err
	}
	resp := &wasmagentv1.VerifyAgentResponse{AgentId: a.ID, ModuleDigest: saved.GetModuleDigest(), MeterVersion: wasmmeter.MeterVersion}
	p, err := a.verifyStored(ctx, saved, storedState, resp)
	switch {
	case isDamage(err):
		a.markDamaged(err)
		return resp, a.invalidateOthers(ctx)
	case err != nil:
		return nil, err
	}
	limit := ""
	switch {
	case len(p.returnPoints) > maxReturnPoints:
		limit = "the journal is complete, but it returns to earlier states too often to be run again"
	case p.otherMeter || !a.canRunModules(ctx, p.modules):
		limit = "the journal is complete, but its module or its meter is not available to run it again"
	case resp.GetFuelRecorded() > maxRerunFuel:
		limit = fmt.Sprintf("the journal is complete, but it has %d million instructions, and at most %d million are run again", resp.GetFuelRecorded()/1e6, int64(maxRerunFuel/1e6))
	}
	if limit != "" {
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_NOT_COMPARABLE, limit
		return resp, nil
	}
	return resp, a.rerunJournal(ctx, p, saved, storedState, resp)
}

func (a *Agent) canRunModules(ctx context.Context, modules map[string]bool) bool {
	for digest := range modules {
		if a.Host.EnsureModule(ctx, a, digest) != nil {
			return false
		}
	}
	return true
}

// invalidateOthers makes all other processes load the agent again.
func (a *Agent) invalidateOthers(ctx context.Context) error {
	if !a.Store.IsShared {
		return nil
	}
	return storeError(a.Store.RaiseVersion(ctx, a.ID))
}

// readStored reads the agent from the store. The stored agent may be newer than the agent in memory.
func (a *Agent) readStored(ctx context.Context) (r *wasmstorev1.Record, s *wasmstorev1.State, err error) {
	for range 2 { // the end of a turn may replace the state between the two reads
		row, err := a.Store.Get(ctx, a.ID)
		if err != nil {
			return nil, nil, storeError(err)
		}
		s, err = a.Store.State(ctx, a.ID, row.GetStateKey(), row.GetStateDigest())
		if err == nil {
			return row.Record, s, nil
		}
		if !errors.Is(err, store.ErrStateLost) {
			return nil, nil, storeError(err)
		}
	}
	return nil, nil, store.ErrStateLost
}

// verifyStored checks the hash chain of the journal, and that the stored agent matches the journal. It returns
// [events.ErrChain], [ErrStateDiffers], or an error from the store. It writes the first two errors to resp as well.
func (a *Agent) verifyStored(ctx context.Context, saved *wasmstorev1.Record, storedState *wasmstorev1.State, resp *wasmagentv1.VerifyAgentResponse) (replayPlan, error) {
	p := replayPlan{undoneTurns: make(map[journalPosition]bool), returnPoints: make(map[journalPosition]bool), modules: make(map[string]bool)}
	found, err := a.readPlan(ctx, saved.GetHead(), &p, resp)
	a.mu.Lock()
	if err == nil && errors.Is(a.damage, events.ErrChain) {
		err = a.damage
	}
	a.mu.Unlock()
	if errors.Is(err, events.ErrChain) {
		resp.Verification, resp.Message = wasmagentv1.Verification_VERIFICATION_CHAIN_BROKEN, err.Error()
	}
	if err != nil {
		return p, err
	}
	resp.NotCovered = found.notCovered()
	if resp.StoredDifference = found.compare(saved, storedState); resp.GetStoredDifference() == nil {
		if resp.StoredDifference, err = a.compareSnapshots(ctx, saved); err != nil {
			return p, err
		}
	}
	if err := differenceError(resp.GetStoredDifference()); err != nil {
		resp.Verification = wasmagentv1.Verification_VERIFICATION_DIFFERS
		resp.Message = "the journal is complete, but the stored agent differs from it: " + resp.GetStoredDifference().GetMessage()
		return p, err
	}
	return p, nil
}

// compareSnapshots checks that the state of each snapshot matches its digest in the record. It returns the first
// difference, or nil if there is none.
func (a *Agent) compareSnapshots(ctx context.Context, saved *wasmstorev1.Record) (*wasmagentv1.StoredDifference, error) {
	for _, k := range saved.GetKept() {
		_, err := a.Store.State(ctx, a.ID, k.GetStateKey(), k.GetSnapshot().GetDigest())
		switch {
		case errors.Is(err, store.ErrStateLost):
			id := k.GetSnapshot().GetId()
			return &wasmagentv1.StoredDifference{Part: "snapshot", Name: id, Message: fmt.Sprintf("the state of the snapshot %q is missing, or differs", id)}, nil
		case err != nil:
			return nil, storeError(err)
		}
	}
	return nil, nil //nolint:nilnil // all snapshots are unchanged
}

// rerunJournal reruns the guest with the inputs in the journal, and writes the result to resp.
func (a *Agent) rerunJournal(ctx context.Context, p replayPlan, saved *wasmstorev1.Record, storedState *wasmstorev1.State, resp *wasmagentv1.VerifyAgentResponse) error {
	resp.ModuleDigest = p.module
	r := &rerun{Agent: a, replayPlan: p, resp: resp, memories: make(map[journalPosition][]byte)}
	defer r.closeGuest(context.WithoutCancel(ctx))
	if err := a.eachEvent(ctx, a.ID, saved.GetHead().GetPlace(), func(e *wasmstorev1.StoredEvent) error { return r.addEvent(ctx, e) }); err != nil {
		return err
	}
	if err := r.addEvent(ctx, nil); err != nil {
		return err
	}
	if err := r.compare(ctx, storedState); err != nil {
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

// eachEvent calls do for the events of a journal up to a position, oldest first.
func (a *Agent) eachEvent(ctx context.Context, id string, upTo int64, do func(e *wasmstorev1.StoredEvent) error) error {
	for after := int64(0); after < upTo; {
		page, _, err := a.Store.Events(ctx, id, after, int(min(maxEventsRead, upTo-after)), maxEventBytesRead)
		if err != nil {
			return storeError(err)
		}
		for _, e := range page {
			if err := do(e); err != nil {
				return err
			}
		}
		if after += int64(len(page)); len(page) == 0 {
			return nil
		}
	}
	return nil
}

// readPlan checks the hash chain of the journal, and fills p with what a rerun must know.
func (a *Agent) readPlan(ctx context.Context, head *wasmstorev1.Head, p *replayPlan, resp *wasmagentv1.VerifyAgentResponse) (*coverage, error) {
	var first journalPosition // the position of the first input of the current turn
	started := false
	c := &coverage{head: events.EmptyHead(a.JournalID)}
	err := a.eachEvent(ctx, a.ID, head.GetPlace(), func(e *wasmstorev1.StoredEvent) error {
		if err := c.add(e); err != nil {
			resp.FirstDifference = e.GetEvent()
			return err
		}
		resp.Events++
		resp.JournalHead = c.head.GetHash()
		resp.FuelRecorded += e.GetEvent().GetFuel()
		switch e.GetEvent().GetKind() { //nolint:exhaustive // events of other kinds do not concern the plan
		case wasmagentv1.EventKind_EVENT_KIND_INPUT:
			in, err := abi.DecodeHost(e.GetEnvelope())
			if err != nil {
				return fmt.Errorf("event %d: %w: %w", c.head.GetPlace(), events.ErrChain, err)
			}
			if in.Kind == abi.Start || in.Kind == abi.Prompt && !started {
				first = positionOf(e.GetEvent())
			}
			if in.Kind != abi.Cancel {
				started = in.Kind == abi.Start
			}
		case wasmagentv1.EventKind_EVENT_KIND_UNDONE:
			p.undoneTurns[first], started = true, false
		case wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE:
			p.addLifecycle(e.GetEvent())
		}
		return nil
	})
	if err != nil {
		return c, err
	}
	return c, c.checkEnd(head)
}

func (p *replayPlan) addLifecycle(e *wasmagentv1.Event) {
	if e.GetModuleDigest() == "" {
		return
	}
	p.otherMeter = p.otherMeter || e.GetMeterVersion() != wasmmeter.MeterVersion
	p.module = e.GetModuleDigest()
	p.modules[p.module] = true
	if e.GetFromEpoch() > 0 {
		p.returnPoints[journalPosition{e.GetFromEpoch(), e.GetFromSequence()}] = true
	}
}
