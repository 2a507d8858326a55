package agent

import (
	"context"
	"fmt"

	wasmagentv1 "github.com/sluice-mesh/sluice/gen/sluice/wasmagent/v1"
	wasmstorev1 "github.com/sluice-mesh/sluice/gen/sluice/wasmstore/v1"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/events"
	"github.com/sluice-mesh/sluice/services/wasmagent/internal/inventory"
)

// maxFullCheckBytes limits the size, in bytes, of a journal that is checked completely when its agent is loaded. Of a
// larger journal, only the last event is checked at that time. The whole journal is then checked before the first
// change to the agent.
const maxFullCheckBytes = 8 << 20

// A coverage contains the digests of an agent's stored parts that the agent's journal records.
type coverage struct {
	inventory.Covered

	// head is the position after the last event that was read. stored is the position after the last STORED event that
	// was read.
	head, stored *wasmstorev1.Head
}

// add processes the next event. It returns [events.ErrChain] if the event does not continue the journal.
func (c *coverage) add(e *wasmstorev1.StoredEvent) error {
	head, err := events.Check(c.head, e)
	if err != nil {
		return fmt.Errorf("event %d: %w", c.head.GetPlace()+1, err)
	}
	c.head = head
	if e.GetEvent().GetKind() != wasmagentv1.EventKind_EVENT_KIND_STORED {
		return nil
	}
	if err := c.Apply(e.GetEnvelope(), head.GetPlace()); err != nil {
		return fmt.Errorf("event %d: %w: %w", head.GetPlace(), events.ErrChain, err)
	}
	c.stored = head
	return nil
}

// checkEnd checks that the journal ends at the given head. It returns [events.ErrChain] if it does not.
func (c *coverage) checkEnd(head *wasmstorev1.Head) error {
	if c.head.GetHash() != head.GetHash() || c.head.GetPlace() != head.GetPlace() || c.head.GetEpoch() != head.GetEpoch() || c.head.GetSequence() != head.GetSequence() {
		return fmt.Errorf("%w: its last events are missing", events.ErrChain)
	}
	if c.List != nil && c.stored.GetPlace() != head.GetPlace() {
		return fmt.Errorf("%w: the last event of the kind STORED is missing", events.ErrChain)
	}
	return nil
}

// compare returns the first difference between the stored record and state and the journal. It returns nil if there is
// none, or if the journal does not record the stored content.
func (c *coverage) compare(r *wasmstorev1.Record, s *wasmstorev1.State) *wasmagentv1.StoredDifference {
	if c.List == nil {
		return nil
	}
	list, err := inventory.New(r, s)
	if err != nil {
		return &wasmagentv1.StoredDifference{Part: "record", Message: err.Error()}
	}
	if d := c.List.Compare(list); d != nil {
		return d
	}
	if c.State != r.GetStateDigest() || !list.MatchesRecord(c.Record) {
		return &wasmagentv1.StoredDifference{Part: "record", Message: "the stored form differs from the one in the journal"}
	}
	return nil
}

// differenceError converts a difference to an error. It returns nil if there is no difference.
func differenceError(d *wasmagentv1.StoredDifference) error {
	if d == nil {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrStateDiffers, d.GetMessage())
}

// notCovered returns the names of the agent's parts whose content the journal does not record completely.
func (c *coverage) notCovered() []string {
	if c.List == nil {
		return inventory.Parts()
	}
	return c.List.NotCovered()
}

// readChain reads and checks a journal from its beginning to the position end. It calls do for each event, unless do is
// nil. It returns [events.ErrChain], an error from the store, or the error that do returned.
func (a *Agent) readChain(ctx context.Context, id string, end *wasmstorev1.Head, do func(e *wasmstorev1.StoredEvent) error) (*coverage, error) {
	c := &coverage{head: events.EmptyHead(a.JournalID)}
	err := a.eachEvent(ctx, id, end.GetPlace(), func(e *wasmstorev1.StoredEvent) error {
		if err := c.add(e); err != nil || do == nil {
			return err
		}
		return do(e)
	})
	if err != nil {
		return c, err
	}
	return c, c.checkEnd(end)
}

// checkStored checks that a loaded record and state match the journal. It checks the whole journal if whole is true or
// if the journal has at most maxFullCheckBytes. Otherwise, it checks only the last event. It returns [events.ErrChain],
// [ErrStateDiffers], or an error from the store.
func (a *Agent) checkStored(ctx context.Context, s *wasmstorev1.State, whole bool) error {
	r := a.savedRecord
	if whole || r.GetHead().GetBytes() <= maxFullCheckBytes {
		c, err := a.readChain(ctx, a.ID, r.GetHead(), nil)
		if err == nil {
			err = differenceError(c.compare(r, s))
		}
		if err != nil {
			return err
		}
		a.journal.isChecked = true
		if c.List == nil {
			return nil
		}
	} else if isStored, err := a.checkLastEvent(ctx); err != nil || !isStored {
		return err
	}
	list, err := inventory.New(r, s)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStateDiffers, err)
	}
	a.journal.inventory, a.inventoryBytes = list, list.Size()
	return nil
}

// checkLastEvent checks that the record matches the last event of the journal. isStored is true if that is a STORED
// event, which contains digests of the record and the state.
func (a *Agent) checkLastEvent(ctx context.Context) (isStored bool, err error) {
	head := a.savedRecord.GetHead()
	last, _, err := a.Store.Events(ctx, a.ID, head.GetPlace()-1, 1, maxEventBytesRead)
	if err != nil {
		return false, storeError(err)
	}
	if len(last) == 0 {
		return false, fmt.Errorf("%w: its last events are missing", events.ErrChain)
	}
	event := last[0].GetEvent()
	before := &wasmstorev1.Head{Place: head.GetPlace() - 1, Epoch: event.GetEpoch(), Sequence: event.GetSequence() - 1, Hash: event.GetPreviousHash()}
	if _, err := events.Check(before, last[0]); err != nil || event.GetHash() != head.GetHash() {
		return false, fmt.Errorf("event %d: %w: it was changed", head.GetPlace(), events.ErrChain)
	}
	if event.GetKind() != wasmagentv1.EventKind_EVENT_KIND_STORED {
		return false, nil
	}
	state, record, err := inventory.ReadDigests(last[0].GetEnvelope())
	if err != nil {
		return false, fmt.Errorf("event %d: %w: %w", head.GetPlace(), events.ErrChain, err)
	}
	list, err := inventory.New(a.savedRecord, nil)
	if err != nil || !list.MatchesRecord(record) || state != a.savedRecord.GetStateDigest() {
		return false, fmt.Errorf("%w: the digest of its record or state differs; verify the agent to find the part", ErrStateDiffers)
	}
	return true, nil
}

// checkJournalOnce checks the whole journal before the first change to a loaded agent. The caller must have locked the
// agent for a change.
func (a *Agent) checkJournalOnce(ctx context.Context) error {
	if a.journal.isChecked {
		return nil
	}
	c, err := a.readChain(ctx, a.ID, a.SavedRecord().GetHead(), nil)
	if err == nil && (c.List == nil) != (a.journal.inventory == nil) {
		err = fmt.Errorf("%w: the last event of the kind STORED is missing", events.ErrChain)
	}
	if err == nil && c.List != nil {
		err = differenceError(c.List.Compare(a.journal.inventory))
	}
	switch {
	case isDamage(err):
		a.markDamaged(err)
		return a.Damage()
	case err != nil:
		return err
	}
	a.journal.isChecked = true
	return nil
}
