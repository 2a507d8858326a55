package gate

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"sort"
)

// An Edit replaces the bytes of a Span. An Edit whose Span has no length
// inserts, one without With removes.
type Edit struct {
	Span Span
	With []byte
}

// ErrSplice is returned by [Splice] and [Plan] for edits that overlap or lie outside.
var ErrSplice = errors.New("edits overlap or lie outside of the message")

// Splice returns raw with the edits made, in new memory; without edits it
// returns raw itself. The order of the edits doesn't matter, except that
// insertions at the same place stand in the order given. All other bytes stay
// what they are, so the result of edits made by this package, or of replacing a
// value by a value of the same kind, passes the gate again, if limits leave
// room for what was added.
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

// Plan returns the parts, in their order, of what [Splice] would return, without the
// memory for it. None is to be changed.
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

// shifts tell where what stands behind edits stands once they were made.
type shifts []shift

// shift is how far everything is moved that stands behind from.
type shift struct{ from, by int }

// shifting returns the shifts of edits in the order of their places.
func shifting(edits []Edit) shifts {
	out, by := make(shifts, 0, len(edits)), 0
	for _, e := range edits {
		by += len(e.With) - (e.Span.End - e.Span.Start)
		out = append(out, shift{e.Span.End, by})
	}
	return out
}

// place is where an old place is now, which no edit may have taken out.
func (s shifts) place(old int) int {
	i := sort.Search(len(s), func(i int) bool { return s[i].from > old })
	if i == 0 {
		return old
	}
	return old + s[i-1].by
}

// span is where an old span is now, of which no edit may have crossed a border.
func (s shifts) span(old Span) Span {
	if !old.Present() {
		return old
	}
	return Span{s.place(old.Start), s.place(old.End)}
}

func byPlace(a, b Edit) int {
	return cmp.Or(cmp.Compare(a.Span.Start, b.Span.Start), cmp.Compare(a.Span.End, b.Span.End))
}

// An item is a member of an object or an element of an array that may have to
// be cut out.
type item struct {
	Span
	prev int // where the item before it ends, zero for the first
}

// cut appends the edits that take items out of their objects and arrays, and
// with each the comma that is one too many then. The items are in the order of
// their places, and none lies inside another.
func cut(edits []Edit, raw []byte, items []item) []Edit {
	for len(items) > 0 {
		// Neighbours go together, so that each comma is counted once.
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

// nextItem returns where the item after the one that ends at end begins, if
// there is one.
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
