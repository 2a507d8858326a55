package dialect

import (
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
)

// A side is the direction in which a translated expression may differ from the original condition.
type side bool

const (
	// atMost means that the expression is true only if the condition is true. The expression may be false although the
	// condition is true.
	atMost side = false
	// atLeast means that if the condition is true, the expression is true or can't be evaluated. The expression may be
	// true although the condition is false.
	atLeast side = true
)

// An untranslatable error is the reason why a condition can't be translated.
type untranslatable struct{ at, message, suggestion string }

// Error implements error.
func (u *untranslatable) Error() string { return u.message }

// expression translates a condition into an expression in the condition language. Its errors are of type
// [*untranslatable].
func expression(c *conditionForm, to side) (string, error) {
	fail := func(message, suggestion string) (string, error) {
		return "", &untranslatable{c.at, message, suggestion}
	}
	if suggestion, ok := checkOp(c.Op); !ok {
		return fail(fmt.Sprintf("%q is not an operator", c.Op), suggestion)
	}
	if strings.HasPrefix(c.Path, "state.") {
		return fail("reads a counter of another rule", "write a limit of its own")
	}
	path, ok := strings.CutPrefix(c.Path, "args.")
	keys := strings.Split(path, ".")
	if !ok || slices.Contains(keys, "") {
		return fail(fmt.Sprintf("%q is not the path of an argument", c.Path), "write args.NAME")
	}
	of := argument{keys: keys}
	v := literalOf(&c.Value)
	if c.Op == "exists" {
		if v.kind != boolValue {
			return fail("exists needs true or false", "")
		}
		return of.exists(v.truth), nil
	}
	if test := test(c.Op, of.read(), &v, to); test != "" {
		return of.present() + " && " + test, nil
	}
	return fail(fmt.Sprintf("the operator %s with this value can't be translated exactly", c.Op), "write a condition for it")
}

// An argument is a value in the arguments of a call. keys is the path to the value.
type argument struct{ keys []string }

// identifier matches the keys that an expression can read with a dot, but also keywords.
var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

var keywords = []string{
	"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "package", "namespace",
	"null", "return", "true", "var", "void", "while",
}

func isIdentifier(key string) bool {
	return identifier.MatchString(key) && !slices.Contains(keywords, key)
}

// upTo returns the expression that reads the value at the first n keys of the path.
func (a argument) upTo(n int) string {
	parts := []string{"args"}
	for _, key := range a.keys[:n] {
		if isIdentifier(key) {
			parts = append(parts, "."+key)
		} else {
			parts = append(parts, "["+strconv.Quote(key)+"]")
		}
	}
	return strings.Join(parts, "")
}

func (a argument) read() string { return a.upTo(len(a.keys)) }

// guards returns one expression for each key in the path. The expression is true if the key is present.
func (a argument) guards() (out []string) {
	for i, key := range a.keys {
		if isIdentifier(key) {
			out = append(out, "has("+a.upTo(i+1)+")")
		} else {
			out = append(out, strconv.Quote(key)+" in "+a.upTo(i))
		}
	}
	return out
}

func (a argument) present() string { return strings.Join(a.guards(), " && ") }

// exists returns an expression that is true if the argument is present and not null, or the opposite expression if
// wanted is false.
func (a argument) exists(wanted bool) string {
	if wanted {
		return a.present() + " && " + a.read() + " != null"
	}
	guards := a.guards()
	for i, guard := range guards {
		guards[i] = "!(" + guard + ")"
	}
	return "(" + strings.Join(guards, " || ") + " || " + a.read() + " == null)"
}

// test translates the comparison of the expression x with the value v. The caller of test must ensure that the value of
// x is present. test returns "" if the comparison can't be translated.
func test(op, x string, v *literal, to side) string {
	switch op {
	case "eq":
		return equal(x, v, to)
	case "neq":
		return differs(x, v, to)
	case "in", "not_in":
		return member(op == "in", x, v, to)
	case "regex":
		return matches(x, v)
	case "contains":
		return contains(x, v, to)
	}
	if v.kind != numberValue {
		return ""
	}
	return compared(op, x, v.number, to)
}

// compared translates a comparison of numbers. The source formats round the argument to a 64-bit floating-point number
// first. Therefore they may treat an argument that is slightly less than the bound as equal to the bound.
func compared(op, x string, bound float64, to side) string {
	switch {
	case op == "lt" && to == atMost:
		return atMostNumber(x, below(bound))
	case op == "lte" && to == atMost:
		return atMostNumber(x, bound)
	case op == "lt":
		return lessThan(x, bound)
	case op == "lte":
		return lessThan(x, above(bound))
	case op == "gt" && to == atMost:
		return atLeastNumber(x, above(bound))
	case op == "gte" && to == atMost:
		return atLeastNumber(x, bound)
	case op == "gt":
		return greaterThan(x, bound)
	default:
		return greaterThan(x, below(bound))
	}
}

// The following functions return expressions that compare the value of x with a number. If the value is not a number,
// the expression is false or can't be evaluated. The function `decimal` also accepts strings. Therefore it is used only
// after a comparison with a whole number, which does not accept strings.

func atMostNumber(x string, bound float64) string {
	if isWhole(bound) {
		return x + " <= " + whole(bound)
	}
	return "(" + x + " <= " + whole(math.Ceil(bound)) + " && decimal(" + x + ") <= " + decimal(bound) + ")"
}

func lessThan(x string, bound float64) string {
	if isWhole(bound) {
		return x + " < " + whole(bound)
	}
	return "(" + x + " <= " + whole(math.Ceil(bound)) + " && decimal(" + x + ") < " + decimal(bound) + ")"
}

