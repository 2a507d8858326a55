package condition

import (
	"cmp"
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// An ArgumentRead describes how a condition reads an argument, which is a member of args.
type ArgumentRead struct {
	Name string
	// Guarded is true if the condition checks that the argument is present, for example with args.?x or has(args.x).
	Guarded bool
	// Uses contains the comparisons and function calls that accept only certain types for the argument.
	Uses []ArgumentUse
}

// An ArgumentUse is a comparison with an argument, or a function call to which an argument is passed.
type ArgumentUse struct {
	// Text is the comparison or function call in the syntax of conditions.
	Text string
	// Types contains the JSON Schema types of the values that the comparison or function accepts.
	Types []string
}

// Reads returns the arguments that the condition reads by name, sorted by name.
func (c *Condition) Reads() []ArgumentRead {
	if c.ast == nil {
		return nil
	}
	tree := c.ast.NativeRep()
	t := tracedEvaluation{tree: tree}
	found := make(map[string]*ArgumentRead)
	read := func(e ast.Expr) *ArgumentRead {
		name, guarded, ok := readArgument(e)
		if !ok {
			return nil
		}
		if found[name] == nil {
			found[name] = &ArgumentRead{Name: name}
		}
		found[name].Guarded = found[name].Guarded || guarded
		return found[name]
	}
	ast.PreOrderVisit(tree.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		read(e)
		for _, use := range usesIn(e) {
			if argument := read(use.of); argument != nil && len(use.types) > 0 {
				argument.Uses = append(argument.Uses, ArgumentUse{Text: t.text(e), Types: use.types})
			}
		}
	}))
	out := make([]ArgumentRead, 0, len(found))
	for _, one := range found {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b ArgumentRead) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// readArgument returns the name of the argument that an expression reads. guarded is true if the expression also works
// without the argument. ok is false if the expression reads no argument.
func readArgument(e ast.Expr) (name string, guarded, ok bool) {
	switch e.Kind() { //nolint:exhaustive // the other kinds read no argument
	case ast.SelectKind:
		return e.AsSelect().FieldName(), e.AsSelect().IsTestOnly(), isArgs(e.AsSelect().Operand())
	case ast.CallKind:
		call := e.AsCall()
		switch call.FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			name, ok = stringLiteral(call.Args()[1])
			return name, call.FunctionName() != operators.Index, ok && isArgs(call.Args()[0])
		case operators.In:
			name, ok = stringLiteral(call.Args()[0])
			return name, true, ok && isArgs(call.Args()[1])
		}
	}
	return "", false, false
}

func isArgs(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == "args" }

// use is a part of an expression that must have one of the given types.
type use struct {
	of    ast.Expr
	types []string
}

// usesIn returns the parts of an expression that are compared with literals or passed to functions.
func usesIn(e ast.Expr) []use {
	if e.Kind() != ast.CallKind {
		return nil
	}
	call := e.AsCall()
	parts := call.Args()
	switch name := call.FunctionName(); name {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return []use{{withoutDefault(parts[0]), literalTypes(parts[1])}, {withoutDefault(parts[1]), literalTypes(parts[0])}}
	case operators.In:
		return []use{{withoutDefault(parts[0]), literalTypes(parts[1])}}
	case "contains", "startsWith", "endsWith", "matches":
		return []use{{withoutDefault(call.Target()), []string{"string"}}}
	case "decimal":
		return []use{{withoutDefault(parts[0]), []string{"number", "integer", "string"}}}
	case "orValue":
		return []use{{call.Target(), literalTypes(parts[0])}}
	case operators.LogicalNot, operators.LogicalAnd, operators.LogicalOr:
		var out []use
		for _, part := range parts {
			if _, guarded, _ := readArgument(part); !guarded { // has(args.x) is itself boolean
				out = append(out, use{part, []string{"boolean"}})
			}
		}
		return out
	default:
		if _, ok := locatorFunctions()[name]; ok && len(parts) > 0 {
			return []use{{withoutDefault(parts[0]), []string{"string"}}}
		}
	}
	return nil
}

// withoutDefault returns x if the expression is x.orValue(y). Otherwise it returns the expression itself.
func withoutDefault(e ast.Expr) ast.Expr {
	if e.Kind() == ast.CallKind && e.AsCall().FunctionName() == "orValue" {
		return e.AsCall().Target()
	}
	return e
}

// literalTypes returns the JSON Schema types of the values that can be equal to a literal. For a list of literals, it
// returns the types of values that can be equal to an element. For other expressions, it returns nil.
func literalTypes(e ast.Expr) []string {
	switch e.Kind() { //nolint:exhaustive // expressions of other kinds are not literals
	case ast.ListKind:
		var out []string
		for _, element := range e.AsList().Elements() {
			of := literalTypes(element)
			if of == nil {
				return nil
			}
			out = append(out, of...)
		}
		return out
	case ast.LiteralKind:
		switch e.AsLiteral().(type) {
		case types.String:
			return []string{"string"}
		case types.Int, types.Uint:
			return []string{"integer", "number"}
		case types.Bool:
			return []string{"boolean"}
		case types.Null:
			return []string{"null"}
		}
	}
	return nil
}
