package demo

import (
	"fmt"
	"slices"
	"strconv"
	"sync"
)

// note is one note. A note is immutable.
type note struct {
	ID    string `json:"id" jsonschema:"the note's id, never given out twice"`
	Title string `json:"title"`
	Body  string `json:"body"`
}

var startingNotes = [...]note{
	{Title: "Welcome", Body: "These notes live in memory. Each call that reads them passed a policy first."},
	{Title: "Try a refusal", Body: "Ask an agent to delete this note and see what the policy says. Is the note still here?"},
	{Title: "Try a limit", Body: "Read one note again and again: a limit says when to come back, and lets you in then."},
}

// noteBook is a bounded list of notes, in the order of their creation.
type noteBook struct {
	maxNotes int

	mu         sync.RWMutex
	lastNumber uint64 // the number of the last note that was created
	notes      []note
}

func newBook(maxNotes int) *noteBook {
	b := &noteBook{maxNotes: maxNotes}
	for _, n := range startingNotes {
		b.append(n.Title, n.Body)
	}
	return b
}

// append adds a note. The caller must hold the lock or have the only reference to b.
func (b *noteBook) append(title, body string) note {
	b.lastNumber++
	n := note{ID: "note-" + strconv.FormatUint(b.lastNumber, 10), Title: title, Body: body}
	b.notes = append(b.notes, n)
	return n
}

// create adds a note. It returns an error if the book is full.
func (b *noteBook) create(title, body string) (note, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.notes) >= b.maxNotes {
		return note{}, fmt.Errorf("the notebook is full: it has %d notes; delete one with delete_note first", b.maxNotes)
	}
	return b.append(title, body), nil
}

func (b *noteBook) get(id string) (note, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	i, err := b.find(id)
	if err != nil {
		return note{}, err
	}
	return b.notes[i], nil
}

func (b *noteBook) remove(id string) (note, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i, err := b.find(id)
	if err != nil {
		return note{}, err
	}
	n := b.notes[i]
	b.notes = slices.Delete(b.notes, i, i+1)
	return n, nil
}

// page returns at most limit notes, beginning at offset, and the total number of notes.
func (b *noteBook) page(offset, limit int) (notes []note, total int) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	total = len(b.notes)
	start := min(offset, total)
	return slices.Clone(b.notes[start:min(start+limit, total)]), total
}

func (b *noteBook) find(id string) (int, error) {
	i := slices.IndexFunc(b.notes, func(n note) bool { return n.ID == id })
	if i < 0 {
		return 0, fmt.Errorf("no note %q exists: call list_notes to see the ids", id)
	}
	return i, nil
}
