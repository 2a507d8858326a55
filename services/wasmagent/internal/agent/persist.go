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
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/store"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/wasmmeter"
)

const (
	storeTimeout = 10 * time.Second
	// maxEventsRead limits how many events are read at a time, and maxEventBytesRead limits their total size, in bytes.
	maxEventsRead     = 1000
	maxEventBytesRead = 4 << 20
)

// Caller describes the principal that changes an agent.
type Caller struct {
	Context context.Context //nolint:containedctx // it is the context of one call
	// Subject is the principal's subject. IsOperator is true if the principal is an operator.
	Subject    string
	IsOperator bool
}

// journal describes the end of an agent's journal, including the events that are not stored yet.
type journal struct {
	version int64
	// head is the position after the newest event. storedPosition is the position of the newest stored event. waiting
	// contains the events after storedPosition, which are not stored yet.
	head           *wasmstorev1.Head
	storedPosition int64
	waiting        []*wasmstorev1.StoredEvent
	// inventory lists the stored parts of the agent according to the journal. It is nil if the journal has no STORED
	// event. isChecked is true if this process has checked the whole journal.
	inventory *inventory.Inventory
	isChecked bool
}

// add appends an event and its envelope, which may be nil, to the journal. The event is stored together with the next
// change.
func (j *journal) add(e *wasmagentv1.Event, envelope []byte) *wasmagentv1.Event {
	stored, head := events.Append(j.head, e, envelope)
	j.head, j.waiting = head, append(j.waiting, stored)
	return stored.GetEvent()
}

// lifecycleEvent returns an event that records a change of the agent's state.
func lifecycleEvent(next *state, caller Caller, message string) *wasmagentv1.Event {
	return &wasmagentv1.Event{Epoch: int32(next.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_LIFECYCLE, State: next.status, Message: message, Actor: caller.Subject}
}

// beginsEpoch marks an event as the first event of a new epoch. start is the earlier journal position from which the
// epoch continues, or nil if there is none.
func beginsEpoch(e *wasmagentv1.Event, next *state, start *wasmstorev1.Head) *wasmagentv1.Event {
	e.ModuleDigest, e.MeterVersion, e.FromEpoch, e.FromSequence = next.module, wasmmeter.MeterVersion, start.GetEpoch(), start.GetSequence()
	return e
}

// New creates and stores an agent. limits limits how many agents may exist. New returns the store's errors.
func New(caller Caller, s Spec, deps Deps, limits store.AgentLimits) (*Agent, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	if s.Creator == nil || s.Config == nil || s.ID == "" {
		return nil, errors.New("agent: an id, a creator and a configuration are required")
	}
	s.JournalID, s.JournalCreatedAt = s.ID, s.CreatedAt
	a := &Agent{Spec: s, Deps: deps, state: newState(&s)}
	a.journal.head = events.EmptyHead(a.JournalID)
	return a, a.create(caller.Context, beginsEpoch(lifecycleEvent(&a.state, caller, "created"), &a.state, nil), "", limits)
}

// create stores a new agent. If the journal must begin with a copy of another agent's events, the caller passes the id
// of that agent. first is the event that follows the copied events.
func (a *Agent) create(ctx context.Context, first *wasmagentv1.Event, from string, limits store.AgentLimits) error {
	a.journal.add(first, nil)
	basis := inventory.BasisFound
	switch {
	case a.journal.head.GetPlace() == 1:
		basis = inventory.BasisCreated
	case a.journal.inventory != nil:
		basis = inventory.BasisPrevious
	}
	c, list, err := a.storedChange(&a.state, basis)
	if err != nil {
		return err
	}
	c.ID, c.Events, c.FirstPosition = a.ID, a.journal.waiting, a.journal.storedPosition+1
	made, err := a.Store.Create(ctx, c, from, limits)
	if err != nil {
		return storeError(err)
	}
	a.position, a.savedRecord, a.inventoryBytes = made, c.Record, list.Size()
	a.journal.inventory, a.journal.isChecked = list, true
	a.journal.version, a.journal.storedPosition, a.journal.waiting = 1, a.journal.head.GetPlace(), nil
	return nil
}

// storeError adds [ErrNotStored] to an error from the store that means that a change could not be stored.
func storeError(err error) error {
	if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrStale) {
		return fmt.Errorf("%w: %w", ErrNotStored, err)
	}
	return err
}

