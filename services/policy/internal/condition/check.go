package condition

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // embeds time zones for systems without a time zone database

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// check returns the locations in the arguments that an expression reads. It refuses expressions that are valid in CEL
// but that users could misread. Examples are numbers that would be rounded, comparisons that can never be true,
// patterns that are not constant, and tests that treat paths or URLs as plain strings.
func check(checked *cel.Ast, text string) (*location, *TextError) {
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
		switch e.Kind() { //nolint:exhaustive // the other kinds need no check
		case ast.LiteralKind:
			if number, ok := e.AsLiteral().(types.Double); ok {
				refuse(e, "numbers with a point or an exponent are rounded", "write decimal(\""+plain(number)+"\"), and decimal(…) on the other side too")
			}
		case ast.StructKind:
			refuse(e, "creates a message, which is not supported in conditions", "compare values, for example args.amount == 5")
		case ast.ListKind:
			if len(e.AsList().OptionalIndices()) > 0 {
				refuse(e, "has an optional element, which is not supported in conditions", "write the element without ?")
			}
			checkMixed(tree, e.AsList().Elements(), refuse)
		case ast.MapKind:
			checkMap(tree, e.AsMap(), refuse)
		case ast.CallKind:
			checkCall(tree, e, refuse)
		}
	}))
	args, chain := trace(tree.Expr(), checkTexts(refuse))
	for name := range chain.any().keys {
		if !slices.Contains(callerFields, name) {
			refuse(tree.Expr(), fmt.Sprintf("a principal of caller.chain has no %q", name), "it has subject, agent, tenant, groups, issuer, client and scopes")
		}
	}
	return args, found
}

// refuseFunc records a problem in an expression and a suggestion for correcting it. Only the first problem is recorded.
type refuseFunc func(e ast.Expr, message, suggestion string)

func checkCall(tree *ast.AST, e ast.Expr, refuse refuseFunc) {
	call := e.AsCall()
	switch name := call.FunctionName(); name {
	case operators.Equals, operators.NotEquals, operators.In:
		if one, other := call.Args()[0], call.Args()[1]; hasDecimal(tree.GetType(one.ID())) != hasDecimal(tree.GetType(other.ID())) {
			refuse(e, "compares a decimal with something else, to which no decimal is equal", "make both sides decimals, for example decimal(args.amount)")
		}
	case operators.Conditional:
		checkMixed(tree, call.Args()[1:], refuse)
	case "orValue":
		checkMixed(tree, append([]ast.Expr{call.Target()}, call.Args()...), refuse)
	case "matches":
		checkPattern(call.Args()[len(call.Args())-1], refuse)
	case "decimal":
		if literal := call.Args()[0]; literal.Kind() == ast.LiteralKind {
			if err, bad := toDecimal(literal.AsLiteral()).(*types.Err); bad {
				refuse(literal, err.Error(), "")
			}
		}
	case timestampFunction:
		checkTimestamp(call.Args()[0], refuse)
	case operators.OptSelect:
	default:
		if call.IsMemberFunction() && strings.HasPrefix(name, "get") && len(call.Args()) == 1 {
			checkTimeZone(call.Args()[0], refuse)
		}
		if f, ok := locatorFunctions()[name]; ok {
			checkLocator(f, call.Args(), refuse)
		} else if !slices.Contains(allowedFunctions, name) {
			refuse(e, "conditions do not have "+name, "")
		}
	}
}

// checkTimestamp refuses an argument of the function timestamp unless it is a constant RFC 3339 string.
func checkTimestamp(text ast.Expr, refuse refuseFunc) {
	literal, ok := stringLiteral(text)
	if !ok {
		refuse(text, "the argument of timestamp is not a constant string", `write timestamp("2030-01-31T00:00:00Z")`)
	} else if _, err := time.Parse(time.RFC3339, literal); err != nil {
		refuse(text, strconv.Quote(literal)+" is not a time", `write timestamp("2030-01-31T00:00:00Z")`)
	}
}

// checkTimeZone refuses a time zone unless it is a constant IANA time zone name or a constant offset.
func checkTimeZone(zone ast.Expr, refuse refuseFunc) {
	literal, ok := stringLiteral(zone)
	if !ok {
		refuse(zone, "the time zone is not a constant string", `write for example now.getHours("Europe/Berlin")`)
		return
	}
	_, err := time.LoadLocation(literal)
	if literal == "" || literal == "Local" || err != nil && !zoneOffset.MatchString(literal) {
		refuse(zone, strconv.Quote(literal)+" is not a time zone", `write for example "Europe/Berlin", "UTC" or "+02:00"`)
	}
}

// zoneOffset matches the offset of a time zone.
var zoneOffset = regexp.MustCompile(`^[+-][0-9]{2}:[0-9]{2}$`)

func checkPattern(pattern ast.Expr, refuse refuseFunc) {
	if pattern.Kind() != ast.LiteralKind {
		refuse(pattern, "the pattern is not a constant", "write the pattern out")
		return
	}
	if _, err := compilePattern(string(pattern.AsLiteral().(types.String))); err != nil {
		refuse(pattern, err.Error(), "")
	}
}

func checkMap(tree *ast.AST, m ast.MapExpr, refuse refuseFunc) {
	var values []ast.Expr
	for _, entry := range m.Entries() {
		e := entry.AsMapEntry()
		if e.IsOptional() {
			refuse(e.Key(), "has an optional entry, which is not supported in conditions", "write the entry without ?")
		}
		if hasDecimal(tree.GetType(e.Key().ID())) {
			refuse(e.Key(), "a decimal can't be a key", "")
		}
		values = append(values, e.Value())
	}
	checkMixed(tree, values, refuse)
}

// checkMixed refuses a mixture of decimals and other values, because no comparison works for both.
func checkMixed(tree *ast.AST, parts []ast.Expr, refuse refuseFunc) {
	for _, part := range parts {
		if hasDecimal(tree.GetType(part.ID())) != hasDecimal(tree.GetType(parts[0].ID())) {
			refuse(part, "can be a decimal or a value of another type", "make all of them decimals")
		}
	}
}

// hasDecimal reports whether t is the decimal type or has a type parameter that contains it.
func hasDecimal(t *types.Type) bool {
	if t.IsExactType(decimalType) {
		return true
	}
	return slices.ContainsFunc(t.Parameters(), hasDecimal)
}
