package condition

import (
	"fmt"
	"reflect"
	"regexp"
	"strconv"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"github.com/cockroachdb/apd/v3"
)

// maxNumberBytes bounds the text of a decimal: reading one takes more time than its
// length says.
const maxNumberBytes = 256

// plainNumber is how a number is written, as in JSON; zeros may lead.
var plainNumber = regexp.MustCompile(`^-?[0-9]+([.][0-9]+)?([eE][+-]?[0-9]+)?$`)

var decimalType = cel.ObjectType("sluice.Decimal", traits.ComparerType)

// decimal is an exact decimal number. It is immutable.
type decimal struct{ value *apd.Decimal }

// number is a JSON number by its exact value: an int or uint where it is whole and
// fits 64 bits, else a decimal.
func number(text string) (ref.Val, error) {
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(whole), nil
	}
	d, err := parseDecimal(text)
	if err != nil {
		return nil, err
	}
	if whole, err := d.value.Int64(); err == nil {
		return types.Int(whole), nil
	}
	if whole, err := strconv.ParseUint(wholeText(d.value), 10, 64); err == nil {
		return types.Uint(whole), nil
	}
	return d, nil
}

// wholeText writes a decimal that is whole and has at most 20 digits as an integer, and
// others as what is none.
func wholeText(value *apd.Decimal) string {
	var reduced apd.Decimal
	reduced.Reduce(value)
	if reduced.Exponent < 0 || reduced.NumDigits()+int64(reduced.Exponent) > 20 {
		return ""
	}
	return reduced.Text('f')
}

// parseDecimal reads a number as JSON writes it.
func parseDecimal(text string) (decimal, error) {
	if len(text) > maxNumberBytes || !plainNumber.MatchString(text) {
		return decimal{}, fmt.Errorf("%s is no number of at most %d bytes", strconv.Quote(clip(text)), maxNumberBytes)
	}
	value, _, err := apd.NewFromString(text)
	if err != nil {
		return decimal{}, fmt.Errorf("%s: %w", text, err)
	}
	return decimal{value}, nil
}

// toDecimal is the function decimal.
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

// plain writes a double as a decimal.
func plain(number types.Double) string { return strconv.FormatFloat(float64(number), 'f', -1, 64) }

// Compare implements traits.Comparer: with decimals and whole numbers.
func (d decimal) Compare(other ref.Val) ref.Val {
	switch other.(type) {
	case decimal, types.Int, types.Uint:
		return types.Int(d.value.Cmp(toDecimal(other).(decimal).value))
	}
	return types.MaybeNoSuchOverloadErr(other)
}

// Equal implements ref.Val: values of other types are not equal, as CEL has it.
func (d decimal) Equal(other ref.Val) ref.Val {
	o, ok := other.(decimal)
	return types.Bool(ok && d.value.Cmp(o.value) == 0)
}

// ConvertToNative implements ref.Val.
func (d decimal) ConvertToNative(reflect.Type) (any, error) {
	return nil, fmt.Errorf("the decimal %s becomes nothing else", d.value)
}

// ConvertToType implements ref.Val.
func (d decimal) ConvertToType(to ref.Type) ref.Val {
	if to == types.TypeType {
		return decimalType
	}
	return types.NewErr("the decimal %s does not become a %s", d.value, to.TypeName())
}

// Type implements ref.Val.
func (d decimal) Type() ref.Type { return decimalType }

// Value implements ref.Val.
func (d decimal) Value() any { return d.value }

// decimals makes decimals known to CEL.
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
