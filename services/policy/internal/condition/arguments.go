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

// MaxParamsBytes bounds the params that conditions look at: read, each value takes some
// twenty times its text.
const MaxParamsBytes = 256 << 10

// Arguments are those of one call. They are immutable and safe for concurrent use.
// The zero Arguments are none: no condition holds for them.
type Arguments struct {
	values ref.Val
}

// ParseArguments reads the `arguments` of a call's params, a JSON object, as strictly
// as the gate does: a repeated key is an error. Params that have none, or null, and no
// params, give the empty map; arguments that are no object are an error, and so are a
// number of more than [maxNumberBytes] or of an enormous exponent, and params of more
// than [MaxParamsBytes].
func ParseArguments(params string) (Arguments, error) {
	if params == "" {
		return Arguments{values: newObject(nil)}, nil
	}
	if len(params) > MaxParamsBytes {
		return Arguments{}, fmt.Errorf("the params are longer than %d bytes", MaxParamsBytes)
	}
	dec := jsontext.NewDecoder(bytes.NewBufferString(params))
	if dec.PeekKind() != '{' {
		return Arguments{}, errors.New("the params are no JSON object")
	}
	all, err := read(dec)
	if err != nil {
		return Arguments{}, errors.New("read the params: " + clip(err.Error()))
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Arguments{}, errors.New("something follows the params")
	}
	arguments, there := all.(object).Find(types.String("arguments"))
	if !there || arguments == types.NullValue {
		return Arguments{values: newObject(nil)}, nil
	}
	if _, ok := arguments.(object); !ok {
		return Arguments{}, errors.New("the arguments are no JSON object")
	}
	return Arguments{values: arguments}, nil
}

// read reads the next value.
func read(dec *jsontext.Decoder) (ref.Val, error) {
	token, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() { //nolint:exhaustive // the others end something
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

// object is a map that is gone through in the order of its keys. That of Go's maps
// differs from time to time, and answers would.
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
