package condition

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/go-json-experiment/json/jsontext"
)

// MaxParamsBytes limits the length in bytes of a call's params if conditions read them. The limit is necessary because
// a parsed value takes about twenty times the memory of its text.
const MaxParamsBytes = 256 << 10

// decoders pools decoders, because a new decoder allocates memory for each object that it reads. A decoder that has
// read more than maxPooled bytes is not returned to the pool, because its buffer has grown to the length of the params.
var decoders = sync.Pool{New: func() any { return jsontext.NewDecoder(strings.NewReader("")) }}

const maxPooled = 16 << 10

// Arguments contains the arguments of one call. It is immutable and safe for concurrent use. A condition that reads the
// arguments can't be evaluated with the zero Arguments.
type Arguments struct {
	values ref.Val
	bytes  int // length of the params
}

// ParseArguments parses the member `arguments` of a call's params, which must be a JSON object. If params is empty, or
// if the member is absent or null, it returns an empty object.
//
// ParseArguments returns an error if a key is repeated, if the arguments are not an object, if a number has more than
// [maxNumberBytes] or an enormous exponent, or if params is longer than [MaxParamsBytes].
func ParseArguments(params string) (Arguments, error) {
	if params == "" {
		return Arguments{values: new(object)}, nil
	}
	if len(params) > MaxParamsBytes {
		return Arguments{}, fmt.Errorf("the params are longer than %d bytes", MaxParamsBytes)
	}
	dec := decoders.Get().(*jsontext.Decoder)
	dec.Reset(strings.NewReader(params))
	if len(params) <= maxPooled {
		defer decoders.Put(dec)
	}
	if dec.PeekKind() != '{' {
		return Arguments{}, errors.New("the params are not a JSON object")
	}
	arguments, err := readParams(dec)
	if err != nil {
		return Arguments{}, errors.New("read the params: " + clip(err.Error()))
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Arguments{}, errors.New("the params are followed by more text")
	}
	if arguments == types.NullValue {
		return Arguments{values: new(object), bytes: len(params)}, nil
	}
	if _, ok := arguments.(*object); !ok {
		return Arguments{}, errors.New("the arguments are not a JSON object")
	}
	return Arguments{values: arguments, bytes: len(params)}, nil
}

// readParams reads a call's params, which must be a JSON object, and returns the value of the member `arguments`, or
// null if the member is absent. It checks that the other members have valid syntax and no repeated keys.
func readParams(dec *jsontext.Decoder) (ref.Val, error) {
	var out ref.Val = types.NullValue
	if _, err := dec.ReadToken(); err != nil {
		return nil, err
	}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken() // ReadToken refuses repeated names
		if err != nil {
			return nil, err
		}
		if name.String() != "arguments" {
			err = dec.SkipValue()
		} else {
			out, err = read(dec)
		}
		if err != nil {
			return nil, err
		}
	}
	_, err := dec.ReadToken()
	return out, err
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
	out := &object{members: make([]member, 0, 4)}
	for dec.PeekKind() != '}' {
		name, err := dec.ReadToken() // ReadToken refuses repeated names
		if err != nil {
			return nil, err
		}
		key := types.String(name.String())
		value, err := read(dec)
		if err != nil {
			return nil, err
		}
		out.members = append(out.members, member{key, value})
	}
	out.sort()
	_, err := dec.ReadToken()
	return out, err
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
