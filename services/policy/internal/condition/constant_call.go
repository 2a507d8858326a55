package condition

import (
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// A constantCall is a function call whose constant arguments were converted when the condition was compiled. At most
// its first argument remains to be evaluated.
type constantCall struct {
	interpreter.InterpretableCall

	// of is the first argument of the call, or nil if all arguments are constant.
	of interpreter.InterpretableV2
	// compute returns the result of the call. Its parameter is the value of the first argument, or nil if all arguments
	// are constant. compute must return errors and unknown values unchanged.
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

// decimalOfConstant optimizes calls to `decimal` with a constant argument. The constant is parsed only once, when the
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

// fastLocators is like [locatorOptimizations], but the optimized calls do not evaluate their constant argument.
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
