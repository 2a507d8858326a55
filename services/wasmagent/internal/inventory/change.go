package inventory

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
)

const changeFormat = "sluice-agent-stored-1"

// ErrChange means that a change is invalid, or that it does not fit the previous list. Compare it with errors.Is.
var ErrChange = errors.New("the change can't be applied to the previous list")

// Basis states to which list a change is applied.
type Basis string

const (
	// BasisPrevious stands for the list that results from all previous changes in the journal.
	BasisPrevious Basis = ""
	// BasisCreated stands for the empty list of an agent that was just created. A change with this basis lists all
	// parts of the agent.
	BasisCreated Basis = "made"
	// BasisFound stands for the empty list of an agent whose journal was begun by a release that did not record lists.
	// A change with this basis lists all parts of the agent. The journal does not record how these parts were created.
	BasisFound Basis = "found"
)

// change is the content of a STORED event's envelope. It is encoded as JSON.
type change struct {
	Form  string `json:"form"`
	Basis Basis  `json:"basis,omitzero"`
	// State is the SHA-256 of the stored state, and Record is the SHA-256 of the record's JSON, both in hexadecimal
	// digits.
	State  string `json:"state"`
	Record string `json:"record"`
	// The fields below are the differences from the previous list. A nil value in a map means that the part was
	// removed.
	Files    map[string]*string `json:"files,omitempty"`
	Todos    []splice           `json:"todos,omitempty"`
	Messages []splice           `json:"messages,omitempty"`
	Fields   map[string]*string `json:"fields,omitempty"`
	Guest    map[string]*string `json:"guest,omitempty"`
}

// A splice replaces Drop entries of a list, beginning at the index At, with the entries in Add. The splices of a change
// are applied in order.
type splice struct {
	At   int      `json:"at"`
	Drop int      `json:"drop,omitzero"`
	Add  []string `json:"add,omitempty"`
}

// Change encodes the difference between a previous list and this list as JSON. If basis is not [BasisPrevious] or the
// previous list is nil, the previous list counts as empty. state is the SHA-256 of the stored state, in hexadecimal
// digits. Change returns [ErrRecord] if the difference can't be encoded.
func (i *Inventory) Change(basis Basis, before *Inventory, state string) ([]byte, error) {
	if basis != BasisPrevious || before == nil {
		before = new(Inventory)
	}
	text, err := json.Marshal(change{
		changeFormat, basis, state, i.digest, mapChange(before.files, i.files), listChange(before.todos, i.todos), listChange(before.messages, i.messages),
		mapChange(before.record, i.record), mapChange(before.guest, i.guest),
	}, json.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return text, nil
}

func mapChange(before, now map[string]entry) map[string]*string {
	out := make(map[string]*string)
	for name, e := range now {
		if old, exists := before[name]; !exists || old.value != e.value {
			out[name] = &e.value
		}
	}
	for name := range before {
		if _, exists := now[name]; !exists {
			out[name] = nil
		}
	}
	return out
}

// listChange returns the splices that change an old list into a new list. The splices leave the common beginning of
// both lists unchanged, remove the entries directly after it, and add the new entries at the end. They are short if a
// conversation still has its instructions but has lost its oldest messages.
func listChange(oldList, newList []entry) (out []splice) {
	same := func(a, b entry) bool { return a.value == b.value }
	at := 0
	for at < len(oldList) && at < len(newList) && same(oldList[at], newList[at]) {
		at++
	}
	oldList, newList = oldList[at:], newList[at:]
	drop := 0
	for drop < len(oldList) && (len(oldList)-drop > len(newList) || !slices.EqualFunc(oldList[drop:], newList[:len(oldList)-drop], same)) {
		drop++
	}
	if drop > 0 {
		out = append(out, splice{At: at, Drop: drop})
	}
	stays := len(oldList) - drop
	if stays == len(newList) {
		return out
	}
	last := splice{At: at + stays}
	for _, e := range newList[stays:] {
		last.Add = append(last.Add, e.value)
	}
	return append(out, last)
}

// Covered is the result of applying all changes in a journal. The zero value is the result for a journal without
// changes.
type Covered struct {
	// List is the list that results from the changes, or nil if the journal contains no change. [Covered.Apply]
	// modifies this list.
	List *Inventory
	// State and Record are the digests in the newest change.
	State, Record string
}

// ReadDigests returns the digests in a change. envelope is the envelope of a STORED event. ReadDigests returns
// [ErrChange] if the change is invalid.
func ReadDigests(envelope []byte) (state, record string, err error) {
	c, err := parseChange(envelope)
	return c.State, c.Record, err
}

func parseChange(envelope []byte) (c change, err error) {
	if err := json.Unmarshal(envelope, &c); err != nil {
		return c, fmt.Errorf("%w: %w", ErrChange, err)
	}
	if c.Form != changeFormat {
		return c, fmt.Errorf("%w: its format is %.64q", ErrChange, c.Form)
	}
	return c, nil
}

// Apply applies a change. envelope is the envelope of a STORED event, and place is the position of the event in the
// journal, counted from 1. Apply returns [ErrChange] if the change can't be applied.
func (c *Covered) Apply(envelope []byte, place int64) error {
	next, err := parseChange(envelope)
	if err != nil {
		return err
	}
	switch {
	case next.Basis == BasisPrevious && c.List != nil:
	case next.Basis == BasisFound && c.List == nil, next.Basis == BasisCreated && place == 2:
		// A change with this basis must be event 2, directly after the event that records the agent's creation.
		c.List = new(Inventory)
	default:
		return fmt.Errorf("%w: its basis is %.64q", ErrChange, string(next.Basis))
	}
	found := next.Basis == BasisFound
	applyFields(&c.List.files, next.Files, found)
	applyFields(&c.List.record, next.Fields, found)
	applyFields(&c.List.guest, next.Guest, found)
	if c.List.todos, err = applySplices(c.List.todos, next.Todos, found); err != nil {
		return err
	}
	if c.List.messages, err = applySplices(c.List.messages, next.Messages, found); err != nil {
		return err
	}
	c.State, c.Record = next.State, next.Record
	return nil
}

func applyFields(all *map[string]entry, changed map[string]*string, found bool) {
	if *all == nil {
		*all = make(map[string]entry)
	}
	for name, value := range changed {
		if value == nil {
			delete(*all, name)
			continue
		}
		(*all)[name] = entry{*value, found}
	}
}

func applySplices(all []entry, by []splice, found bool) ([]entry, error) {
	for _, s := range by {
		if s.At < 0 || s.Drop < 0 || s.At > len(all) || s.Drop > len(all)-s.At {
			return nil, fmt.Errorf("%w: it drops %d of %d entries from %d", ErrChange, s.Drop, len(all), s.At)
		}
		added := make([]entry, 0, len(s.Add))
		for _, value := range s.Add {
			added = append(added, entry{value, found})
		}
		all = slices.Replace(all, s.At, s.At+s.Drop, added...)
	}
	return all, nil
}
