package condition

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/canonical"
)

// MaxParamsBytes bounds the params that conditions look at: read, each value takes some
// twenty times its text.
const MaxParamsBytes = 256 << 10

// Arguments are those of one call. They are immutable and safe for concurrent use.
// The zero Arguments are none: no condition holds for them.
type Arguments struct {
	values map[string]any
}

// ParseArguments reads the `arguments` of a call's params, a JSON object, as strictly
// as the gate does: a repeated key is an error. Params that have none, and no params,
// give the empty map; arguments that are no object are an error, and so are params of
// more than [MaxParamsBytes].
func ParseArguments(params string) (Arguments, error) {
	found := Arguments{values: map[string]any{}}
	if params == "" {
		return found, nil
	}
	if len(params) > MaxParamsBytes {
		return Arguments{}, fmt.Errorf("the params are longer than %d bytes", MaxParamsBytes)
	}
	dec := jsontext.NewDecoder(strings.NewReader(params))
	if dec.PeekKind() != '{' {
		return Arguments{}, errors.New("the params are no JSON object")
	}
	all, err := read(dec)
	if err != nil {
		return Arguments{}, fmt.Errorf("read the params: %w", err)
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return Arguments{}, errors.New("something follows the params")
	}
	arguments, there := all.(map[string]any)["arguments"]
	if !there {
		return found, nil
	}
	values, ok := arguments.(map[string]any)
	if !ok {
		return Arguments{}, errors.New("the arguments are no JSON object")
	}
	return Arguments{values: values}, nil
}

// read reads the next value: a map[string]any, a []any, or a leaf as CEL has it.
func read(dec *jsontext.Decoder) (any, error) {
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
		return number(token.String()), nil
	case 't', 'f':
		return types.Bool(token.Bool()), nil
	default:
		return types.NullValue, nil
	}
}

func readObject(dec *jsontext.Decoder) (any, error) {
	out := make(map[string]any)
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
	return out, err
}

func readArray(dec *jsontext.Decoder) (any, error) {
	out := []any{}
	for dec.PeekKind() != ']' {
		value, err := read(dec)
		if err != nil {
			return nil, err
		}
		out = append(out, value)
	}
	_, err := dec.ReadToken()
	return out, err
}

// number is a JSON number by its exact value. One that is too large or too long is
// an error in whatever looks at it.
func number(text string) ref.Val {
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(whole)
	}
	float, err := strconv.ParseFloat(text, 64)
	if err == nil && math.Abs(float) < maxExact && sameNumber(text, shortest(float)) {
		return types.Double(float)
	}
	return decimalOf(text)
}

// maxExact bounds the doubles that CEL compares with ints exactly.
const maxExact = 1 << 53

// shortest is the shortest decimal that reads as the same double.
func shortest(float float64) string { return strconv.FormatFloat(float, 'e', -1, 64) }

func sameNumber(a, b string) bool {
	x, err1 := canonical.Number(a)
	y, err2 := canonical.Number(b)
	return err1 == nil && err2 == nil && x == y
}
