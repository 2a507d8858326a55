package condition

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

const (
	// MaxBytes limits the length of a condition in bytes.
	MaxBytes = 2048
	// maxReason limits the length in bytes of an error from evaluating a condition. The error can contain arguments, which
	// can be long.
	maxReason = 200
)

// Result is the result of evaluating a condition.
type Result uint8

// These are the results.
const (
	// Failed means that the condition can't be evaluated.
	Failed Result = iota
	// False means that the condition is false.
	False
	// True means that the condition is true.
	True
	// Unknown means that the result depends on a variable in [Input.Unknown].
	Unknown
)

// A Condition is a compiled expression. It is immutable and safe for concurrent use. The zero Condition can't be
// evaluated.
type Condition struct {
	// program evaluates the expression. It is nil for the zero Condition.
	program cel.Program
	// costly returns a program that evaluates the expression, but fails if the evaluation would take too long. The program
	// is created on the first call.
	costly func() (cel.Program, error)
	// traced returns a program that evaluates every part of the expression and records the values of the parts. The
	// program is created on the first call.
	traced func() (cel.Program, error)
	// calls is the result of countCalls: the number of function calls in the expression, or -1 if the expression has
	// loops.
	calls     int
	ast       *cel.Ast
	variables Variables
	// reads contains the keys that the expression reads by name. The evaluation fails if the arguments contain a different
	// spelling of such a key. reads is nil if the expression reads no key by name, or if [Condition.WithExtra] has
	// disabled this check.
	reads *shape
	// anyArgs is true if the condition can be evaluated for arguments that are not in the tool's schema.
	anyArgs bool
}

// Variables returns the groups of variables that the condition reads.
func (c *Condition) Variables() Variables { return c.variables }

// Compile compiles a boolean expression. Its errors are of type [*TextError].
func Compile(text string) (*Condition, error) {
	switch {
	case len(text) > MaxBytes:
		return nil, &TextError{Message: fmt.Sprintf("is longer than %d bytes", MaxBytes)}
	case strings.TrimSpace(text) == "":
		return nil, &TextError{Message: "is empty", Suggestion: "write a condition, for example args.draft == true"}
	}
	env, err := environment()
	if err != nil {
		return nil, &TextError{Message: "the environment of conditions can't be created: " + err.Error()}
	}
	checked, issues := env.Compile(encodeIPIn(text))
	if issues != nil && len(issues.Errors()) > 0 {
		first := issues.Errors()[0]
		return nil, problemAt(first.Location, text, first.Message, "")
	}
	reads, problem := check(checked, text)
	if problem != nil {
		return nil, problem
	}
	cost, err := env.EstimateCost(checked, sizeEstimator{})
	if err != nil {
		return nil, &TextError{Message: "its cost can't be estimated: " + err.Error()}
	}
	if cost.Max > maxEstimate {
		return nil, &TextError{Message: "may take too long: it has too many nested loops over lists", Suggestion: "use at most two loops inside each other"}
	}
	out := &Condition{ast: checked, variables: variablesOf(checked), calls: countCalls(checked), reads: newShape(reads)}
	out.costly = sync.OnceValues(func() (cel.Program, error) {
		return newProgram(env, checked, cel.CostLimit(maxCost), cel.CostTracking(costEstimator{}))
	})
	out.traced = sync.OnceValues(func() (cel.Program, error) {
		return newProgram(env, checked, cel.EvalOptions(cel.OptExhaustiveEval, cel.OptTrackState), cel.CostLimit(maxCost), cel.CostTracking(costEstimator{}))
	})
	if out.program, err = newFastProgram(env, checked); err != nil {
		return nil, &TextError{Message: err.Error()}
	}
	return out, nil
}

// newProgram returns the program for an expression. It does not use OptOptimize, because the cost of the optimized `in`
// can't be tracked.
func newProgram(env *cel.Env, checked *cel.Ast, options ...cel.ProgramOption) (cel.Program, error) {
	return env.Program(checked, append(options, cel.OptimizeRegex(append(locatorOptimizations(), matchOptimization)...))...)
}

// newFastProgram is like [newProgram], but returns a faster program, which does not evaluate constant arguments of
// functions. Such a program can neither track its cost nor record values.
func newFastProgram(env *cel.Env, checked *cel.Ast) (cel.Program, error) {
	return env.Program(checked, cel.OptimizeRegex(append(fastLocators(), decimalOfConstant, matchOptimization)...))
}

// programFor returns the program that evaluates the condition for the given input. If the cost can't be high, it
// returns a program without cost tracking, because tracking takes several times as long as the evaluation itself.
func (c *Condition) programFor(in *Input) (cel.Program, error) {
	size := in.Args.bytes + len(in.URI) + len(in.Tool)
	if c.calls >= 0 && c.calls*size <= maxUntracked {
		return c.program, nil
	}
	return c.costly()
}

// WithExtra returns a condition without the checks of argument names. It can be evaluated even if the arguments contain
// other spellings of the keys that it reads, or arguments that are not in the tool's schema.
func (c *Condition) WithExtra() *Condition {
	out := *c
	out.reads, out.anyArgs = nil, true
	return &out
}

// Evaluate evaluates the condition. It returns an error if and only if the result is [Failed]. The evaluation fails if
// a key is missing, if types don't match, if it would take too long, or if checkKeys returns an error.
func (c *Condition) Evaluate(in *Input) (Result, error) {
	if c.program == nil {
		return Failed, errors.New("there is no condition")
	}
	if err := c.checkKeys(in); err != nil {
		return Failed, err
	}
	program, err := c.programFor(in)
	if err != nil {
		return Failed, err
	}
	values := newActivation(in)
	defer values.release()
	result, _, err := program.Eval(values)
	switch held, ok := result.(types.Bool); {
	case err != nil && values.readUnknown:
		return Unknown, nil
	case isTooCostly(err):
		return Failed, errTooCostly
	case err != nil:
		return Failed, errors.New(clip(err.Error()))
	case !ok:
		return Failed, fmt.Errorf("is %s, and neither true nor false", result.Type().TypeName())
	case bool(held):
		return True, nil
	default:
		return False, nil
	}
}

// errTooCostly means that the cost of an evaluation would exceed [maxCost].
var errTooCostly = errors.New("the arguments that it reads are so large that its evaluation would take too long")

func isTooCostly(err error) bool {
	cancelled, ok := errors.AsType[interpreter.EvalCancelledError](err)
	return ok && cancelled.Cause == interpreter.CostLimitExceeded
}

// checkKeys returns an error if the arguments contain a key that is not in the tool's schema. It also returns an error
// if the arguments contain another spelling of a key that the condition reads, because the server might read that key
// instead.
func (c *Condition) checkKeys(in *Input) error {
	if c.anyArgs || c.variables&VariableArgs == 0 || in.Unknown&VariableArgs != 0 || in.Args.values == nil {
		return nil
	}
	remaining := maxKeys
	if err := c.reads.check(in.Args.values, &remaining); err != nil {
		return err
	}
	return checkProperties(in.Args.values, in.Properties)
}

// clip shortens a string to [maxReason] bytes, and replaces unprintable characters.
func clip(reason string) string { return clipTo(reason, maxReason) }

func clipTo(text string, maxBytes int) string {
	if len(text) > maxBytes {
		for !utf8.RuneStart(text[maxBytes]) {
			maxBytes--
		}
		text = text[:maxBytes] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}
