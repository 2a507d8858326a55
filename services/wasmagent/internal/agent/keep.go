package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/files"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/inventory"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/module"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
)

const (
	// keepTime is how long what happened may take to be kept.
	keepTime = 10 * time.Second
	// maxTail is how many events of a turn are read at a time, and maxTailBytes how large
	// they are.
	maxTail      = 1000
	maxTailBytes = 4 << 20
)

// By is who changes an agent, and the call that it does so by.
type By struct {
	Context context.Context //nolint:containedctx // it is that of the one call
	// Actor is its subject, and Operator says that it runs the installation.
	Actor    string
	Operator bool
}

// journal is where an agent's journal stands.
type journal struct {
	// version is that of the agent's row.
	version int64
	// head is behind the newest event, and kept is the place of the newest that is in the
	// store; waiting are those between.
	head    *wasmstorev1.Head
	kept    int64
	waiting []*wasmstorev1.StoredEvent
	// list is what is stored, as the newest stored event says; nil where the journal has none. checked
	// says that the whole chain was read since the agent was.
	list    *inventory.Inventory
	checked bool
}

// note puts an event behind the newest, with its envelope, which may be nil. It is kept with
// the next change.
func (j *journal) note(e *wasmagentv1.Event, envelope []byte) *wasmagentv1.Event {
	stored, head := events.Seal(j.head, e, envelope)
	j.head, j.waiting = head, append(j.waiting, stored)
	return stored.GetEvent()
}

