package condition

import (
	"fmt"
	"math"
	"reflect"
	"regexp"

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

// decimalOf reads a number as JSON writes it.
func decimalOf(text string) ref.Val {
	if len(text) > maxNumberBytes || !plainNumber.MatchString(text) {
		return types.NewErr("decimal: the text is no number of at most %d bytes", maxNumberBytes)
	}
	value, _, err := apd.NewFromString(text)
	if err != nil {
		return types.NewErr("decimal: %v", err)
	}
	return decimal{value}
}

// toDecimal is the function decimal.
func toDecimal(arg ref.Val) ref.Val {
	switch arg := arg.(type) {
	case decimal:
		return arg
	case types.Int:
		return decimal{apd.New(int64(arg), 0)}
	case types.Double:
		if float := float64(arg); !math.IsNaN(float) && !math.IsInf(float, 0) {
			return decimalOf(shortest(float))
		}
		return types.NewErr("decimal: %v is no number", arg)
	case types.String:
		return decimalOf(string(arg))
	default:
		return types.MaybeNoSuchOverloadErr(arg)
	}
}

// Compare implements traits.Comparer.
func (d decimal) Compare(other ref.Val) ref.Val {
	if o, ok := other.(decimal); ok {
		return types.Int(d.value.Cmp(o.value))
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
			from("string", cel.StringType), from("int", cel.IntType), from("double", cel.DoubleType), from("decimal", decimalType),
			cel.SingletonUnaryBinding(toDecimal)),
	}
	for operator, name := range map[string]string{
		operators.Less: "less", operators.LessEquals: "less_equals", operators.Greater: "greater", operators.GreaterEquals: "greater_equals",
	} {
		options = append(options, cel.Function(operator, cel.Overload(name+"_decimal", []*cel.Type{decimalType, decimalType}, cel.BoolType)))
	}
	return options
}
