package condition

import (
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// check refuses what CEL allows and would be misread: expressions that are not known to
// be true or false, numbers that would be rounded, comparisons that can never be true,
// and patterns that come from arguments.
func check(checked *cel.Ast, text string) *TextError {
	tree := checked.NativeRep()
	var found *TextError
	refuse := func(e ast.Expr, message, suggestion string) {
		if found == nil {
			found = problemAt(tree.SourceInfo().GetStartLocation(e.ID()), text, message, suggestion)
		}
	}
	if t := checked.OutputType(); !t.IsExactType(cel.BoolType) {
		refuse(tree.Expr(), "is not known to be true or false", "compare it, for example args.draft == true")
	}
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() { //nolint:exhaustive // the others are harmless
		case ast.LiteralKind:
			if number, ok := e.AsLiteral().(types.Double); ok {
				refuse(e, "numbers with a point or an exponent are rounded", "write decimal(\""+plain(number)+"\"), and decimal(…) on the other side too")
			}
		case ast.StructKind:
			refuse(e, "makes a message, which conditions have no use for", "")
		case ast.CallKind:
			checkCall(tree, e, refuse)
		}
	}))
	return found
}

func checkCall(tree *ast.AST, e ast.Expr, refuse func(e ast.Expr, message, suggestion string)) {
	call := e.AsCall()
	switch call.FunctionName() {
	case operators.Equals, operators.NotEquals, operators.In:
		if one, other := call.Args()[0], call.Args()[1]; hasDecimal(tree.GetType(one.ID())) != hasDecimal(tree.GetType(other.ID())) {
			refuse(e, "compares a decimal with something else, to which no decimal is equal", "make both sides decimals, for example decimal(args.amount)")
		}
	case "matches":
		pattern := call.Args()[len(call.Args())-1]
		if pattern.Kind() != ast.LiteralKind {
			refuse(pattern, "the pattern is no constant", "write the pattern out")
			return
		}
		if _, err := compilePattern(string(pattern.AsLiteral().(types.String))); err != nil {
			refuse(pattern, err.Error(), "")
		}
	case "decimal":
		if literal := call.Args()[0]; literal.Kind() == ast.LiteralKind {
			if err, bad := toDecimal(literal.AsLiteral()).(*types.Err); bad {
				refuse(literal, err.Error(), "")
			}
		}
	}
}

// hasDecimal tells whether a type is that of decimals, or of what holds them.
func hasDecimal(t *types.Type) bool {
	if t.IsExactType(decimalType) {
		return true
	}
	return slices.ContainsFunc(t.Parameters(), hasDecimal)
}
