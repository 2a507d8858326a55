package jsonrpc

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"sort"
)

// An Edit replaces the bytes in Span with the bytes in With. If Span is empty, the Edit inserts bytes. If With is
// empty, the Edit removes bytes.
type Edit struct {
	Span Span
	With []byte
}

// ErrSplice means that edits for [ApplyEdits] or [PlanEdits] overlap, or that an edit is outside the message.
var ErrSplice = errors.New("edits overlap or lie outside of the message")

// ApplyEdits returns a copy of raw with the edits applied, or raw itself if there are no edits. The order of the edits
// does not matter, except that insertions at the same position keep their order. All other bytes are unchanged.
//
// If raw is valid, the result is valid under two conditions: each edit was returned by this package or replaces a value
// with a value of the same kind, and the limits allow the added bytes.
func ApplyEdits(raw []byte, edits ...Edit) ([]byte, error) {
	parts, err := PlanEdits(raw, edits...)
	if err != nil {
		return nil, err
	}
	if len(edits) == 0 {
		return raw, nil
	}
	return bytes.Join(parts, nil), nil
}

// PlanEdits returns the result of [ApplyEdits] as a list of parts, without copying them. The caller must not modify the
// parts.
func PlanEdits(raw []byte, edits ...Edit) ([][]byte, error) {
	if !slices.IsSortedFunc(edits, byPosition) {
		edits = slices.Clone(edits)
		slices.SortStableFunc(edits, byPosition)
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

// shifts maps positions before the edits to positions after the edits.
type shifts []shift

// A shift says by how many bytes all bytes at or after a position are moved.
type shift struct{ from, by int }

func shifting(edits []Edit) shifts {
	out, by := make(shifts, 0, len(edits)), 0
	for _, e := range edits {
		by += len(e.With) - (e.Span.End - e.Span.Start)
		out = append(out, shift{e.Span.End, by})
	}
	return out
}

// position returns the position of a byte after the edits, given its position before the edits. The edits must not have
// removed that byte.
func (s shifts) position(old int) int {
	i := sort.Search(len(s), func(i int) bool { return s[i].from > old })
	if i == 0 {
		return old
	}
	return old + s[i-1].by
}

// span converts a span before the edits to the corresponding span after the edits. No edit may overlap either end of
// the span.
func (s shifts) span(old Span) Span {
	if !old.Present() {
		return old
	}
	return Span{s.position(old.Start), s.position(old.End)}
}

func byPosition(a, b Edit) int {
	return cmp.Or(cmp.Compare(a.Span.Start, b.Span.Start), cmp.Compare(a.Span.End, b.Span.End))
}

// An item is a member of an object, or an element of an array, that may have to be removed.
type item struct {
	Span
	prev int // the offset of the end of the previous member or element, or zero for the first one
}

// removeItems appends the edits that remove items from their objects and arrays, together with the commas that are no
// longer needed. The items must be sorted by position, and no item may contain another one.
func removeItems(edits []Edit, raw []byte, items []item) []Edit {
	for len(items) > 0 {
		// Adjacent items are removed by one edit, so that each comma is removed only once.
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

// nextItem returns the position of the item that follows an item with the given end, and reports whether there is such
// an item.
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
