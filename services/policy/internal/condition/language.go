package condition

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// allowedFunctions lists the functions of CEL's standard library that conditions may use. None of them returns a value
// larger than its arguments. Their results depend only on their arguments.
var allowedFunctions = []string{
	operators.LogicalNot, operators.LogicalAnd, operators.LogicalOr, operators.Conditional,
	operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.In, operators.Index, operators.NotStrictlyFalse, operators.Negate,
	"contains", "startsWith", "endsWith", "size",
}

// environment returns the CEL environment. It is created once, because that takes milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	subset := &env.LibrarySubset{IncludeMacros: []string{operators.Has, operators.All, operators.Exists}}
	for _, name := range allowedFunctions {
		subset.IncludeFunctions = append(subset.IncludeFunctions, env.NewFunction(name))
	}
	return cel.NewCustomEnv(append(append(decimals(), locators()...),
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.Variable("args", cel.MapType(cel.StringType, cel.DynType)),
		cel.OptionalTypes(),
		cel.Function("matches",
			cel.MemberOverload("text_matches", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType)),
		cel.ParserRecursionLimit(32),
	)...)
})

const (
	// maxPattern is the largest size of a regular expression, in instructions of its program. maxMatched is the largest
	// length of a string that is matched, in bytes. The time for a match is proportional to both.
	maxPattern = 200
	maxMatched = 8 << 10
)

// matchOptimization compiles each constant regular expression (RE2 syntax) of a condition once.
var matchOptimization = &interpreter.RegexOptimization{
	Function:   "matches",
	RegexIndex: 1,
	Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
		compiled, err := compilePattern(pattern)
		if err != nil {
			return nil, err
		}
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(values ...ref.Val) ref.Val {
			text, ok := values[0].(types.String)
			switch {
			case !ok:
				return types.MaybeNoSuchOverloadErr(values[0])
			case len(text) > maxMatched:
				return types.NewErr("matches: the text is longer than %d bytes", maxMatched)
			}
			return types.Bool(compiled.MatchString(string(text)))
		}), nil
	},
}

func compilePattern(pattern string) (*regexp.Regexp, error) {
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("the pattern %q: %w", pattern, err)
	}
	if instructions(parsed) > maxPattern {
		return nil, fmt.Errorf("the pattern %q is too large: use smaller counts, or a less exact pattern", pattern)
	}
	return regexp.Compile(pattern)
}

// instructions estimates the number of instructions of a pattern's program without compiling it. The result is at most
// maxPattern+1.
func instructions(pattern *syntax.Regexp) int {
	total := 1 + len(pattern.Rune)
	if pattern.Op == syntax.OpCharClass {
		total = 1
	}
	for _, sub := range pattern.Sub {
		total += instructions(sub)
	}
	if pattern.Op == syntax.OpRepeat {
		total *= max(1, pattern.Min, pattern.Max)
	}
	return min(total, maxPattern+1)
}
