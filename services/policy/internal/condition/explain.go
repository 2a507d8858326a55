package condition

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
	"cel.dev/cel-go/parser"
)

const (
	// maxShown limits the length of a value in an explanation, in bytes.
	maxShown = 60
	// maxValues limits the number of values and the number of comparisons in an explanation.
	maxValues = 8
)

// An Explanation describes how a condition was evaluated.
type Explanation struct {
	// Result is the result of the evaluation.
	Result Result
	// Err is nil unless Result is [Failed]. It says which part of the condition can't be evaluated, and with which values.
	Err error
	// Values contains values that the condition read, for example `args.amount is 150`. It has at most 8 elements.
	Values []string
	// Deciding contains the comparisons that decide the result: if any one of them had the opposite result, the condition
	// would too. Each comparison is written with its opposite result, for example `decimal(args.amount) > 100 were false`.
	// Deciding has at most 8 elements. It is empty unless Result is [True] or [False].
	Deciding []string
}

// Explain evaluates the condition like [Condition.Evaluate] and describes the evaluation. It takes several times as
// long as Evaluate.
func (c *Condition) Explain(in *Input) Explanation {
	result, err := c.Evaluate(in)
	out := Explanation{Result: result, Err: err}
	if c.ast == nil || c.checkKeys(in) != nil { // the traced program does not check the keys
		return out
	}
	program, programErr := c.traced()
	if programErr != nil {
		return out
	}
	_, details, _ := program.Eval(&activation{Input: in})
	if details == nil || details.State() == nil {
		return out
	}
	t := tracedEvaluation{tree: c.ast.NativeRep(), state: details.State()}
	out.Values = t.values()
	switch result {
	case Failed:
		if why := t.failure(t.tree.Expr()); why != "" {
			out.Err = errors.New(clip(why))
		}
	case True, False:
		out.Deciding = t.deciding(result == True)
	case Unknown:
	}
	return out
}

// A tracedEvaluation is an evaluation whose intermediate values are known.
type tracedEvaluation struct {
	tree  *ast.AST
	state interpreter.EvalState
}

// text returns an expression in the syntax of conditions.
func (t *tracedEvaluation) text(e ast.Expr) string {
	text, err := parser.Unparse(e, t.tree.SourceInfo())
	if err != nil {
		return "an expression"
	}
	return decodeIPIn(text)
}

// values describes the values of the variables and arguments that the expression reads.
func (t *tracedEvaluation) values() (out []string) {
	seen := make(map[string]bool)
	visitReads(t.tree.Expr(), func(e ast.Expr) {
		value, known := t.state.Value(e.ID())
		text := t.text(e)
		if _, failed := value.(*types.Err); !known || failed || seen[text] || len(out) == maxValues {
			return
		}
		seen[text] = true
		out = append(out, text+" is "+shown(value))
	})
	return out
}

// visitReads calls visit for each expression that reads a variable or a part of the arguments. It visits neither the
// parts of such an expression nor the bodies of loops.
func visitReads(e ast.Expr, visit func(ast.Expr)) {
	if isRead(e) {
		visit(e)
		return
	}
	if e.Kind() == ast.ComprehensionKind {
		visitReads(e.AsComprehension().IterRange(), visit)
		return
	}
	for _, part := range partsOf(e) {
		visitReads(part, visit)
	}
}

// isRead reports whether an expression is a variable, or reads a value in a variable through fields or constant
// indexes.
func isRead(e ast.Expr) bool {
	switch e.Kind() { //nolint:exhaustive // the other kinds compute something
	case ast.IdentKind:
		_, known := variableGroups[e.AsIdent()]
		return known
	case ast.SelectKind:
		return !e.AsSelect().IsTestOnly() && isRead(e.AsSelect().Operand())
	case ast.CallKind:
		call := e.AsCall()
		return call.FunctionName() == operators.Index && isRead(call.Args()[0]) && call.Args()[1].Kind() == ast.LiteralKind
	}
	return false
}

