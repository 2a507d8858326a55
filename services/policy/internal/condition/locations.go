package condition

import (
	"maps"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// A location is a place in the arguments that an expression reads. Locations form a tree with the same structure as the
// arguments.
type location struct {
	// name is the last key in the path to the location. Elements of a list have the name of the list.
	name string
	// keys contains the locations of the values that the expression reads by name.
	keys map[string]*location
	// each is the location of all values that the expression reads in another way, for example by index or in a loop. It
	// is nil if there are no such values.
	each *location
}

// key returns the location of the value with the given key.
func (p *location) key(name string) *location {
	if p.keys == nil {
		p.keys = make(map[string]*location)
	}
	if p.keys[name] == nil {
		p.keys[name] = &location{name: name}
	}
	return p.keys[name]
}

// any returns the location that represents all values in an object or list.
func (p *location) any() *location {
	if p.each == nil {
		p.each = &location{name: p.name}
	}
	return p.each
}

// A variable describes the values that a loop variable can have. elements contains the locations of these values.
// keysOf contains the locations of objects whose keys are these values.
type variable struct{ elements, keysOf []*location }

// A tracer finds the locations in the arguments that an expression reads.
type tracer struct {
	// tested is called for each expression that tests a part of a string. The parameter from contains the locations from
	// which the operands of the expression can come.
	tested func(e ast.Expr, from []*location)
}

// trace returns the root locations of the arguments and of caller.chain, with the locations below them that the
// expression reads.
func trace(e ast.Expr, tested func(e ast.Expr, from []*location)) (args, chain *location) {
	args, chain = &location{}, &location{}
	t := tracer{tested: tested}
	t.visit(e, map[string]variable{
		"args": {elements: []*location{args}}, "caller.chain": {elements: []*location{chain}},
		"call.uri": {elements: []*location{{name: "uri"}}},
	})
	return args, chain
}

// visit returns the locations from which the value of an expression can come.
func (t *tracer) visit(e ast.Expr, scope map[string]variable) []*location {
	switch e.Kind() { //nolint:exhaustive // the other kinds read nothing
	case ast.IdentKind:
		return scope[e.AsIdent()].elements
	case ast.SelectKind:
		from := t.visit(e.AsSelect().Operand(), scope)
		if isCollectionLiteral(e.AsSelect().Operand()) {
			return from
		}
		return valuesOf(from, e.AsSelect().FieldName())
	case ast.ListKind:
		return t.visitAll(e.AsList().Elements(), scope)
	case ast.MapKind:
		var from []*location
		for _, entry := range e.AsMap().Entries() {
			t.visit(entry.AsMapEntry().Key(), scope)
			from = append(from, t.visit(entry.AsMapEntry().Value(), scope)...)
		}
		return from
	case ast.ComprehensionKind:
		return t.visitLoop(e.AsComprehension(), scope)
	case ast.CallKind:
		return t.visitCall(e, scope)
	}
	return nil
}

func (t *tracer) visitAll(all []ast.Expr, scope map[string]variable) []*location {
	var from []*location
	for _, e := range all {
		from = append(from, t.visit(e, scope)...)
	}
	return from
}

func (t *tracer) visitLoop(loop ast.ComprehensionExpr, outer map[string]variable) []*location {
	ranged := t.visit(loop.IterRange(), outer)
	elements := ranged
	if !isCollectionLiteral(loop.IterRange()) {
		elements = allValuesOf(ranged)
	}
	t.visit(loop.AccuInit(), outer)
	scope := maps.Clone(outer)
	scope[loop.AccuVar()] = variable{}
	scope[loop.IterVar()] = variable{elements: elements, keysOf: ranged}
	return t.visitAll([]ast.Expr{loop.LoopCondition(), loop.LoopStep(), loop.Result()}, scope)
}

func (t *tracer) visitCall(e ast.Expr, scope map[string]variable) []*location {
	call := e.AsCall()
	parts := call.Args()
	if call.IsMemberFunction() {
		parts = append([]ast.Expr{call.Target()}, parts...)
	}
	switch name := call.FunctionName(); name {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		from := t.visit(parts[0], scope)
		if isCollectionLiteral(parts[0]) {
			t.visit(parts[1], scope)
			return from
		}
		if key, ok := stringLiteral(parts[1]); ok {
			return valuesOf(from, key)
		}
		t.visit(parts[1], scope)
		return allValuesOf(from)
	case operators.In, operators.Equals, operators.NotEquals:
		from := t.visitAll(parts[1:], scope)
		if key, ok := stringLiteral(parts[0]); ok && name == operators.In {
			valuesOf(from, key)
		}
		t.visit(parts[0], scope)
		nameKeys(parts[0], parts[1], scope)
		nameKeys(parts[1], parts[0], scope)
		return nil
	case operators.Conditional:
		t.visit(parts[0], scope)
		return t.visitAll(parts[1:], scope)
	case "orValue":
		return t.visitAll(parts, scope)
	case "startsWith", "endsWith", "contains", "matches", operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		t.tested(e, t.visitAll(parts, scope))
		return nil
	}
	t.visitAll(parts, scope)
	return nil
}

// nameKeys is called for each comparison. One side may be a loop variable that iterates over keys, and the other side
// may contain string literals. If so, nameKeys records that the expression reads the keys with these names.
func nameKeys(compared, with ast.Expr, scope map[string]variable) {
	if compared.Kind() != ast.IdentKind {
		return
	}
	texts := []ast.Expr{with}
	if with.Kind() == ast.ListKind {
		texts = with.AsList().Elements()
	}
	for _, e := range texts {
		if key, ok := stringLiteral(e); ok {
			valuesOf(scope[compared.AsIdent()].keysOf, key)
		}
	}
}

func valuesOf(from []*location, key string) []*location {
	var out []*location
	for _, p := range from {
		out = append(out, p.key(key))
	}
	return out
}

func allValuesOf(from []*location) []*location {
	var out []*location
	for _, p := range from {
		out = append(out, p.any())
	}
	return out
}

// isCollectionLiteral reports whether an expression is a list or map literal. For such a literal, [tracer.visit]
// returns the locations of the elements.
func isCollectionLiteral(e ast.Expr) bool { return e.Kind() == ast.ListKind || e.Kind() == ast.MapKind }

func isStringLiteral(e ast.Expr) bool {
	_, ok := stringLiteral(e)
	return ok
}

// stringLiteral returns the value of a string literal. It returns false for other expressions.
func stringLiteral(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	text, ok := e.AsLiteral().(types.String)
	return string(text), ok
}
