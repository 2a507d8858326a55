package jsonrpc

import (
	"bytes"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// A scanner reads one JSON value from beginning to end and enforces all rules that do not depend on JSON-RPC. It is
// embedded in a parser or reader, so that it is not allocated on the heap.
type scanner struct {
	raw    []byte
	pos    int
	limits Limits
	// client is true for a message from a client. Additional rules apply to the keys of such a message. client is false
	// for a message from a server. In that case, the scanner collects in reserved the members that only the gateway may
	// send.
	client bool

	depth  int
	tokens int
	stint  gosched.Work
	// outOfRange is the position of the first number that is not finite, or is an integer outside the range of int64.
	// It is -1 if there is no such number. Whether such numbers are allowed depends on the kind of the message, which
	// is known only after the whole message has been read. Numbers after this position are not checked.
	outOfRange int
	// controls is false if keys can contain control characters only as escapes. It is true if the message contains DEL,
	// or a byte with which control characters above ASCII begin.
	controls bool
	names    nameStack
	// text is the buffer for decoded strings.
	text []byte
	// reserved contains the members that only the gateway may send, sorted by position.
	reserved []item
	// repair collects the changes that [Repair] makes. It is nil unless Repair uses the scanner.
	repair *repairState
}

type frame struct {
	// count is the number of members or elements that the scanner has at least begun to read.
	count int
	// start is the position of the current element, or of the key of the current member.
	start int
	// prev is the offset at which the previous member or element ends. It is zero for the first member or element.
	prev int
	// key is the key of the current member, with escapes resolved.
	key []byte
	// base is the index at which the object's keys begin in scanner.names.
	base int
}

func (s *scanner) fail(code commonv1.Code, offset int, detail string) error {
	return &Error{Code: code, Detail: detail, Offset: offset}
}

func (s *scanner) syntax(detail string) error {
	if s.pos >= len(s.raw) {
		detail = "the text ends inside the value"
	}
	return s.fail(commonv1.Code_CODE_JSON_INVALID, s.pos, detail)
}

// begin checks the size and the encoding of the message, and then moves to the first byte of the value.
func (s *scanner) begin() error {
	if len(s.raw) > s.limits.Bytes {
		return s.fail(commonv1.Code_CODE_BODY_TOO_LARGE, s.limits.Bytes, "the message is too large")
	}
	if bytes.HasPrefix(s.raw, []byte("\ufeff")) {
		return s.fail(commonv1.Code_CODE_JSON_ENCODING, 0, "a byte order mark precedes the message")
	}
	if !utf8.Valid(s.raw) {
		return s.fail(commonv1.Code_CODE_JSON_ENCODING, badUTF8(s.raw), "the message is not valid UTF-8")
	}
	// Every control character above ASCII begins with 0xc2 in UTF-8. DEL is 0x7f.
	s.controls = bytes.IndexByte(s.raw, 0x7f) >= 0 || bytes.IndexByte(s.raw, 0xc2) >= 0
	s.space()
	return nil
}

func (s *scanner) end() error {
	s.space()
	if s.pos < len(s.raw) {
		return s.fail(commonv1.Code_CODE_JSON_TRAILING, s.pos, "more bytes follow the message")
	}
	return nil
}

// badUTF8 returns the offset of the first byte that is not valid UTF-8.
func badUTF8(b []byte) int {
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(b)
}

// peek returns the current byte. At the end of the message it returns 0, which no caller of peek accepts.
func (s *scanner) peek() byte {
	if s.pos < len(s.raw) {
		return s.raw[s.pos]
	}
	return 0
}

func (s *scanner) space() {
	if s.pos < len(s.raw) && s.raw[s.pos] <= ' ' {
		s.spaces()
	}
}

func (s *scanner) spaces() {
	for s.pos < len(s.raw) {
		switch s.raw[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

func (s *scanner) token() error {
	s.tokens++
	s.stint.Step()
	if s.tokens > s.limits.Tokens {
		return s.fail(commonv1.Code_CODE_JSON_TOO_MANY_TOKENS, s.pos, "the message has too many tokens")
	}
	return nil
}

func (s *scanner) read() (Span, error) {
	start := s.pos
	err := s.value()
	return Span{start, s.pos}, err
}

func (s *scanner) value() error {
	c := s.peek()
	if c == '{' {
		return s.object()
	}
	if c == '[' {
		return s.array()
	}
	if err := s.token(); err != nil {
		return err
	}
	switch c {
	case '"':
		_, _, err := s.quoted()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.raw[s.pos:], []byte(word)) {
		return s.syntax("this is not a JSON value")
	}
	s.pos += len(word)
	return nil
}

func (s *scanner) object() error {
	var f frame
	if err := s.enter(&f); err != nil {
		return err
	}
	for {
		more, err := s.member(&f)
		if !more {
			return err
		}
		if err := s.memberValue(&f); err != nil {
			return err
		}
	}
}

// memberValue reads the value of a member that the caller does not interpret. In a message from a server, every object
// may contain a _meta object.
func (s *scanner) memberValue(f *frame) error {
	if !s.client && isMeta(f.key) && s.peek() == '{' {
		return s.readMeta()
	}
	return s.value()
}

func (s *scanner) array() error {
	var f frame
	if err := s.enter(&f); err != nil {
		return err
	}
	for {
		more, err := s.element(&f)
		if !more {
			return err
		}
		if err := s.value(); err != nil {
			return err
		}
	}
}

func (s *scanner) enter(f *frame) error {
	s.depth++
	if s.depth > s.limits.Depth {
		return s.fail(commonv1.Code_CODE_JSON_TOO_DEEP, s.pos, "objects and arrays are nested too deep")
	}
	f.base = s.names.size
	err := s.token()
	s.pos++
	return err
}

func (s *scanner) leave() error {
	s.depth--
	err := s.token()
	s.pos++
	return err
}

// member moves to the value of the object's next member and returns true. It returns false at the end of the object, or
// together with an error.
func (s *scanner) member(f *frame) (bool, error) {
	if f.count > 0 {
		f.prev = s.pos
	}
	s.space()
	if s.peek() == '}' {
		if err := s.popKeys(f); err != nil {
			return false, err
		}
		return false, s.leave()
	}
	if f.count > 0 {
		if s.peek() != ',' {
			return false, s.syntax("a comma or a closing brace is missing")
		}
		s.pos++
		s.space()
	}
	if s.peek() != '"' {
		return false, s.syntax("a key is missing")
	}
	f.start = s.pos
	f.count++
	if err := s.key(f); err != nil {
		return false, err
	}
	s.space()
	if s.peek() != ':' {
		return false, s.syntax("a colon is missing")
	}
	s.pos++
	s.space()
	return true, nil
}

// element moves to the array's next element and returns true. It returns false at the end of the array, or together
// with an error.
func (s *scanner) element(f *frame) (bool, error) {
	if f.count > 0 {
		f.prev = s.pos
	}
	s.space()
	if s.peek() == ']' {
		return false, s.leave()
	}
	if f.count > 0 {
		if s.peek() != ',' {
			return false, s.syntax("a comma or a closing bracket is missing")
		}
		s.pos++
		s.space()
	}
	f.start = s.pos
	f.count++
	return true, nil
}

// decode returns the string at span with escapes resolved, and reports whether the value is a string. The scanner must
// already have read the value.
func (s *scanner) decode(span Span) ([]byte, bool) {
	quoted := span.Of(s.raw)
	if len(quoted) == 0 || quoted[0] != '"' {
		return nil, false
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1], true
	}
	return s.unescape(quoted)
}

// unescape resolves the escapes of a string, which must be given with its quotes.
func (s *scanner) unescape(quoted []byte) ([]byte, bool) {
	start := len(s.text)
	text, err := jsontext.AppendUnquote(s.text, quoted)
	if err != nil {
		return nil, false
	}
	s.text = text
	return text[start:len(text):len(text)], true
}