// lifecycle is the event that something befell an agent.
func lifecycle(next *state, by By, said string) *wasmagentv1.Event {
	return &wasmagentv1.Event{Epoch: int32(next.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, State: next.at, Message: said, Actor: by.Actor}
}

// begins makes an event begin an epoch.
func begins(e *wasmagentv1.Event, next *state, from *wasmstorev1.Head) *wasmagentv1.Event {
	e.ModuleDigest, e.MeterVersion, e.FromEpoch, e.FromSequence = next.module, module.MeterVersion, from.GetEpoch(), from.GetSequence()
	return e
}

// New makes an agent that has not run yet, and keeps it, if there is room. Errors: the
// store's.
func New(by By, s Spec, deps Deps, room store.Room) (*Agent, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if s.Creator == nil || s.Config == nil || s.ID == "" {
		return nil, errors.New("agent: an id, a creator and a configuration are required")
	}
	s.JournalID, s.Origin = s.ID, s.Created
	a := &Agent{Spec: s, Deps: deps, state: newState(&s)}
	a.journal.head = events.Start(a.JournalID)
	return a, a.create(by.Context, begins(lifecycle(&a.state, by, "created"), &a.state, nil), "", room)
}

// create keeps a new agent, whose first event of its own is given. Those before it are of
// another's journal.
func (a *Agent) create(ctx context.Context, first *wasmagentv1.Event, from string, room store.Room) error {
	a.journal.note(first, nil)
	basis := inventory.Found
	switch {
	case a.journal.head.GetPlace() == 1:
		basis = inventory.Made
	case a.journal.list != nil:
		basis = inventory.Before
	}
	c, list, err := a.stored(&a.state, basis)
	if err != nil {
		return err
	}
	c.ID, c.Events, c.First = a.ID, a.journal.waiting, a.journal.kept+1
	made, err := a.Store.Create(ctx, c, from, room)
	if err != nil {
		return keepError(err)
	}
	a.made, a.saved, a.listed = made, c.Record, list.Size()
	a.journal.list, a.journal.checked = list, true
	a.journal.version, a.journal.kept, a.journal.waiting = 1, a.journal.head.GetPlace(), nil
	return nil
}

// keepError says of an error of the store's whether it is that it can't be reached.
func keepError(err error) error {
	if errors.Is(err, store.ErrAway) || errors.Is(err, store.ErrStale) {
		return fmt.Errorf("%w: %w", ErrKeep, err)
	}
	return err
}

// Open returns an agent as it was kept. A turn of it that nobody works on any more is undone,
// or gone on with, where that goes on alone and its module may run. Errors: the store's.
func Open(ctx context.Context, row *store.Row, deps Deps, mayRun bool) (*Agent, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	spec, now := of(row.Record)
	spec.Files = BoundsOf(spec.Manifest)
	kept, err := deps.Store.State(ctx, row.GetId(), row.GetStateKey(), row.GetStateDigest())
	if err != nil {
		return nil, fmt.Errorf("read the agent %s: %w", row.GetId(), err)
	}
	now.restore(kept, spec.Files)
	a := &Agent{
		Spec: spec, Deps: deps, state: now, made: row.Made, saved: row.Record, elsewhere: row.Held,
		journal: journal{version: row.Version, head: row.GetHead(), kept: row.GetHead().GetPlace()},
	}
	if err := a.prove(ctx, kept, row.Turn != store.NoTurn); err != nil {
		if !isBroken(err) {
			return nil, fmt.Errorf("read the journal of the agent %s: %w", row.GetId(), err)
		}
		a.doubt(err)
		return a, nil
	}
	switch {
	case row.Held:
		if row.Turn == store.Alone {
			a.waits, err = a.waitsElsewhere(ctx)
		}
		return a, err
	case row.Turn == store.NoTurn:
		return a, nil
	case row.Turn == store.Alone && mayRun:
		a.goOnAlone()
		return a, nil
	}
	err = a.abandon(ctx, "the process that worked on it ended, and it can't be gone on with")
	if isBroken(err) {
		a.doubt(err)
		err = nil
	}
	return a, err
}

// waitsElsewhere is what another process waits for with its turn, as its journal says; nil where
// that is nothing that people decide on.
func (a *Agent) waitsElsewhere(ctx context.Context) (*wasmagentv1.Waiting, error) {
	last, err := a.Store.Last(ctx, a.ID)
	e := last.GetEvent()
	if err != nil || e.GetKind() != wasmagentv1.EventKind_EVENT_KIND_PARKED {
		return nil, keepError(err)
	}
	return &wasmagentv1.Waiting{
		WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_APPROVAL, ApprovalId: e.GetApprovalId(), DecisionId: e.GetDecisionId(), Since: e.GetTime(),
	}, nil
}

// advice is what to do with an agent that is broken.
const advice = "It takes no more prompts: export it with depth state as evidence, " +
	"then fork it from a snapshot that was taken before, or make a new agent, and terminate it"

// isBroken reports whether an error says that the journal, or what is stored, was changed.
func isBroken(err error) bool { return errors.Is(err, events.ErrChain) || errors.Is(err, ErrDiffers) }

// doubt notes that nothing more can be kept of the agent: its journal does not hold, so that it can
// be read, proved to be damaged, and ended; or it is to be read again.
func (a *Agent) doubt(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !isBroken(err) {
		a.lost = true
		return
	}
	a.broken = fmt.Errorf("%w. %s", err, advice)
	a.failure = &wasmagentv1.Failure{Cause: wasmagentv1.FailureCause_FAILURE_CAUSE_JOURNAL, Message: a.broken.Error()}
	if a.turn == nil && a.at != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		a.at = wasmagentv1.AgentState_AGENT_STATE_FAILED
	}
}

// defaultFiles are the files of an agent whose manifest has more, or that has none.
var defaultFiles = files.Bounds{Bytes: 8 << 20, Count: 1000}

// BoundsOf is what files a manifest lets an agent have.
func BoundsOf(m *wasmagentv1.Manifest) files.Bounds {
	return files.Bounds{Bytes: min(defaultFiles.Bytes, int(m.GetFiles().GetBytes())), Count: min(defaultFiles.Count, int(m.GetFiles().GetCount()))}
}

// tail reads the events of the turn that the store has and that is not finished, behind a head.
// It returns the head behind them.
func (a *Agent) tail(ctx context.Context, head *wasmstorev1.Head, do func(e *wasmstorev1.StoredEvent)) (*wasmstorev1.Head, error) {
	for {
		some, _, err := a.Store.Events(ctx, a.ID, head.GetPlace(), maxTail, maxTailBytes)
		if err != nil || len(some) == 0 {
			return head, keepError(err)
		}
		for _, e := range some {
			if head, err = events.Check(head, e); err != nil {
				return head, err
			}
			do(e)
		}
	}
}

