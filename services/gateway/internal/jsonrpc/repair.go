package jsonrpc

import (
	"bytes"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

type repairState struct {
	// text is true while the parser reads a value in which it may replace lone surrogates.
	text bool
	// last is the position of the last replaced surrogate, and replaced is the number of replaced surrogates.
	last, replaced int
	// null is the member `"error": null`. It is absent if the message has no such member.
	null item
}

// Repair repairs the response to a request if the response violates the rules of JSON or JSON-RPC in one of two ways
// that are known from some servers. Repair modifies raw:
//   - `"error": null` next to a result is overwritten with spaces.
//   - A lone surrogate, such as the escape \ud83d, is replaced with \ufffd in string values of content or
//     structuredContent in the result of tools/call. Surrogates in keys and in all other members are not replaced.
//
// methodOf must return the method of the request with this raw id, or "" if there is none. Repair reports whether it
// has repaired raw. If Repair returns false, raw must no longer be used. A message with any other fault is not
// repaired. A repaired message must still be read with [ReadAnswer].
func Repair(raw []byte, limits Limits, methodOf func(id []byte) string) bool {
	repair := &repairState{last: -1}
	r := reader{scanner: scanner{raw: raw, limits: limits, repair: repair}}
	r.a = &Answer{Raw: raw}
	if r.message() != nil || !r.a.Result.Present() || repair.replaced == 0 && !repair.null.Present() {
		return false
	}
	method := methodOf(r.a.ID.Of(raw))
	if method == "" || repair.replaced > 0 && method != mcp.MethodToolsCall {
		return false
	}
	repair.removeNull(raw)
	return true
}

// replace replaces the lone surrogate at offset i with U+FFFD. It returns false if this surrogate must not be replaced.
func (m *repairState) replace(raw []byte, i int) bool {
	if m == nil || !m.text {
		return false
	}
	copy(raw[i:], `\ufffd`)
	m.last = i
	m.replaced++
	return true
}

// isNull reports whether the value at the current position is a null that may be removed.
func (m *repairState) isNull(rest []byte) bool {
	return m != nil && bytes.HasPrefix(rest, []byte("null"))
}

// removeNull overwrites the member `"error": null` and the adjacent comma with spaces.
func (m *repairState) removeNull(raw []byte) {
	if !m.null.Present() {
		return
	}
	from, to := m.null.Start, m.null.End
	if m.null.prev > 0 {
		from = m.null.prev
	} else {
		to += bytes.IndexByte(raw[to:], ',') + 1 // only spaces precede the comma, and a result follows it
	}
	for i := from; i < to; i++ {
		raw[i] = ' '
	}
}

// repairable reads a member of a result that the parser does not interpret. If lone surrogates may be replaced in this
// member, repairable replaces them.
func (r *reader) repairable(f *frame) error {
	if key := string(f.key); r.repair != nil && (key == "content" || key == "structuredContent") {
		r.repair.text = true
		defer func() { r.repair.text = false }()
	}
	return r.memberValue(f)
}
