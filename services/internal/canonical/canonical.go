// Package canonical writes JSON so that texts are equal where their values are.
package canonical

import (
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// Object writes a JSON object so that two texts are equal where their values
// are: without white space, keys in the order of their UTF-8 bytes, strings by
// value and not normalised, numbers by exact decimal value. An empty text counts
// as the object without keys. A repeated key, broken text and anything after the
// object are errors.
func Object(text string) (string, error) {
	if text == "" {
		return "{}", nil
	}
	dec := jsontext.NewDecoder(strings.NewReader(text))
	if dec.PeekKind() != '{' {
		return "", errors.New("it is no JSON object")
	}
	out, err := appendValue(nil, dec)
	if err != nil {
		return "", err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return "", errors.New("something follows the object")
	}
	return string(out), nil
}

// appendValue reads the next value and appends its canonical form.
func appendValue(out []byte, dec *jsontext.Decoder) ([]byte, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() { //nolint:exhaustive // the others are themselves
	case '{':
		return appendObject(out, dec)
	case '[':
		return appendArray(out, dec)
	case '"':
		return appendString(out, token.String()), nil
	case '0':
		return appendNumber(out, token.String())
	default: // true, false, null
		return append(out, token.String()...), nil
	}
}

func appendObject(out []byte, dec *jsontext.Decoder) ([]byte, error) {
	type member struct{ key, value string }
	var members []member
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken() // the decoder refuses repeated names
		if err != nil {
			return nil, err
		}
		m := member{key: name.String()}
		value, err := appendValue(nil, dec)
		if err != nil {
			return nil, err
		}
		m.value = string(value)
		members = append(members, m)
	}
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	out = append(out, '{')
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, m.key), ':')
		out = append(out, m.value...)
	}
	return append(out, '}'), nil
}

func appendArray(out []byte, dec *jsontext.Decoder) ([]byte, error) {
	out = append(out, '[')
	for first := true; dec.PeekKind() != ']'; first = false {
		if !first {
			out = append(out, ',')
		}
		var err error
		if out, err = appendValue(out, dec); err != nil {
			return nil, err
		}
	}
	_, err := dec.ReadToken()
	return append(out, ']'), err
}

// short are the characters that have an escape of one letter.
var short = map[byte]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

func appendString(out []byte, text string) []byte {
	out = append(out, '"')
	for i := range len(text) {
		c := text[i]
		if escaped, ok := short[c]; ok {
			out = append(out, escaped...)
		} else if c < ' ' {
			out = fmt.Appendf(out, `\u%04x`, c)
		} else {
			out = append(out, c)
		}
	}
	return append(out, '"')
}

// appendNumber writes a JSON number as an integer that does not end in 0, the
// letter e and the decimal exponent. Both are exact, whatever their size.
func appendNumber(out []byte, text string) ([]byte, error) {
	mantissa, exponent := text, "0"
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa, exponent = text[:i], text[i+1:]
	}
	digits, negative := strings.CutPrefix(mantissa, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimLeft(whole+fraction, "0")
	if digits == "" {
		return append(out, "0e0"...), nil
	}
	exp, ok := new(big.Int).SetString(exponent, 10)
	if !ok {
		return nil, fmt.Errorf("%q is no number", text)
	}
	significant := strings.TrimRight(digits, "0")
	exp.Add(exp, big.NewInt(int64(len(digits)-len(significant)-len(fraction))))
	if negative {
		out = append(out, '-')
	}
	out = append(out, significant...)
	out = append(out, 'e')
	return exp.Append(out, 10), nil
}

// Texts writes a JSON array of texts in the same manner.
func Texts(texts []string) string {
	out := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendString(out, text)
	}
	return string(append(out, ']'))
}
