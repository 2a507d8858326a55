// Package canonicaljson writes JSON in a canonical form, in which equal values have the same bytes.
package canonicaljson

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// MaxNumber is the maximum length of a number, in bytes. Without a maximum, exact arithmetic could take very long,
// because its time grows faster than the length of the numbers.
const MaxNumber = 64

// Object returns the canonical form of a JSON object. Equal values have equal canonical forms. The form has no white
// space. Keys are in the order of their UTF-8 bytes. Strings are equal if they consist of the same characters, without
// normalization. Numbers are equal if they have the same exact decimal value.
//
// The empty string means an object without members. Object returns an error for a repeated key, a number of more than
// [MaxNumber] bytes, invalid JSON, and content after the object. The time grows with the length of the input and does
// not depend on the depth of nesting.
func Object(text string) (string, error) {
	if text == "" {
		return "{}", nil
	}
	w := writer{dec: jsontext.NewDecoder(bytes.NewBufferString(text)), out: make([]byte, 0, len(text))}
	if w.dec.PeekKind() != '{' {
		return "", errors.New("the text is not a JSON object")
	}
	if err := w.value(); err != nil {
		return "", err
	}
	if _, err := w.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return "", errors.New("something follows the object")
	}
	return w.ordered(), nil
}

// A writer writes each value once, and sorts the members of all objects at the end. If it sorted each object
// immediately, deeply nested values would be copied once per level.
type writer struct {
	dec *jsontext.Decoder
	// out is the output so far. It is canonical, except for the order of members.
	out []byte
	// openMembers contains the members of the objects that are still being written.
	openMembers []member
	// unordered contains the objects whose members are not in canonical order.
	unordered []object
	work      gosched.Work
}

type span struct{ start, end int }

type member struct {
	key string
	span
}

// An object is a JSON object whose members are not in canonical order.
type object struct {
	span
	members []span
}

func (w *writer) value() error {
	w.work.Step()
	switch w.dec.PeekKind() { //nolint:exhaustive // other kinds are scalars, or errors that ReadValue returns
	case '{':
		return w.object()
	case '[':
		return w.array()
	}
	raw, err := w.dec.ReadValue()
	if err != nil {
		return err
	}
	switch raw.Kind() { //nolint:exhaustive // values of other kinds are canonical already
	case '"':
		w.out, _, err = appendQuoted(w.out, raw)
	case '0':
		w.out, err = appendNumber(w.out, raw)
	default: // true, false, null
		w.out = append(w.out, raw...)
	}
	return err
}

func (w *writer) array() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	w.out = append(w.out, '[')
	for first := true; w.dec.PeekKind() != ']'; first = false {
		if !first {
			w.out = append(w.out, ',')
		}
		if err := w.value(); err != nil {
			return err
		}
	}
	w.out = append(w.out, ']')
	_, err := w.dec.ReadToken()
	return err
}

func (w *writer) object() error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	start, first := len(w.out), len(w.openMembers)
	w.out = append(w.out, '{')
	for w.dec.PeekKind() != '}' {
		if len(w.openMembers) > first {
			w.out = append(w.out, ',')
		}
		if err := w.member(); err != nil {
			return err
		}
	}
	w.out = append(w.out, '}')
	w.recordUnordered(span{start, len(w.out)}, w.openMembers[first:])
	clear(w.openMembers[first:])
	w.openMembers = w.openMembers[:first]
	_, err := w.dec.ReadToken()
	return err
}

func (w *writer) member() error {
	raw, err := w.dec.ReadValue() // the decoder refuses repeated keys
	if err != nil {
		return err
	}
	start := len(w.out)
	var key string
	if w.out, key, err = appendQuoted(w.out, raw); err != nil {
		return err
	}
	w.out = append(w.out, ':')
	if err := w.value(); err != nil {
		return err
	}
	w.openMembers = append(w.openMembers, member{key, span{start, len(w.out)}})
	return nil
}

// recordUnordered records an object if its members are not in canonical order.
func (w *writer) recordUnordered(at span, members []member) {
	byKey := func(a, b member) int { return strings.Compare(a.key, b.key) }
	if slices.IsSortedFunc(members, byKey) {
		return
	}
	slices.SortFunc(members, byKey)
	o := object{span: at, members: make([]span, len(members))}
	for i, m := range members {
		o.members[i] = m.span
	}
	w.unordered = append(w.unordered, o)
}

