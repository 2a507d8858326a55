package inputschema

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/canonicaljson"
	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// maxDepth limits the nesting of objects and arrays.
	maxDepth = 64
	// maxExponent limits the absolute value of a number's exponent. The time for exact arithmetic grows with the exponent.
	maxExponent = 400
)

// A kind is a type of JSON value, such as strings. Each kind is one bit, so a kind can also represent a set of kinds.
type kind uint8

const (
	kindNull kind = 1 << iota
	kindBoolean
	kindNumber
	kindString
	kindArray
	kindObject
)

// A value is a JSON value.
type value struct {
	kind kind
	// text is the content of a string, or the JSON of a number or boolean.
	text string
	// items contains the items of an array, or the values of an object's members.
	items []*value
	// names contains the names of an object's members in ascending order.
	names []string
	// size is the number of steps for processing the whole value.
	size int
	// runes is the length of a string in characters.
	runes int
	// number is the exact value of a number. It is nil until it is needed.
	number *big.Rat

	// declared, declaresAll and restricted are set after an object was checked. Each element of declared is true if the
	// schema declares the member. declaresAll is true if the schema declares all members. restricted is true if undeclared
	// members are refused.
	declared                []bool
	declaresAll, restricted bool
}

// A reader parses JSON into values.
type reader struct {
	dec *jsontext.Decoder
	// remaining is the number of values and names that may still be read.
	remaining int
	work      gosched.Work
}

var (
	errTooDeep       = fmt.Errorf("it is nested more than %d deep", maxDepth)
	errTooManyValues = errors.New("it has too many values")
	errTrailing      = errors.New("something follows it")
)

// parse parses a JSON value. It returns an error if there are more than limit values and names.
func parse(text []byte, limit int) (*value, error) {
	r := reader{dec: jsontext.NewDecoder(strings.NewReader(string(text))), remaining: limit}
	v, err := r.value(0)
	if err != nil {
		return nil, err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errTrailing
	}
	return v, nil
}

func (r *reader) value(depth int) (*value, error) {
	r.work.Step()
	if r.remaining--; r.remaining < 0 {
		return nil, errTooManyValues
	}
	if depth > maxDepth {
		return nil, errTooDeep
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() { //nolint:exhaustive // the other kinds end an object or array, or are invalid
	case '{':
		return r.object(depth)
	case '[':
		return r.array(depth)
	case '"':
		return newString(token.String()), nil
	case '0':
		return newNumber(token.String())
	case 't', 'f':
		return &value{kind: kindBoolean, text: token.String(), size: 1}, nil
	case 'n':
		return &value{kind: kindNull, size: 1}, nil
	default:
		return nil, errors.New("it is not a JSON value")
	}
}

func newString(text string) *value {
	return &value{kind: kindString, text: text, runes: utf8.RuneCountInString(text), size: 1 + len(text)/64}
}

func newNumber(text string) (*value, error) {
	if len(text) > canonicaljson.MaxNumber {
		return nil, fmt.Errorf("a number has more than %d bytes", canonicaljson.MaxNumber)
	}
	size := 2
	if at := strings.IndexAny(text, "eE"); at >= 0 {
		exponent, err := strconv.Atoi(text[at+1:])
		if err != nil || max(exponent, -exponent) > maxExponent {
			return nil, fmt.Errorf("the exponent of a number is not between %d and %d", -maxExponent, maxExponent)
		}
		size += max(exponent, -exponent) / 4
	}
	return &value{kind: kindNumber, text: text, size: size}, nil
}

func (r *reader) array(depth int) (*value, error) {
	v := &value{kind: kindArray, size: 1}
	for r.dec.PeekKind() != ']' {
		item, err := r.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v.items = append(v.items, item)
		v.size += item.size
	}
	_, err := r.dec.ReadToken()
	return v, err
}

func (r *reader) object(depth int) (*value, error) {
	type member struct {
		name  string
		value *value
	}
	v := &value{kind: kindObject, size: 1}
	var members []member
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadToken() // ReadToken refuses repeated names
		if err != nil {
			return nil, err
		}
		r.remaining--
		m := member{name: name.String()}
		if m.value, err = r.value(depth + 1); err != nil {
			return nil, err
		}
		members = append(members, m)
		v.size += 1 + len(m.name)/64 + m.value.size
	}
	slices.SortFunc(members, func(a, b member) int { return cmp.Compare(a.name, b.name) })
	for _, m := range members {
		v.names, v.items = append(v.names, m.name), append(v.items, m.value)
	}
	_, err := r.dec.ReadToken()
	return v, err
}

// find returns the value of the object's member with the given name, or nil if there is no such member.
func (v *value) find(name string) *value {
	at, found := slices.BinarySearch(v.names, name)
	if !found {
		return nil
	}
	return v.items[at]
}

func (v *value) rat() *big.Rat {
	if v.number == nil {
		v.number, _ = new(big.Rat).SetString(v.text) // every JSON number is valid
	}
	return v.number
}

// isInteger reports whether a number is an integer, for example 1.0 or 1e2.
func (v *value) isInteger() bool { return !strings.ContainsAny(v.text, ".eE") || v.rat().IsInt() }

// appendKey appends the key of a value to b. Two values have the same key if and only if they are equal.
func (v *value) appendKey(b []byte) []byte {
	b = append(b, byte(v.kind))
	switch v.kind {
	case kindNull, kindInteger:
	case kindBoolean, kindString:
		b = appendText(b, v.text)
	case kindNumber:
		b = appendText(b, v.rat().RatString())
	case kindArray, kindObject:
		b = strconv.AppendInt(b, int64(len(v.items)), 10)
		b = append(b, ' ')
		for i, item := range v.items {
			if v.kind == kindObject {
				b = appendText(b, v.names[i])
			}
			b = item.appendKey(b)
		}
	}
	return b
}

func appendText(b []byte, text string) []byte {
	b = strconv.AppendInt(b, int64(len(text)), 10)
	return append(append(b, ' '), text...)
}

// fromPlain converts a Go value from [jsonschema.UnmarshalJSON].
func fromPlain(of any) *value {
	switch of := of.(type) {
	case bool:
		return &value{kind: kindBoolean, text: strconv.FormatBool(of), size: 1}
	case fmt.Stringer: // a number
		return &value{kind: kindNumber, text: of.String(), size: 1}
	case string:
		return newString(of)
	case []any:
		v := &value{kind: kindArray, size: 1}
		for _, item := range of {
			v.items = append(v.items, fromPlain(item))
		}
		return v
	case map[string]any:
		v := &value{kind: kindObject, size: 1}
		for name := range of {
			v.names = append(v.names, name)
		}
		slices.Sort(v.names)
		for _, name := range v.names {
			v.items = append(v.items, fromPlain(of[name]))
		}
		return v
	}
	return &value{kind: kindNull, size: 1}
}
