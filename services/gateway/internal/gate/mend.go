package gate

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// mending collects what [Mend] repairs while a reader reads.
type mending struct {
	// text says that the scanner is in a value in which a lone surrogate is replaced.
	text bool
	// last is where the last of them stands, and replaced how many there are.
	last, replaced int
	// null is the member `"error": null`; absent if there is none.
	null item
}

// Mend repairs the answer to a request, in raw itself, if it breaks the rules of JSON or JSON-RPC in one of these two
// ways, which servers in use have:
//   - `"error": null` stands beside a result: spaces take its place;
//   - a lone surrogate, such as the escape \ud83d, stands in a string value of content or structuredContent of the
//     result of tools/call: it becomes \ufffd. In keys, and in all other members, nothing is replaced.
//
// methodOf returns the method of the request that an id, as raw JSON, belongs to; empty if there is none. Mend reports
// whether raw was repaired. Otherwise raw must not be used any more. A message that has other faults is not repaired,
// and what was repaired has not passed [ReadAnswer] yet.
func Mend(raw []byte, limits Limits, methodOf func(id []byte) string) bool {
	mend := &mending{last: -1}
	r := reader{scanner: scanner{raw: raw, limits: limits, mend: mend}}
	r.a = &Answer{Raw: raw}
	if r.message() != nil || !r.a.Result.Present() || mend.replaced == 0 && !mend.null.Present() {
		return false
	}
	method := methodOf(r.a.ID.Of(raw))
	if method == "" || mend.replaced > 0 && method != mcp.MethodToolsCall {
		return false
	}
	mend.blank(raw)
	return true
}

// replace puts U+FFFD in place of the lone surrogate at offset i, and reports whether it may.
func (m *mending) replace(raw []byte, i int) bool {
	if m == nil || !m.text {
		return false
	}
	copy(raw[i:], `\ufffd`)
	m.last = i
	m.replaced++
	return true
}

// isNull reports whether the value at the current position is a null to be repaired.
func (m *mending) isNull(rest []byte) bool { return m != nil && bytes.HasPrefix(rest, []byte("null")) }

// blank overwrites the member `"error": null`, and the comma that parts it from its neighbour.
func (m *mending) blank(raw []byte) {
	if !m.null.Present() {
		return
	}
	from, to := m.null.Start, m.null.End
	if m.null.prev > 0 {
		from = m.null.prev
	} else {
		to += bytes.IndexByte(raw[to:], ',') + 1 // only spaces stand before it, and a result behind it
	}
	for i := from; i < to; i++ {
		raw[i] = ' '
	}
}

// mendable reads a member of a result of which nothing else is known.
func (r *reader) mendable(f *frame) error {
	if key := string(f.key); r.mend != nil && (key == "content" || key == "structuredContent") {
		r.mend.text = true
		defer func() { r.mend.text = false }()
	}
	return r.memberValue(f)
}