func atLeastNumber(x string, bound float64) string {
	if isWhole(bound) {
		return x + " >= " + whole(bound)
	}
	return "(" + x + " >= " + whole(math.Floor(bound)) + " && decimal(" + x + ") >= " + decimal(bound) + ")"
}

func greaterThan(x string, bound float64) string {
	if isWhole(bound) {
		return x + " > " + whole(bound)
	}
	return "(" + x + " >= " + whole(math.Floor(bound)) + " && decimal(" + x + ") > " + decimal(bound) + ")"
}

// equal translates the test whether the value of x is equal to v.
func equal(x string, v *literal, to side) string {
	switch {
	case v.kind == textValue && (to == atMost || v.isOnlyText()):
		return x + " == " + strconv.Quote(v.text)
	case v.kind == boolValue && to == atMost:
		return x + " == " + strconv.FormatBool(v.truth)
	case v.kind == boolValue: // in the source, the text "true" is equal to true
		return fmt.Sprintf("%s in [%t, %q]", x, v.truth, strconv.FormatBool(v.truth))
	case v.kind == numberValue && to == atMost && isWhole(v.number):
		return x + " == " + whole(v.number)
	case v.kind == numberValue && to == atMost:
		return "(" + x + " <= " + whole(math.Ceil(v.number)) + " && decimal(" + x + ") == " + decimal(v.number) + ")"
	case v.kind == numberValue:
		return "(" + greaterThan(x, below(v.number)) + " && " + lessThan(x, above(v.number)) + ")"
	}
	return ""
}

// differs translates the test whether the value of x is not equal to v.
func differs(x string, v *literal, to side) string {
	switch {
	case v.kind == textValue && (to == atLeast || v.isOnlyText()):
		return x + " != " + strconv.Quote(v.text)
	case v.kind == boolValue && to == atMost:
		return x + " == " + strconv.FormatBool(!v.truth)
	case v.kind == boolValue:
		return x + " != " + strconv.FormatBool(v.truth)
	case v.kind == numberValue && to == atLeast && isWhole(v.number):
		return x + " != " + whole(v.number)
	case v.kind == numberValue && to == atMost && isWhole(v.number):
		return "(" + x + " <= " + whole(v.number-1) + " || " + x + " >= " + whole(v.number+1) + ")"
	}
	return ""
}

// member translates the test whether the value of x is in a list, or the opposite test if the parameter in is false.
func member(in bool, x string, list *literal, to side) string {
	if list.kind != listValue || len(list.list) == 0 {
		return ""
	}
	if text := textMember(in, x, list, to); text != "" {
		return text
	}
	one, join := equal, " || "
	if !in {
		one, join = differs, " && "
	}
	var parts []string
	for i := range list.list {
		part := one(x, &list.list[i], to)
		if part == "" {
			return ""
		}
		parts = append(parts, part)
	}
	return "(" + strings.Join(parts, join) + ")"
}

// textMember is like member, but returns "" unless the list contains only strings. It also returns "" if a string in
// the list could be equal to a number, because then the translation could be wrong. The source formats convert numbers
// to strings for the comparison.
func textMember(in bool, x string, list *literal, to side) string {
	exact := in == (to == atMost)
	var quoted []string
	for i := range list.list {
		v := &list.list[i]
		if v.kind != textValue || !exact && !v.isOnlyText() {
			return ""
		}
		quoted = append(quoted, strconv.Quote(v.text))
	}
	text := x + " in [" + strings.Join(quoted, ", ") + "]"
	if in {
		return text
	}
	return "!(" + text + ")"
}

// contains translates the test whether a string contains another string, or whether a list contains a string as an
// element. If to is atLeast, the expression can't be evaluated for lists.
func contains(x string, v *literal, to side) string {
	text := strconv.Quote(v.text)
	switch {
	case v.kind != textValue || to == atLeast && !v.isOnlyText():
		return ""
	case to == atLeast:
		return x + ".contains(" + text + ")"
	default: // the last part is false for maps, which have no element 0
		return "(" + x + ".contains(" + text + ") || " + x + ".exists(e, e == " + text + ") && " + x + "[0] == " + x + "[0])"
	}
}

// matches translates the test whether a regular expression matches any part of a string.
func matches(x string, v *literal) string {
	if v.kind != textValue {
		return ""
	}
	if _, err := syntax.Parse(v.text, syntax.Perl); err != nil {
		return ""
	}
	return x + ".matches(" + strconv.Quote(wholePattern(v.text)) + ")"
}

// wholePattern returns a pattern that matches a whole string if the given pattern matches a part of it. The result is
// easier to read if the given pattern has no alternatives and no groups with flags.
func wholePattern(pattern string) string {
	const anything = "(?s:.*)"
	if strings.Contains(pattern, "|") || strings.Contains(pattern, "(?") || strings.Contains(pattern, `\Q`) {
		return "^" + anything + "(?:" + pattern + ")" + anything + "$"
	}
	start, end := "^"+anything, anything+"$"
	if rest, ok := strings.CutPrefix(pattern, "^"); ok && (rest == "" || !strings.ContainsRune("*+?{", rune(rest[0]))) {
		pattern, start = rest, "^"
	}
	if rest, ok := strings.CutSuffix(pattern, "$"); ok && (len(rest)-len(strings.TrimRight(rest, `\`)))%2 == 0 {
		pattern, end = rest, "$"
	}
	return start + pattern + end
}