// partsOf returns the direct parts of an expression.
func partsOf(e ast.Expr) []ast.Expr {
	switch e.Kind() { //nolint:exhaustive // the other kinds have no parts
	case ast.SelectKind:
		return []ast.Expr{e.AsSelect().Operand()}
	case ast.CallKind:
		call := e.AsCall()
		if call.IsMemberFunction() {
			return append([]ast.Expr{call.Target()}, call.Args()...)
		}
		return call.Args()
	case ast.ListKind:
		return e.AsList().Elements()
	case ast.MapKind:
		var out []ast.Expr
		for _, entry := range e.AsMap().Entries() {
			out = append(out, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
		return out
	case ast.ComprehensionKind:
		loop := e.AsComprehension()
		return []ast.Expr{loop.IterRange(), loop.LoopStep()}
	}
	return nil
}

// failure describes the innermost part of an expression that can't be evaluated, or returns "" if every part can be
// evaluated.
func (t *tracedEvaluation) failure(e ast.Expr) string {
	parts := partsOf(e)
	if isRead(e) {
		parts = nil
	}
	for _, part := range parts {
		if why := t.failure(part); why != "" {
			return why
		}
	}
	value, _ := t.state.Value(e.ID())
	failed, ok := value.(*types.Err)
	switch {
	case !ok:
		return ""
	case strings.Contains(failed.Error(), "no such key") && isRead(e):
		return t.text(e) + " is missing"
	case strings.Contains(failed.Error(), "no such overload"):
		return t.text(e) + " does not accept " + t.operands(parts)
	default:
		_, why, _ := strings.Cut(failed.Error(), ": ") // remove the name of the function
		return t.text(e) + ": " + strings.ReplaceAll(cmp.Or(why, failed.Error()), "the text one of", "one of")
	}
}

// operands describes the values of the operands that are not literals.
func (t *tracedEvaluation) operands(parts []ast.Expr) string {
	var out []string
	for _, part := range parts {
		if value, known := t.state.Value(part.ID()); known && part.Kind() != ast.LiteralKind {
			out = append(out, t.text(part)+", which is "+shown(value))
		}
	}
	if len(out) == 0 {
		return "its operands"
	}
	return strings.Join(out, ", and ")
}

// deciding returns the comparisons that decide the result of the condition. If any one of them had the opposite result,
// the condition would also have the opposite result.
func (t *tracedEvaluation) deciding(result bool) (out []string) {
	var leaves []ast.Expr
	visitLeaves(t.tree.Expr(), func(e ast.Expr) { leaves = append(leaves, e) })
	for _, leaf := range leaves {
		value, _ := t.state.Value(leaf.ID())
		held, known := value.(types.Bool)
		if !known || len(out) == maxValues {
			continue
		}
		changed, ok := t.assume(t.tree.Expr(), leaf.ID(), !bool(held))
		if text := t.text(leaf) + " were " + strconv.FormatBool(!bool(held)); ok && changed != result && !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// assume returns the value that an expression would have if the comparison with the given id had the given value. Its
// second result is false if the expression could not be evaluated with that value.
func (t *tracedEvaluation) assume(e ast.Expr, id int64, value bool) (result, ok bool) {
	if e.ID() == id {
		return value, true
	}
	if !isBoolean(e) {
		known, _ := t.state.Value(e.ID())
		held, ok := known.(types.Bool)
		return bool(held), ok
	}
	call := e.AsCall()
	first, ok := t.assume(call.Args()[0], id, value)
	switch call.FunctionName() {
	case operators.LogicalNot:
		return !first, ok
	case operators.Conditional:
		if !ok {
			return false, false
		}
		if first {
			return t.assume(call.Args()[1], id, value)
		}
		return t.assume(call.Args()[2], id, value)
	}
	second, ok2 := t.assume(call.Args()[1], id, value)
	decides := call.FunctionName() == operators.LogicalOr // an operand with the value decides determines the result alone
	if ok && first == decides || ok2 && second == decides {
		return decides, true
	}
	return !decides, ok && ok2
}

// visitLeaves calls visit for the largest parts of an expression that are not built with &&, ||, ! or ?:.
func visitLeaves(e ast.Expr, visit func(ast.Expr)) {
	if !isBoolean(e) {
		visit(e)
		return
	}
	for _, part := range e.AsCall().Args() {
		visitLeaves(part, visit)
	}
}

// isBoolean reports whether an expression is built with &&, ||, ! or ?:.
func isBoolean(e ast.Expr) bool {
	if e.Kind() != ast.CallKind {
		return false
	}
	return slices.Contains([]string{operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional}, e.AsCall().FunctionName())
}

// shown formats a value for explanations.
func shown(value ref.Val) string {
	switch value := value.(type) {
	case types.String:
		return "the string " + strconv.Quote(clipTo(string(value), maxShown))
	case types.Int, types.Uint, types.Bool:
		return fmt.Sprint(value.Value())
	case types.Null:
		return "null"
	case decimal:
		return clipTo(value.value.String(), maxShown)
	case types.Timestamp:
		return value.UTC().Format("2006-01-02T15:04:05Z")
	case *object:
		return "an object"
	case traits.Lister:
		return fmt.Sprintf("a list of %v elements", value.Size().Value())
	case *types.Err:
		return "not available"
	default:
		return "a " + value.Type().TypeName()
	}
}
