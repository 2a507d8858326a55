package condition

import (
	"cmp"
	"fmt"
	"regexp"
	"regexp/syntax"
	"slices"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/env"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// allowedFunctions contains the functions in CEL's standard library that conditions may use. The result of each
// function depends only on its arguments and is never larger than the arguments.
var allowedFunctions = []string{
	operators.LogicalNot, operators.LogicalAnd, operators.LogicalOr, operators.Conditional,
	operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals,
	operators.In, operators.Index, operators.NotStrictlyFalse, operators.Negate,
	"contains", "startsWith", "endsWith", "size",
	timestampFunction,
	"getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear", "getHours", "getMinutes", "getSeconds",
}

// timestampFunction converts an RFC 3339 string to a timestamp.
const timestampFunction = "timestamp"

// variableGroups contains the group of each variable. The variables whose names start with "call." have no group,
// because their values are always known.
var variableGroups = map[string]Variables{
	"args":        VariableArgs,
	"call.server": 0, "call.tool": 0, "call.method": 0, "call.uri": 0,
	"caller.subject": VariableCaller, "caller.agent": VariableCaller, "caller.tenant": VariableCaller,
	"caller.groups": VariableCaller, "caller.chain": VariableCaller,
	"caller.issuer": VariableCaller, "caller.client": VariableCaller, "caller.scopes": VariableCaller,
	"tool.category": VariableTool, "tool.risk": VariableTool, "tool.tags": VariableTool, "tool.known": VariableTool,
	"now": VariableNow,
}

// variableTypes returns the types of the variables that are not strings.
func variableTypes() map[string]*cel.Type {
	object := cel.MapType(cel.StringType, cel.DynType)
	return map[string]*cel.Type{
		"args": object, "caller.groups": cel.ListType(cel.StringType), "caller.scopes": cel.ListType(cel.StringType),
		"caller.chain": cel.ListType(object),
		"tool.tags":    cel.ListType(cel.StringType), "tool.known": cel.BoolType, "now": cel.TimestampType,
	}
}

func variableOptions() []cel.EnvOption {
	var out []cel.EnvOption
	known := variableTypes()
	for name := range variableGroups {
		out = append(out, cel.Variable(name, cmp.Or(known[name], cel.StringType)))
	}
	return out
}

// variablesOf returns the groups of the variables that an expression reads.
func variablesOf(checked *cel.Ast) (out Variables) {
	ast.PreOrderVisit(checked.NativeRep().Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.IdentKind {
			out |= variableGroups[e.AsIdent()]
		}
	}))
	return out
}

// environment returns the CEL environment. It is created only once, because this takes several milliseconds.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	subset := &env.LibrarySubset{IncludeMacros: []string{operators.Has, operators.All, operators.Exists}}
	for _, name := range allowedFunctions {
		subset.IncludeFunctions = append(subset.IncludeFunctions, env.NewFunction(name))
	}
	return cel.NewCustomEnv(append(slices.Concat(decimals(), locators(), variableOptions()),
		cel.StdLib(cel.StdLibSubset(subset)),
		cel.OptionalTypes(),
		cel.Function("matches",
			cel.MemberOverload("text_matches", []*cel.Type{cel.StringType, cel.StringType}, cel.BoolType)),
		cel.ParserRecursionLimit(32),
	)...)
})

const (
	// maxPattern limits the size of a regular expression, measured in instructions after compilation. maxMatched limits
	// the length in bytes of the strings that are matched. The time for a match is proportional to the product of the two.
	maxPattern = 200
	maxMatched = 8 << 10
)

// matchOptimization makes CEL compile each constant regular expression (RE2 syntax) in a condition only once.
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

// instructions estimates the number of instructions of a compiled pattern without compiling it. It returns at most
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