// Open returns a stored agent. If the process that ran the agent's turn has exited, Open either continues or undoes the
// turn. It continues the turn only if the turn has no caller and this process can run the agent's module, so that
// mayRun is true. Open returns the store's errors.
func Open(ctx context.Context, row *store.Row, deps Deps, mayRun bool) (*Agent, error) {
	if err := deps.validate(); err != nil {
		return nil, err
	}
	spec, current := specAndState(row.Record)
	spec.Files = BoundsOf(spec.Manifest)
	storedState, err := deps.Store.State(ctx, row.GetId(), row.GetStateKey(), row.GetStateDigest())
	if err != nil {
		return nil, fmt.Errorf("read the agent %s: %w", row.GetId(), err)
	}
	current.restore(storedState, spec.Files)
	a := &Agent{
		Spec: spec, Deps: deps, state: current, position: row.Position, savedRecord: row.Record, runsElsewhere: row.HeldElsewhere,
		journal: journal{version: row.Version, head: row.GetHead(), storedPosition: row.GetHead().GetPlace()},
	}
	if err := a.checkStored(ctx, storedState, row.Turn != store.NoTurn); err != nil {
		if !isDamage(err) {
			return nil, fmt.Errorf("read the journal of the agent %s: %w", row.GetId(), err)
		}
		a.markDamaged(err)
		return a, nil
	}
	switch {
	case row.HeldElsewhere:
		if row.Turn == store.DetachedTurn {
			a.elsewhereWaiting, err = a.approvalElsewhere(ctx)
		}
		return a, err
	case row.Turn == store.NoTurn:
		return a, nil
	case row.Turn == store.DetachedTurn && mayRun:
		a.continueDetached()
		return a, nil
	}
	err = a.undoAbandoned(ctx, "the process that ran the turn has ended, and the turn can't be continued")
	if isDamage(err) {
		a.markDamaged(err)
		err = nil
	}
	return a, err
}

// approvalElsewhere returns the approval for which a turn in another process waits, according to the journal. It
// returns nil if the turn does not wait for an approval.
func (a *Agent) approvalElsewhere(ctx context.Context) (*wasmagentv1.Waiting, error) {
	last, err := a.Store.Last(ctx, a.ID)
	e := last.GetEvent()
	if err != nil || e.GetKind() != wasmagentv1.EventKind_EVENT_KIND_PARKED {
		return nil, storeError(err)
	}
	return &wasmagentv1.Waiting{
		WaitingFor: wasmagentv1.WaitingFor_WAITING_FOR_APPROVAL, ApprovalId: e.GetApprovalId(), DecisionId: e.GetDecisionId(), Since: e.GetTime(),
	}, nil
}

// damageAdvice is appended to the error of an agent whose journal is damaged.
const damageAdvice = "It takes no more prompts: export it with depth state as evidence, " +
	"then fork it from a snapshot that is before the damage, or create a new agent, and terminate it"

// isDamage reports whether an error means that another program has changed the journal or the stored agent.
func isDamage(err error) bool {
	return errors.Is(err, events.ErrChain) || errors.Is(err, ErrStateDiffers)
}

// markDamaged prevents further changes to the agent in memory after an error. If isDamage(err) is true, the agent can
// still be read, verified and terminated. After all other errors, the agent must be loaded again.
func (a *Agent) markDamaged(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !isDamage(err) {
		a.stale = true
		return
	}
	a.damage = fmt.Errorf("%w. %s", err, damageAdvice)
	a.failure = &wasmagentv1.Failure{Cause: wasmagentv1.FailureCause_FAILURE_CAUSE_JOURNAL, Message: a.damage.Error()}
	if a.turn == nil && a.status != wasmagentv1.AgentState_AGENT_STATE_TERMINATED {
		a.status = wasmagentv1.AgentState_AGENT_STATE_FAILED
	}
}

// defaultFiles contains the limits on the files of each agent. A manifest can only lower them.
var defaultFiles = files.Bounds{Bytes: 8 << 20, Count: 1000}

// BoundsOf returns the limits on files in a manifest. Limits in the manifest that are above the defaults of the
// installation are lowered to the defaults.
func BoundsOf(m *wasmagentv1.Manifest) files.Bounds {
	return files.Bounds{Bytes: min(defaultFiles.Bytes, int(m.GetFiles().GetBytes())), Count: min(defaultFiles.Count, int(m.GetFiles().GetCount()))}
}

// readTail calls do for each stored event after head. These events belong to an unfinished turn. readTail returns the
// position after the last event.
func (a *Agent) readTail(ctx context.Context, head *wasmstorev1.Head, do func(e *wasmstorev1.StoredEvent)) (*wasmstorev1.Head, error) {
	for {
		page, _, err := a.Store.Events(ctx, a.ID, head.GetPlace(), maxEventsRead, maxEventBytesRead)
		if err != nil || len(page) == 0 {
			return head, storeError(err)
		}
		for _, e := range page {
			if head, err = events.Check(head, e); err != nil {
				return head, err
			}
			do(e)
		}
	}
}

