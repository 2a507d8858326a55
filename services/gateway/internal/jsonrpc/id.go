package jsonrpc

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// isID reports whether the value is an id that a client may use. This is a string of 1 to IDBytes bytes, or an integer
// within ±(2^53-1) without leading zeros, fraction or exponent. An empty string is not allowed, because some parsers
// treat it as an absent id.
func isID(s *scanner, span Span) bool {
	if text, ok := s.decode(span); ok {
		return len(text) > 0 && len(text) <= s.limits.IDBytes
	}
	value := span.Of(s.raw)
	digits := bytes.TrimPrefix(value, []byte("-"))
	return isInteger(value) && atMost(digits, "9007199254740991")
}

// isInteger reports whether a number is written as an integer, without fraction or exponent. -0 does not count as an
// integer, because some parsers change it to 0.
func isInteger(value []byte) bool {
	digits := bytes.TrimPrefix(value, []byte("-"))
	for _, c := range digits {
		if !isDigit(c) {
			return false
		}
	}
	return len(digits) > 0 && (digits[0] != '0' || len(value) == 1)
}

// SameID reports whether two raw JSON values are the same id. Strings are compared after their escapes are resolved,
// and integers are compared by value. A string never equals an integer. Any other value is not an id and equals no
// value.
func SameID(a, b []byte) bool {
	key := IDKey(a)
	return key != "" && key == IDKey(b)
}

// IDKey returns a map key for a raw id. Two ids have the same key if and only if [SameID] reports true. For a value
// that is neither a string nor an integer, IDKey returns "".
func IDKey(raw []byte) string {
	switch {
	case isInteger(raw):
		return string(raw)
	case len(raw) < 2 || raw[0] != '"' || raw[len(raw)-1] != '"':
		return ""
	case bytes.IndexByte(raw, '\\') < 0:
		return string(raw[:len(raw)-1]) // the leading quote distinguishes the key from that of an integer
	}
	text, err := jsontext.AppendUnquote([]byte{'"'}, raw)
	if err != nil {
		return ""
	}
	return string(text)
}

// KeyID returns a raw id for which [IDKey] returns key.
func KeyID(key string) []byte {
	text, isText := strings.CutPrefix(key, `"`)
	if !isText {
		return []byte(key)
	}
	return quote(text)
}
