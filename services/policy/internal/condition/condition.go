package condition

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

const (
	// MaxBytes is the largest length of a condition, in bytes.
	MaxBytes = 2048
	// maxReason is the largest length in bytes of the reason why a condition can't be evaluated. The reason may contain
	// arguments of any length.
	maxReason = 200
)

// A Condition is a compiled expression. It is immutable and safe for concurrent use. The zero Condition is never true.
type Condition struct {
	program cel.Program
	reads   *shape // nil if the arguments may contain other spellings of the keys
}

// Compile compiles a boolean expression. The error is a [*TextError].
func Compile(text string) (*Condition, error) {
	switch {
	case len(text) > MaxBytes:
		return nil, &TextError{Message: fmt.Sprintf("is longer than %d bytes", MaxBytes)}
	case strings.TrimSpace(text) == "":
		return nil, &TextError{Message: "is empty"}
	}
	env, err := environment()
	if err != nil {
		return nil, &TextError{Message: "the environment of conditions can't be created: " + err.Error()}
	}
	ast, issues := env.Compile(encodeIPIn(text))
	if issues != nil && len(issues.Errors()) > 0 {
		first := issues.Errors()[0]
		return nil, problemAt(first.Location, text, first.Message, "")
	}
	reads, problem := check(ast, text)
	if problem != nil {
		return nil, problem
	}
	cost, err := env.EstimateCost(ast, sizeEstimator{})
	if err != nil {
		return nil, &TextError{Message: "its cost can't be estimated: " + err.Error()}
	}
	if cost.Max > maxEstimate {
		return nil, &TextError{Message: "may take too long: it has too many nested loops over lists"}
	}
	// OptOptimize is not used, because its optimized form of `in` has no cost.
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(costEstimator{}), cel.OptimizeRegex(append(locatorOptimizations(), matchOptimization)...))
	if err != nil {
		return nil, &TextError{Message: err.Error()}
	}
	return &Condition{program: program, reads: newShape(reads)}, nil
}

// WithExtra returns a condition that can also be true for arguments with other spellings of the keys that it reads.
func (c *Condition) WithExtra() *Condition { return &Condition{program: c.program} }

// Holds reports whether the condition is true for arguments. It returns false and an error if the condition can't be
// evaluated: a key is missing, types don't fit, the evaluation would take too long, or the arguments contain another
// spelling of a key that the condition reads.
func (c *Condition) Holds(args Arguments) (bool, error) {
	if c.program == nil || args.values == nil {
		return false, errors.New("there is no condition, or there are no arguments")
	}
	left := maxKeys
	if err := c.reads.check(args.values, &left); err != nil {
		return false, err
	}
	result, _, err := c.program.Eval(map[string]any{"args": args.values})
	if err != nil {
		return false, errors.New(clip(err.Error()))
	}
	held, ok := result.(types.Bool)
	if !ok {
		return false, fmt.Errorf("is %s, and neither true nor false", result.Type().TypeName())
	}
	return bool(held), nil
}

// clip shortens a reason to [maxReason], and replaces characters that are not printable.
func clip(reason string) string {
	if len(reason) > maxReason {
		reason = reason[:maxReason] + "…"
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, reason)
}