// undoAbandoned undoes a turn whose process has exited. The events of the turn stay in the journal. The caller must
// prevent other changes to the agent.
func (a *Agent) undoAbandoned(ctx context.Context, reason string) error {
	before := a.journal.head
	var more usage
	approval := "" // the id of the approval for which the turn waited
	head, err := a.readTail(ctx, before, func(e *wasmstorev1.StoredEvent) {
		approval = approvalAfter(e.GetEvent(), approval)
		more.fuel += e.GetEvent().GetFuel()
		if e.GetEvent().GetKind() == wasmagentv1.EventKind_EVENT_KIND_RESULT {
			more.effects++
		}
	})
	if err != nil {
		return err
	}
	a.journal.head, a.journal.storedPosition = head, head.GetPlace()
	if head.GetPlace() > before.GetPlace() {
		a.journal.add(&wasmagentv1.Event{Epoch: int32(a.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_UNDONE, Message: reason}, nil)
	}
	a.mu.Lock()
	a.runsElsewhere, a.elsewhereWaiting = false, nil
	a.usage.fuel += more.fuel
	a.usage.effects += more.effects
	next := a.state
	a.mu.Unlock()
	err = a.saveState(ctx, &next, store.NoTurn)
	if err == nil && approval != "" {
		a.Host.WithdrawApproval(context.WithoutCancel(ctx), a, approval, WithdrawalReason(reason))
	}
	return errors.Join(err, a.Store.RemoveUnusedStates(ctx, a.savedRecord))
}

// approvalAfter returns the id of the approval for which a turn waits after an event. before is the id of the approval
// for which the turn waited before that event. An empty id means that the turn does not wait.
func approvalAfter(e *wasmagentv1.Event, before string) string {
	switch e.GetKind() { //nolint:exhaustive // the others neither begin nor end a wait
	case wasmagentv1.EventKind_EVENT_KIND_PARKED:
		return e.GetApprovalId()
	case wasmagentv1.EventKind_EVENT_KIND_RESULT:
		return ""
	}
	return before
}

func (a *Agent) flushEvents(ctx context.Context, turn store.Turn) error {
	return a.commit(ctx, store.Change{Turn: turn})
}

// saveState stores a state, together with the events that are not stored yet. It adds a STORED event, which records the
// content of the state.
func (a *Agent) saveState(ctx context.Context, next *state, turn store.Turn) error {
	basis := inventory.BasisPrevious
	if a.journal.inventory == nil {
		basis = inventory.BasisFound
	}
	c, list, err := a.storedChange(next, basis)
	if err != nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.stale = true // some events were not stored, so the agent must be loaded again
		return err
	}
	c.Turn = turn
	if err := a.commit(ctx, c); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.journal.inventory, a.inventoryBytes = list, list.Size()
	return nil
}

// storedChange returns the change that stores a state, and appends a STORED event to the journal.
func (a *Agent) storedChange(next *state, basis inventory.Basis) (c store.Change, list *inventory.Inventory, err error) {
	c = store.Change{Record: a.record(next), State: next.stateProto()}
	digest, err := c.Pack()
	if err != nil {
		return c, nil, err
	}
	if list, err = inventory.New(c.Record, c.State); err != nil {
		return c, nil, err
	}
	text, err := list.Change(basis, a.journal.inventory, digest)
	if err != nil {
		return c, nil, err
	}
	a.journal.add(&wasmagentv1.Event{Epoch: int32(next.epoch), Kind: wasmagentv1.EventKind_EVENT_KIND_STORED}, text)
	c.Record.Head = a.journal.head
	return c, list, nil
}

// commit stores a change, even if the caller's context is cancelled. If it returns an error, the change may or may not
// have been stored, so the agent must be loaded again.
func (a *Agent) commit(ctx context.Context, c store.Change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	c.ID, c.Version, c.Events, c.FirstPosition = a.ID, a.journal.version, a.journal.waiting, a.journal.storedPosition+1
	version, err := a.Store.Commit(ctx, c)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.stale = true
		return storeError(err)
	}
	a.journal.version, a.journal.storedPosition, a.journal.waiting = version, a.journal.head.GetPlace(), nil
	if a.eventsStored != nil {
		close(a.eventsStored)
		a.eventsStored = nil
	}
	if c.Record != nil {
		a.savedRecord = c.Record
	}
	return nil
}
