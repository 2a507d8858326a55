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
	// MaxBytes bounds the text of a condition.
	MaxBytes = 2048
	// maxReason bounds the reason why a condition can't be evaluated, because it may repeat arguments.
	maxReason = 200
)

// A Condition is a compiled expression. It is immutable and safe for concurrent use.
// The zero Condition never holds.
type Condition struct {
	program cel.Program
	reads   *shape // nil if other spellings of keys are accepted
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
		return nil, &TextError{Message: "the environment of conditions can't be made: " + err.Error()}
	}
	ast, issues := env.Compile(readable(text))
	if issues != nil && len(issues.Errors()) > 0 {
		first := issues.Errors()[0]
		return nil, problemAt(first.Location, text, first.Message, "")
	}
	reads, problem := check(ast, text)
	if problem != nil {
		return nil, problem
	}
	cost, err := env.EstimateCost(ast, sizes{})
	if err != nil {
		return nil, &TextError{Message: "its cost can't be estimated: " + err.Error()}
	}
	if cost.Max > maxEstimate {
		return nil, &TextError{Message: "may take too long: it goes through lists in loops in loops"}
	}
	// Without OptOptimize, because its optimized form of `in` has no cost.
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.CostTracking(prices{}), cel.OptimizeRegex(append(comparing(), matching)...))
	if err != nil {
		return nil, &TextError{Message: err.Error()}
	}
	return &Condition{program: program, reads: newShape(reads)}, nil
}

// WithExtra returns the condition without the check for other spellings of the keys that it reads.
func (c *Condition) WithExtra() *Condition { return &Condition{program: c.program} }

// Holds reports whether the condition is true for arguments. It returns false and an error if the condition can't be
// evaluated: a key is missing, a key could be taken for one that the condition reads, types don't fit, or it would
// take too long.
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

// clip shortens a reason, and replaces characters that are not printable.
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