// ordered returns the canonical form with all members in canonical order.
func (w *writer) ordered() string {
	slices.SortFunc(w.unordered, func(a, b object) int { return cmp.Compare(a.start, b.start) })
	var out strings.Builder
	out.Grow(len(w.out))
	w.writeOrdered(&out, span{0, len(w.out)})
	return out.String()
}

// writeOrdered writes a part of the writer's output to out, with the members of all objects in canonical order.
// w.unordered lists outer objects before inner objects, so the search finds the outermost object that begins in the
// part.
func (w *writer) writeOrdered(out *strings.Builder, part span) {
	for part.start < part.end {
		i, _ := slices.BinarySearchFunc(w.unordered, part.start, func(o object, start int) int { return cmp.Compare(o.start, start) })
		if i == len(w.unordered) || w.unordered[i].start >= part.end {
			out.Write(w.out[part.start:part.end])
			return
		}
		o := &w.unordered[i]
		out.Write(w.out[part.start : o.start+len("{")])
		for i, m := range o.members {
			if i > 0 {
				out.WriteByte(',')
			}
			w.writeOrdered(out, m)
		}
		part.start = o.end - len("}")
	}
}

// shortEscapes contains the characters whose escape is a single letter.
var shortEscapes = map[byte]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

// appendQuoted appends the canonical form of a JSON string, and also returns the string's value.
func appendQuoted(out []byte, raw jsontext.Value) (appended []byte, value string, err error) {
	if bytes.IndexByte(raw, '\\') < 0 { // a string without escapes is already canonical
		return append(out, raw...), string(raw[1 : len(raw)-1]), nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return nil, "", err
	}
	return appendString(out, string(text)), string(text), nil
}

func appendString(out []byte, text string) []byte {
	out = append(out, '"')
	for i := range len(text) {
		switch c := text[i]; {
		case c >= ' ' && c != '"' && c != '\\':
			out = append(out, c)
		case shortEscapes[c] != "":
			out = append(out, shortEscapes[c]...)
		default:
			out = fmt.Appendf(out, `\u%04x`, c)
		}
	}
	return append(out, '"')
}

// appendNumber appends a JSON number as an integer without trailing zeros, the letter e and a decimal exponent. For
// example, 1.20 becomes 12e-1. The integer and the exponent are exact.
func appendNumber(out []byte, raw jsontext.Value) ([]byte, error) {
	if len(raw) > MaxNumber {
		return nil, fmt.Errorf("a number is longer than %d bytes", MaxNumber)
	}
	mantissa, exponent := []byte(raw), []byte("0")
	if i := bytes.IndexAny(raw, "eE"); i >= 0 {
		mantissa, exponent = raw[:i], raw[i+1:]
	}
	digits, negative := bytes.CutPrefix(mantissa, []byte("-"))
	whole, fraction, _ := bytes.Cut(digits, []byte("."))
	var space [MaxNumber]byte
	digits = bytes.TrimLeft(append(append(space[:0], whole...), fraction...), "0")
	if len(digits) == 0 {
		return append(out, "0e0"...), nil
	}
	significant := bytes.TrimRight(digits, "0")
	if negative {
		out = append(out, '-')
	}
	out = append(append(out, significant...), 'e')
	return appendSum(out, exponent, len(digits)-len(significant)-len(fraction))
}

// appendSum appends the sum of exponent and n as a decimal number. exponent consists of decimal digits.
func appendSum(out, exponent []byte, n int) ([]byte, error) {
	const small = 18 // int64 holds the sum of an exponent of 18 characters and a small n
	if len(exponent) <= small {
		exp, err := strconv.ParseInt(string(exponent), 10, 64)
		return strconv.AppendInt(out, exp+int64(n), 10), err
	}
	exp, ok := new(big.Int).SetString(string(exponent), 10)
	if !ok {
		return nil, fmt.Errorf("%q is not an exponent", exponent)
	}
	return exp.Add(exp, big.NewInt(int64(n))).Append(out, 10), nil
}

// Strings returns the canonical form of a JSON array of strings.
func Strings(texts []string) string {
	out := []byte{'['}
	for i, text := range texts {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendString(out, text)
	}
	return string(append(out, ']'))
}
