package condition

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// A constantCall evaluates a function call. The constant arguments of the call were converted when the condition was
// compiled, so a constantCall evaluates at most the first argument.
type constantCall struct {
	interpreter.InterpretableCall

	// The field of is the first argument, or nil if the result of the call is constant.
	of interpreter.InterpretableV2
	// compute returns the result for the given value of the first argument. This value is nil if the field of is nil.
	// compute must return errors and unknown values unchanged.
	compute func(ref.Val) ref.Val
}

// Exec implements [interpreter.InterpretableV2].
func (c *constantCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	if c.of == nil {
		return c.compute(nil)
	}
	return types.LabelErrNode(c.ID(), c.compute(c.of.Exec(frame)))
}

// Eval implements [interpreter.Interpretable].
func (c *constantCall) Eval(vars interpreter.Activation) ref.Val {
	return c.Exec(interpreter.AsFrame(vars))
}

// decimalOfConstant optimizes a call to decimal with a constant argument. The argument is parsed only once, when the
// condition is compiled.
var decimalOfConstant = &interpreter.RegexOptimization{
	Function:   "decimal",
	RegexIndex: 0,
	Factory: func(call interpreter.InterpretableCall, constant string) (interpreter.InterpretableCall, error) {
		parsed, err := parseDecimal(constant)
		if err != nil {
			return nil, err
		}
		return &constantCall{InterpretableCall: call, compute: func(ref.Val) ref.Val { return parsed }}, nil
	},
}

// fastLocators is like [locatorOptimizations], but the optimized calls evaluate only their first argument.
func fastLocators() []*interpreter.RegexOptimization {
	var out []*interpreter.RegexOptimization
	for name, f := range locatorFunctions() {
		if f.binary == nil {
			continue
		}
		out = append(out, &interpreter.RegexOptimization{Function: name, RegexIndex: 1,
			Factory: func(call interpreter.InterpretableCall, constant string) (interpreter.InterpretableCall, error) {
				compare, err := f.binary(constant)
				if err != nil {
					return nil, err
				}
				return &constantCall{InterpretableCall: call, of: call.Args()[0], compute: func(arg ref.Val) ref.Val {
					return compareText(name, arg, compare)
				}}, nil
			}})
	}
	return out
}
