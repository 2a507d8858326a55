package condition

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/checker"
	"cel.dev/cel-go/common/types"
)

const (
	// MaxBytes bounds the text of a condition.
	MaxBytes = 2048
	// maxCost bounds what a condition may cost, in the units of CEL: about one for
	// each operation, and for each ten characters of a text that it goes through. CEL
	// counts in a time that grows with the square of the steps of a loop, so that more
	// would be seconds.
	maxCost = 20_000
	// assumedSize is how many entries, or characters, each list, map and text of the
	// arguments is taken to have where the cost is estimated.
	assumedSize = 30
)

// A Condition is a compiled expression. It is immutable and safe for concurrent use.
// The zero Condition never holds.
type Condition struct {
	program cel.Program
}

// environment is what expressions know, made once: it takes milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(append(decimals(),
		cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
		cel.OptionalTypes(),
		cel.ExtendedValidations(),
		cel.ParserRecursionLimit(32),
	)...)
})

// Compile reads an expression that is true or false. The error says in one line what
// is wrong with it, and at which character.
func Compile(text string) (*Condition, error) {
	switch {
	case len(text) > MaxBytes:
		return nil, fmt.Errorf("is longer than %d bytes", MaxBytes)
	case strings.TrimSpace(text) == "":
		return nil, errors.New("is empty")
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("make the environment of conditions: %w", err)
	}
	ast, issues := env.Compile(text)
	if issues != nil && len(issues.Errors()) > 0 {
		return nil, describe(issues.Errors()[0], text)
	}
	if t := ast.OutputType(); !t.IsExactType(cel.BoolType) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("is %s, and must be true or false", t)
	}
	cost, err := env.EstimateCost(ast, sizes{})
	if err != nil {
		return nil, fmt.Errorf("estimate its cost: %w", err)
	}
	if cost.Max > maxCost {
		return nil, errors.New("may take too long: it goes through lists in loops in loops")
	}
	program, err := env.Program(ast, cel.CostLimit(maxCost), cel.EvalOptions(cel.OptOptimize))
	if err != nil {
		return nil, fmt.Errorf("compile it: %w", err)
	}
	return &Condition{program: program}, nil
}

// describe puts an error of CEL into one line.
func describe(problem *cel.Error, text string) error {
	message, _, _ := strings.Cut(strings.ReplaceAll(problem.Message, " (in container '')", ""), "\n")
	at := problem.Location
	switch {
	case at.Line() < 1 || at.Column() < 0:
		return errors.New(message)
	case strings.Contains(strings.TrimRight(text, "\n"), "\n"):
		return fmt.Errorf("line %d, character %d: %s", at.Line(), at.Column()+1, message)
	default:
		return fmt.Errorf("character %d: %s", at.Column()+1, message)
	}
}

// Holds tells whether the condition is true for arguments. An error says why it can
// not be told: a key is missing, types don't fit, or it would take too long; then it
// does not hold.
func (c *Condition) Holds(args Arguments) (bool, error) {
	if c.program == nil || args.values == nil {
		return false, errors.New("there is nothing to evaluate")
	}
	result, _, err := c.program.Eval(map[string]any{"args": args.values})
	if err != nil {
		return false, err
	}
	held, ok := result.(types.Bool)
	if !ok {
		return false, fmt.Errorf("is %s, and neither true nor false", result.Type().TypeName())
	}
	return bool(held), nil
}

// sizes estimates for arguments of an ordinary size.
type sizes struct{}

// EstimateSize implements checker.CostEstimator.
func (sizes) EstimateSize(checker.AstNode) *checker.SizeEstimate {
	return &checker.SizeEstimate{Max: assumedSize}
}

// EstimateCallCost implements checker.CostEstimator.
func (sizes) EstimateCallCost(string, string, *checker.AstNode, []checker.AstNode) *checker.CallEstimate {
	return nil
}
