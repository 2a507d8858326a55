package condition

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxParamsBytes is the largest length of params that conditions read, in bytes. A parsed value takes about twenty
// times the memory of its text.
const MaxParamsBytes = 256 << 10

// Arguments contains the arguments of one call. It is immutable and safe for concurrent use. Every condition is false
// for the zero Arguments.
type Arguments struct {
	values ref.Val
	bytes  int // the length of the params
}

// ParseArguments parses the member `arguments` of a call's params, a JSON object. If params is empty, or if the member
// is absent or null, the arguments are the empty map.
//
// ParseArguments returns an error if a key is repeated, if the arguments are not an object, if a number has more than
// [maxNumberBytes] or an enormous exponent, and if the params are longer than [MaxParamsBytes].
func ParseArguments(params string) (Arguments, error) {
	if params == "" {
		return Arguments{values: newObject(nil)}, nil
	}
	if len(params) > MaxParamsBytes {
		return Arguments{}, fmt.Errorf("the params are longer than %d bytes", MaxParamsBytes)
	}
	dec := jsontext.NewDecoder(bytes.NewBufferString(params))
	if dec.PeekKind() != '{' {
		return Arguments{}, errors.New("the params are not a JSON object")
	}
	all, err := read(dec)
	if err != nil {
		return Arguments{}, errors.New("read the params: " + clip(err.Error()))
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Arguments{}, errors.New("the params are followed by more text")
	}
	arguments, there := all.(object).Find(types.String("arguments"))
	if !there || arguments == types.NullValue {
		return Arguments{values: newObject(nil), bytes: len(params)}, nil
	}
	if _, ok := arguments.(object); !ok {
		return Arguments{}, errors.New("the arguments are not a JSON object")
	}
	return Arguments{values: arguments, bytes: len(params)}, nil
}

func read(dec *jsontext.Decoder) (ref.Val, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() { //nolint:exhaustive // the other kinds end an object or array
	case '{':
		return readObject(dec)
	case '[':
		return readArray(dec)
	case '"':
		return types.String(token.String()), nil
	case '0':
		return number(token.String())
	case 't', 'f':
		return types.Bool(token.Bool()), nil
	default:
		return types.NullValue, nil
	}
}

func readObject(dec *jsontext.Decoder) (ref.Val, error) {
	out := make(map[string]ref.Val)
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken() // the decoder refuses repeated names
		if err != nil {
			return nil, err
		}
		key := name.String()
		if out[key], err = read(dec); err != nil {
			return nil, err
		}
	}
	_, err := dec.ReadToken()
	return newObject(out), err
}

func readArray(dec *jsontext.Decoder) (ref.Val, error) {
	var out []ref.Val
	for dec.PeekKind() != ']' {
		value, err := read(dec)
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	_, err := dec.ReadToken()
	return types.NewRefValList(types.DefaultTypeAdapter, out), err
}

// object is a map that is iterated in the order of its keys. In Go's random order, the result of a condition could
// differ from one evaluation to the next.
type object struct {
	traits.Mapper

	keys ref.Val
}

func newObject(values map[string]ref.Val) object {
	keys := slices.Sorted(maps.Keys(values))
	generic := make(map[ref.Val]ref.Val, len(values))
	for key, value := range values {
		generic[types.String(key)] = value
	}
	return object{
		Mapper: types.NewRefValMap(types.DefaultTypeAdapter, generic),
		keys:   types.NewStringList(types.DefaultTypeAdapter, keys),
	}
}

// Iterator implements traits.Iterable.
func (o object) Iterator() traits.Iterator { return o.keys.(traits.Lister).Iterator() }
