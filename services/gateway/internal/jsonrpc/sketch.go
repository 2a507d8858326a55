package jsonrpc

import (
	"bytes"
	"strconv"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// A Sketch describes a message that cannot be parsed. It is used only to find the request that the unusable message
// answers. Other content of the message must not be used.
type Sketch struct {
	// ID is the raw id, which is a string or a number. It is nil if the id is absent or null.
	ID []byte
	// Result is true if the message has a result that is not null. Error is true if the message has an error that is an
	// object.
	Result, Error bool
}

// SketchOf finds the id in raw, even if raw is malformed, and reports whether raw looks like a response. A response
// begins with an object or an array of objects, has no method, and has a result, an error that is an object, or
// "jsonrpc". If raw has two different ids, it does not look like a response. SketchOf reads each byte at most once, up
// to the end of the first object.
func SketchOf(raw []byte) (Sketch, bool) {
	s := sketcher{scanner: scanner{raw: raw}}
	raw = bytes.TrimPrefix(raw, []byte(ByteOrderMark))
	s.pos = len(s.raw) - len(raw)
	s.space()
	if s.peek() == '[' {
		s.pos++
		s.space()
	}
	if s.peek() != '{' {
		return Sketch{}, false
	}
	s.object()
	if s.conflict || s.method || !s.found.Result && !s.found.Error && !s.version {
		return Sketch{}, false
	}
	return s.found, true
}

// ByteOrderMark is the UTF-8 byte order mark, which is allowed once at the beginning of a stream.
const ByteOrderMark = "\ufeff"

type sketcher struct {
	scanner

	found                     Sketch
	hasID                     bool
	conflict, method, version bool
}

// object skips an object, even if it is malformed, and stores what SketchOf needs to know about its members.
func (s *sketcher) object() {
	var stint gosched.Work
	for depth := 0; s.pos < len(s.raw); stint.Step() {
		switch s.raw[s.pos] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return
			}
		case '"':
			text := s.text()
			if s.space(); depth == 1 && s.peek() == ':' {
				s.pos++
				s.space()
				s.note(text)
			}
			continue
		}
		s.pos++
	}
}

func (s *sketcher) text() []byte {
	start := s.pos
	for s.pos = s.skipPlain(start + 1); s.pos < len(s.raw) && s.raw[s.pos] != '"'; s.pos = s.skipPlain(s.pos) {
		if s.raw[s.pos] == '\\' {
			s.pos++ // skip the escaped character
		}
		s.pos++
	}
	s.pos = min(s.pos+1, len(s.raw))
	return s.raw[start:s.pos]
}

// note stores what SketchOf needs to know about a member. The member's value is at the current position.
func (s *sketcher) note(key []byte) {
	null := bytes.HasPrefix(s.raw[s.pos:], []byte("null"))
	switch string(key) {
	case `"id"`:
		id := s.id()
		if s.conflict = s.conflict || s.hasID && !bytes.Equal(id, s.found.ID); !s.conflict {
			s.hasID, s.found.ID = true, id
		}
	case `"method"`:
		s.method = true
	case `"result"`:
		s.found.Result = s.found.Result || !null
	case `"error"`:
		s.found.Error = s.found.Error || s.peek() == '{'
	case `"jsonrpc"`:
		s.version = true
	}
}

// id skips the value at the current position and returns it if it is a string or a number.
func (s *sketcher) id() []byte {
	start := s.pos
	if s.peek() == '"' {
		return s.text()
	}
	for s.pos < len(s.raw) && (isDigit(s.raw[s.pos]) || bytes.IndexByte([]byte("+-.eE"), s.raw[s.pos]) >= 0) {
		s.pos++
	}
	if start == s.pos {
		return nil
	}
	return s.raw[start:s.pos]
}

// NumberIn returns the integer in a raw id that is a string containing an integer in canonical decimal form. For
// example, it returns 7 for "7". It returns nil for any other id.
func NumberIn(id []byte) []byte {
	if len(id) < 3 || id[0] != '"' || id[len(id)-1] != '"' || !isInteger(id[1:len(id)-1]) {
		return nil
	}
	return id[1 : len(id)-1]
}

// UnquoteID removes the quotes from an answer's id if the id is a string that contains requestID in decimal form.
// requestID is the raw id of the request. UnquoteID modifies a.Raw. It reports whether the answer's id then equals
// requestID.
func (a *Answer) UnquoteID(requestID []byte) bool {
	id := a.ID.Of(a.Raw)
	if number := NumberIn(id); number != nil && isInteger(requestID) && bytes.Equal(number, requestID) {
		a.Raw[a.ID.Start], a.Raw[a.ID.End-1] = ' ', ' '
		a.ID = Span{a.ID.Start + 1, a.ID.End - 1}
		return true
	}
	return SameID(id, requestID)
}

// Integer returns the integer in a raw id, regardless of how the integer is written. For example, it returns 7 for 7.0
// or " 07". It is used only to find the request for an answer whose id is unusable.
func Integer(id []byte) (n int64, ok bool) {
	f, err := strconv.ParseFloat(string(bytes.Trim(id, `" `)), 64)
	if n = int64(f); err != nil || len(id) > 64 || float64(n) != f || n > 1<<53 || n < -(1<<53) {
		return 0, false
	}
	return n, true
}
