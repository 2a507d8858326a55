package gate

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"sort"
)

// An Edit replaces the bytes of a Span. An Edit with an empty Span inserts; one without With removes.
type Edit struct {
	Span Span
	With []byte
}

// ErrSplice is returned by [Splice] and [Plan] for edits that overlap or are outside of the message.
var ErrSplice = errors.New("edits overlap or lie outside of the message")

// Splice returns raw with the edits made, in new memory; without edits it returns raw itself. The order of the edits
// does not matter, except that insertions at the same position keep theirs. All other bytes are unchanged, so the
// result passes the gate again if the edits were made by this package, or replace a value by one of the same kind, and
// if the limits allow what was added.
func Splice(raw []byte, edits ...Edit) ([]byte, error) {
	parts, err := Plan(raw, edits...)
	if err != nil {
		return nil, err
	}
	if len(edits) == 0 {
		return raw, nil
	}
	return bytes.Join(parts, nil), nil
}

// Plan returns the parts, in order, of the result of [Splice], without allocating it. None of them may be changed.
func Plan(raw []byte, edits ...Edit) ([][]byte, error) {
	if !slices.IsSortedFunc(edits, byPlace) {
		edits = slices.Clone(edits)
		slices.SortStableFunc(edits, byPlace)
	}
	parts, last := make([][]byte, 0, 2*len(edits)+1), 0
	for _, e := range edits {
		if e.Span.Start < last || e.Span.End < e.Span.Start || e.Span.End > len(raw) {
			return nil, ErrSplice
		}
		parts = append(parts, raw[last:e.Span.Start], e.With)
		last = e.Span.End
	}
	return append(parts, raw[last:]), nil
}

// shifts map positions before edits to positions after them.
type shifts []shift

// shift says that everything from the position from on moves by this many bytes.
type shift struct{ from, by int }

// shifting returns the shifts of edits, which are sorted by position.
func shifting(edits []Edit) shifts {
	out, by := make(shifts, 0, len(edits)), 0
	for _, e := range edits {
		by += len(e.With) - (e.Span.End - e.Span.Start)
		out = append(out, shift{e.Span.End, by})
	}
	return out
}

// place returns the new position for an old one, which no edit may have removed.
func (s shifts) place(old int) int {
	i := sort.Search(len(s), func(i int) bool { return s[i].from > old })
	if i == 0 {
		return old
	}
	return old + s[i-1].by
}

// span returns the new span for an old one, whose borders no edit may have crossed.
func (s shifts) span(old Span) Span {
	if !old.Present() {
		return old
	}
	return Span{s.place(old.Start), s.place(old.End)}
}

func byPlace(a, b Edit) int {
	return cmp.Or(cmp.Compare(a.Span.Start, b.Span.Start), cmp.Compare(a.Span.End, b.Span.End))
}

// An item is a member of an object or an element of an array that may have to be removed.
type item struct {
	Span
	prev int // the end of the item before it; zero for the first
}

// cut appends the edits that remove items from their objects and arrays, each with the comma that is then superfluous.
// The items are sorted by position, and none is inside another.
func cut(edits []Edit, raw []byte, items []item) []Edit {
	for len(items) > 0 {
		// Neighbors are removed together, so that each comma is counted once.
		run := 1
		for run < len(items) && items[run].prev == items[run-1].End {
			run++
		}
		hole := Span{items[0].Start, items[run-1].End}
		if next, ok := nextItem(raw, hole.End); ok {
			hole.End = next
		} else if items[0].prev > 0 {
			hole.Start = items[0].prev
		}
		edits = append(edits, Edit{Span: hole})
		items = items[run:]
	}
	return edits
}

// nextItem returns the position of the item after the one that ends at end, if there is one.
func nextItem(raw []byte, end int) (int, bool) {
	s := scanner{raw: raw, pos: end}
	s.space()
	if s.peek() != ',' {
		return 0, false
	}
	s.pos++
	s.space()
	return s.pos, true
}
