package jsonrpc

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
)

// quoted reads the string at the current position. It returns the bytes between the quotes, and reports whether they
// contain escapes.
func (s *scanner) quoted() (body []byte, escaped bool, err error) {
	start := s.pos + 1
	end := s.skipPlain(start)
	for end < len(s.raw) && s.raw[end] == '\\' {
		escaped = true
		if end, err = s.escape(end); err != nil {
			return nil, false, err
		}
		s.stint.Step()
		end = s.skipPlain(end)
	}
	if end >= len(s.raw) || s.raw[end] != '"' {
		s.pos = end
		return nil, false, s.syntax("a string contains a control character")
	}
	s.pos = end + 1
	return s.raw[start:end:end], escaped, nil
}

// skipPlain is like [plainEnd], but searches the rest of the message. The rest may be long, so skipPlain yields the
// processor after every maxPart bytes.
func (s *scanner) skipPlain(i int) int {
	for {
		part := min(len(s.raw), i+maxPart)
		if i = plainEnd(s.raw[:part], i); i < part || part == len(s.raw) {
			return i
		}
		s.stint.Part()
	}
}

// maxPart is the number of bytes of a string after which the scanner yields the processor.
const maxPart = 64 << 10

// plainEnd returns the offset of the first quote, backslash or control character at or after offset i, or the length of
// b if there is none. It tests eight bytes at a time. In the test's result, the high bit of a byte is set if the tested
// byte is one of these characters. A borrow in the subtraction can set wrong high bits, but only in bytes above a
// correct one, so the lowest set bit is correct.
func plainEnd(b []byte, i int) int {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(b); i += 8 {
		w := binary.LittleEndian.Uint64(b[i:])
		quote, slash := w^(ones*'"'), w^(ones*'\\')
		hits := (quote-ones)&^quote | (slash-ones)&^slash | (w-ones*' ')&^w
		if hits &= highs; hits != 0 {
			return i + bits.TrailingZeros64(hits)/8
		}
	}
	for ; i < len(b); i++ {
		if c := b[i]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return i
}

func (s *scanner) escape(i int) (int, error) {
	if i+1 < len(s.raw) {
		switch s.raw[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			return i + 2, nil
		}
	}
	unit, ok := codeUnit(s.raw, i)
	if !ok {
		return i, s.fail(commonv1.Code_CODE_JSON_INVALID, i, "this is not an escape sequence")
	}
	if !utf16.IsSurrogate(unit) {
		return i + 6, nil
	}
	low, ok := codeUnit(s.raw, i+6)
	if !ok || utf16.DecodeRune(unit, low) == utf8.RuneError {
		if s.repair.replace(s.raw, i) {
			return i + 6, nil
		}
		return i, s.fail(commonv1.Code_CODE_JSON_ENCODING, i, "the message contains half of a surrogate pair")
	}
	return i + 12, nil
}

func codeUnit(b []byte, i int) (rune, bool) {
	if len(b)-i < 6 || b[i] != '\\' || b[i+1] != 'u' {
		return 0, false
	}
	var unit rune
	for _, c := range b[i+2 : i+6] {
		switch {
		case isDigit(c):
			unit = unit<<4 | rune(c-'0')
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			unit = unit<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return unit, true
}

// number reads the number at the current position. If the number is out of range, number stores its position in
// outOfRange.
func (s *scanner) number() error {
	start := s.pos
	if s.peek() == '-' {
		s.pos++
	}
	n := numeral{negative: s.pos > start, integer: true}
	n.whole = s.digits()
	if len(n.whole) == 0 || len(n.whole) > 1 && n.whole[0] == '0' {
		return s.syntax("this is not a JSON value")
	}
	if s.peek() == '.' {
		s.pos++
		n.integer = false
		if n.fraction = s.digits(); len(n.fraction) == 0 {
			return s.syntax("digits are missing in a number")
		}
	}
	if s.peek()|0x20 == 'e' {
		s.pos++
		n.integer = false
		c := s.peek()
		if c == '+' || c == '-' {
			s.pos++
		}
		n.shrinks = c == '-'
		if n.exponent = s.digits(); len(n.exponent) == 0 {
			return s.syntax("digits are missing in a number")
		}
	}
	if s.pos-start > s.limits.NumberBytes {
		return s.fail(commonv1.Code_CODE_JSON_NUMBER, start, "a number is too long")
	}
	if s.outOfRange < 0 && n.isOutOfRange() {
		s.outOfRange = start
	}
	return nil
}

// digits reads digits. It stops after NumberBytes+1 digits, because a number with more digits is refused.
func (s *scanner) digits() []byte {
	start := s.pos
	for s.pos < len(s.raw) && isDigit(s.raw[s.pos]) && s.pos-start <= s.limits.NumberBytes {
		s.pos++
	}
	return s.raw[start:s.pos]
}