// abandon undoes a turn that nobody works on any more: its events stay. Nobody else changes the
// agent meanwhile.
func (a *Agent) abandon(ctx context.Context, why string) error {
	before := a.journal.head
	var more usage
	approval := "" // the one that the turn waited for
	head, err := a.tail(ctx, before, func(e *wasmstorev1.StoredEvent) {
		approval = waitsAfter(e.GetEvent(), approval)
		more.fuel += e.GetEvent().GetFuel()
		if e.GetEvent().GetKind() == wasmagentv1.EventKind_EVENT_KIND_RESULT {
			more.effects++
		}
	})
	if err != nil {
		return err
	}
	a.journal.head, a.journal.kept = head, head.GetPlace()
	if head.GetPlace() > before.GetPlace() {
		a.journal.note(&wasmagentv1.Event{Epoch: int32(a.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_UNDONE, Message: why}, nil)
	}
	a.mu.Lock()
	a.elsewhere, a.waits = false, nil
	a.usage.fuel += more.fuel
	a.usage.effects += more.effects
	next := a.state
	a.mu.Unlock()
	err = a.save(ctx, &next, store.NoTurn)
	if err == nil && approval != "" {
		a.Host.Withdraw(context.WithoutCancel(ctx), a, approval, Withdrawn(why))
	}
	return errors.Join(err, a.Store.Tidy(ctx, a.saved))
}

// waitsAfter returns the approval that a turn waits for after an event, which before it waited for another one or, if
// that is empty, for none.
func waitsAfter(e *wasmagentv1.Event, before string) string {
	switch e.GetKind() { //nolint:exhaustive // the others begin and end no wait
	case wasmagentv1.EventKind_EVENT_KIND_PARKED:
		return e.GetApprovalId()
	case wasmagentv1.EventKind_EVENT_KIND_RESULT:
		return ""
	}
	return before
}

// flush keeps the events that wait, while a turn goes on.
func (a *Agent) flush(ctx context.Context, turn store.Turn) error {
	return a.commit(ctx, store.Change{Turn: turn})
}

// save keeps a state, with the events that wait and the one that says what is stored.
func (a *Agent) save(ctx context.Context, next *state, turn store.Turn) error {
	basis := inventory.Before
	if a.journal.list == nil {
		basis = inventory.Found
	}
	c, list, err := a.stored(next, basis)
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.lost = true // events of the turn wait that nothing stores: the agent is read again
		return err
	}
	c.Turn = turn
	if err := a.commit(ctx, c); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.journal.list, a.listed = list, list.Size()
	return nil
}

// stored is the change that stores a state, whose event is noted.
func (a *Agent) stored(next *state, basis inventory.Basis) (c store.Change, list *inventory.Inventory, err error) {
	c = store.Change{Record: a.record(next), State: next.stored()}
	digest, err := c.Pack()
	if err != nil {
		return c, nil, err
	}
	if list, err = inventory.Of(c.Record, c.State); err != nil {
		return c, nil, err
	}
	text, err := list.Change(basis, a.journal.list, digest)
	if err != nil {
		return c, nil, err
	}
	a.journal.note(&wasmagentv1.Event{Epoch: int32(next.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_STORED}, text)
	c.Record.Head = a.journal.head
	return c, list, nil
}

// commit keeps a change. Whoever gives up does not end that. Where it fails the agent is to be
// read again, for it may have been kept.
func (a *Agent) commit(ctx context.Context, c store.Change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTime)
	defer cancel()
	c.ID, c.Version, c.Events, c.First = a.ID, a.journal.version, a.journal.waiting, a.journal.kept+1
	version, err := a.Store.Commit(ctx, c)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.lost = true
		return keepError(err)
	}
	a.journal.version, a.journal.kept, a.journal.waiting = version, a.journal.head.GetPlace(), nil
	if a.moved != nil {
		close(a.moved)
		a.moved = nil
	}
	if c.Record != nil {
		a.saved = c.Record
	}
	return nil
}
