package condition

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/cockroachdb/apd/v3"
)

// maxNumberBytes limits the length of a decimal's text in bytes. The time to parse a decimal grows faster than this
// length.
const maxNumberBytes = 256

// isNumber reports whether a string is a JSON number. Unlike JSON, it allows leading zeros.
func isNumber(text string) bool {
	rest, ok := cutDigits(strings.TrimPrefix(text, "-"))
	if fraction, dot := strings.CutPrefix(rest, "."); ok && dot {
		rest, ok = cutDigits(fraction)
	}
	if ok && rest != "" && (rest[0] == 'e' || rest[0] == 'E') {
		rest = rest[1:]
		if rest != "" && (rest[0] == '+' || rest[0] == '-') {
			rest = rest[1:]
		}
		rest, ok = cutDigits(rest)
	}
	return ok && rest == ""
}

// cutDigits returns the string without its leading digits, and reports whether it has leading digits.
func cutDigits(text string) (string, bool) {
	n := 0
	for n < len(text) && '0' <= text[n] && text[n] <= '9' {
		n++
	}
	return text[n:], n > 0
}

var decimalType = cel.ObjectType("sluice.Decimal", traits.ComparerType)

// decimal is an exact decimal number. It is immutable.
type decimal struct{ value *apd.Decimal }

// number returns the exact value of a JSON number: an int or uint if the value is whole and fits in 64 bits, and
// otherwise a decimal.
func number(text string) (ref.Val, error) {
	rest, _ := cutDigits(strings.TrimPrefix(text, "-"))
	if rest == "" {
		if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
			return types.Int(whole), nil
		}
	}
	d, err := parseDecimal(text)
	if err != nil {
		return nil, err
	}
	if rest, _ = cutDigits(strings.TrimPrefix(rest, ".")); rest == "" && d.value.Exponent < 0 && text[len(text)-1] != '0' {
		return d, nil // the text has a fraction and no exponent, so the value is not whole
	}
	if whole, err := d.value.Int64(); err == nil {
		return types.Int(whole), nil
	}
	if whole, err := strconv.ParseUint(wholeText(d.value), 10, 64); err == nil {
		return types.Uint(whole), nil
	}
	return d, nil
}

// wholeText returns the digits of a decimal that is a whole number with at most 20 digits, and otherwise "".
func wholeText(value *apd.Decimal) string {
	var reduced apd.Decimal
	reduced.Reduce(value)
	if reduced.Exponent < 0 || reduced.NumDigits()+int64(reduced.Exponent) > 20 {
		return ""
	}
	return reduced.Text('f')
}

// parseDecimal parses a number. It returns an error if [isNumber] is false or if the text is too long.
func parseDecimal(text string) (decimal, error) {
	if len(text) > maxNumberBytes || !isNumber(text) {
		return decimal{}, fmt.Errorf("%s is not a number of at most %d bytes", strconv.Quote(clip(text)), maxNumberBytes)
	}
	value, _, err := apd.NewFromString(text)
	if err != nil {
		return decimal{}, fmt.Errorf("%s: %w", text, err)
	}
	return decimal{value}, nil
}

// toDecimal implements the function `decimal` of conditions.
func toDecimal(arg ref.Val) ref.Val {
	switch arg := arg.(type) {
	case decimal:
		return arg
	case types.Int:
		return decimal{apd.New(int64(arg), 0)}
	case types.Uint:
		return decimal{apd.NewWithBigInt(new(apd.BigInt).SetUint64(uint64(arg)), 0)}
	case types.String:
		d, err := parseDecimal(string(arg))
		if err != nil {
			return types.NewErr("decimal: %v", err)
		}
		return d
	default:
		return types.MaybeNoSuchOverloadErr(arg)
	}
}

// plain returns a double as text without an exponent.
func plain(number types.Double) string { return strconv.FormatFloat(float64(number), 'f', -1, 64) }

// Compare implements traits.Comparer. The other value may be a decimal or a whole number.
func (d decimal) Compare(other ref.Val) ref.Val {
	switch other.(type) {
	case decimal, types.Int, types.Uint:
		return orders[1+d.value.Cmp(toDecimal(other).(decimal).value)]
	}
	return types.MaybeNoSuchOverloadErr(other)
}

// orders contains the results of Compare for less, equal and greater.
var orders = [3]ref.Val{types.Int(-1), types.Int(0), types.Int(1)}

// Equal implements ref.Val. As everywhere in CEL, values of different types are not equal.
func (d decimal) Equal(other ref.Val) ref.Val {
	o, ok := other.(decimal)
	return types.Bool(ok && d.value.Cmp(o.value) == 0)
}

// ConvertToNative implements ref.Val.
func (d decimal) ConvertToNative(reflect.Type) (any, error) {
	return nil, fmt.Errorf("the decimal %s can't be converted to a Go value", d.value)
}

// ConvertToType implements ref.Val.
func (d decimal) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return decimalType
	}
	return types.NewErr("the decimal %s can't be converted to a %s", d.value, to.TypeName())
}

// Type implements ref.Val.
func (d decimal) Type() ref.Type { return decimalType }

// Value implements ref.Val.
func (d decimal) Value() any { return d.value }

// decimals returns the options that add decimals to CEL.
func decimals() []cel.EnvOption {
	from := func(name string, t *cel.Type) cel.FunctionOpt {
		return cel.Overload("decimal_"+name, []*cel.Type{t}, decimalType)
	}
	options := []cel.EnvOption{
		cel.Types(decimalType),
		cel.Function("decimal",
			from("string", cel.StringType), from("int", cel.IntType), from("uint", cel.UintType), from("decimal", decimalType),
			cel.SingletonUnaryBinding(toDecimal)),
	}
	for operator, name := range map[string]string{
		operators.Less: "less", operators.LessEquals: "less_equals", operators.Greater: "greater", operators.GreaterEquals: "greater_equals",
	} {
		options = append(options, cel.Function(operator,
			cel.Overload(name+"_decimal", []*cel.Type{decimalType, decimalType}, cel.BoolType),
			cel.Overload(name+"_decimal_int", []*cel.Type{decimalType, cel.IntType}, cel.BoolType)))
	}
	return options
}
