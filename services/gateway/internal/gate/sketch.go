package gate

import (
	"bytes"
	"strconv"

	"github.com/sluice-mesh/sluice/services/internal/turn"
)

// A Sketch is what can be told of a message that can't be read. It is for saying which request has no usable answer:
// nothing of the message may be used.
type Sketch struct {
	// ID is the raw id: a string or a number; nil if there is none, or null.
	ID []byte
	// Result and Error say whether the message has a member of this name that is not null.
	Result, Error bool
}

// SketchOf finds the id of what looks like an answer, whatever is wrong with it, and reports whether it does: it begins
// like an object, or an array of one, has no method, and has a result, an error that is an object, or "jsonrpc". Two
// ids that differ are none. It reads no further than the end of the first object, and looks at each byte once.
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

// ByteOrderMark may stand once at the beginning of a stream.
const ByteOrderMark = "\ufeff"

type sketcher struct {
	scanner

	found                     Sketch
	hasID                     bool
	conflict, method, version bool
}

// object steps over an object, broken or not, and notes its own members.
func (s *sketcher) object() {
	var stint turn.Stint
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

// text steps over a string, and returns it with its quotes.
func (s *sketcher) text() []byte {
	start := s.pos
	for s.pos = s.plain(start + 1); s.pos < len(s.raw) && s.raw[s.pos] != '"'; s.pos = s.plain(s.pos) {
		if s.raw[s.pos] == '\\' {
			s.pos++ // and what it escapes
		}
		s.pos++
	}
	s.pos = min(s.pos+1, len(s.raw))
	return s.raw[start:s.pos]
}

// note notes a member, before whose value the sketcher stands.
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

// id returns the value at the current position if it is a string or a number, which is stepped over.
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

// NumberIn returns the integer that a raw id holds as text, in its canonical decimal form, such as 7 for "7"; nil for
// any other id.
func NumberIn(id []byte) []byte {
	if len(id) < 3 || id[0] != '"' || id[len(id)-1] != '"' || !isInteger(id[1:len(id)-1]) {
		return nil
	}
	return id[1 : len(id)-1]
}

// UnquoteID makes the id of an answer a number, in a.Raw itself, if it is the decimal text of the number that was sent,
// and reports whether the id is now what was sent. Both are raw JSON.
func (a *Answer) UnquoteID(sent []byte) bool {
	id := a.ID.Of(a.Raw)
	if number := NumberIn(id); number != nil && isInteger(sent) && bytes.Equal(number, sent) {
		a.Raw[a.ID.Start], a.Raw[a.ID.End-1] = ' ', ' '
		a.ID = Span{a.ID.Start + 1, a.ID.End - 1}
		return true
	}
	return SameID(id, sent)
}

// Integer returns the integer that a raw id stands for in whatever spelling, such as 7 for 7.0 or " 07". It serves to
// say which request has an answer whose id can't be taken.
func Integer(id []byte) (n int64, ok bool) {
	f, err := strconv.ParseFloat(string(bytes.Trim(id, `" `)), 64)
	if n = int64(f); err != nil || len(id) > 64 || float64(n) != f || n > 1<<53 || n < -(1<<53) {
		return 0, false
	}
	return n, true
}
