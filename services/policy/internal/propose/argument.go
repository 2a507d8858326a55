package propose

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/apd/v3"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// An argument is an argument of a tool with its values in the observed calls.
type argument struct {
	name string
	// values contains one value for each call that has the argument, without redacted values. replaced is the number of
	// redacted values.
	values   []jsontext.Value
	replaced int
}

// field matches the names that a condition can contain after `args.` unless they are in reserved. reserved contains the
// reserved words of the condition language.
var (
	field    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	reserved = []string{
		"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop", "namespace", "null",
		"package", "return", "true", "var", "void", "while",
	}
)

// read returns three expressions for a condition. The first one reads the argument, the second one tests whether the
// argument is present, and the third one tests whether it is absent.
func (a *argument) read() (value, present, absent string) {
	if field.MatchString(a.name) && !slices.Contains(reserved, a.name) {
		return "args." + a.name, "has(args." + a.name + ")", "!has(args." + a.name + ")"
	}
	quoted := strconv.QuoteToASCII(a.name)
	return "args[" + quoted + "]", quoted + " in args", "!(" + quoted + " in args)"
}

// bound derives the bound for the argument. The parameter calls is the number of observed calls.
func (a *argument) bound(calls int, schema engine.Schema, home string) Bound {
	out := Bound{Argument: a.name}
	if a.replaced > 0 {
		out.Note = fmt.Sprintf("%s: no bound: its value was replaced (calls: %d)", title(a.name), a.replaced)
		return out
	}
	value, present, absent := a.read()
	text, note := a.valueBound(value, home)
	if text == "" {
		out.Note = title(a.name) + ": no bound: " + note
		return out
	}
	out.Condition, out.Note = text, fmt.Sprintf("%s: %s (calls: %d", title(a.name), note, len(a.values))
	if len(a.values) < calls {
		out.Condition = "(" + absent + " || " + text + ")"
		out.Note += fmt.Sprintf(", without it: %d", calls-len(a.values))
	} else if schema.Arguments != nil && !schema.Arguments[a.name].Required {
		out.Condition = present + " && " + text // the schema also allows calls without it
	}
	out.Note += ")"
	return out
}

// valueBound returns a condition that limits the value of the expression value, and a note that describes the
// condition. If there is no bound, the condition is empty, and the note says why.
func (a *argument) valueBound(value, home string) (text, note string) {
	kind := a.values[0].Kind()
	for _, v := range a.values {
		if k := v.Kind(); k != kind && (!isBool(k) || !isBool(kind)) {
			return "", "its values have different types"
		}
	}
	switch {
	case isBool(kind):
		return a.boolBound(value)
	case kind == '0':
		return a.numberBound(value)
	case kind == 'n':
		return value + " == null", "null"
	case kind == '"':
		var perCall [][]string
		for _, text := range textsOf(a.values) {
			perCall = append(perCall, []string{text})
		}
		return textBound(a.name, value, perCall, home)
	case kind == '[':
		return a.listBound(value, home)
	}
	return "", "it is an object"
}

func isBool(kind jsontext.Kind) bool { return kind == 't' || kind == 'f' }

// textsOf decodes the given JSON values, which must be strings.
func textsOf(values []jsontext.Value) []string {
	out := make([]string, len(values))
	for i, v := range values {
		_ = json.Unmarshal(v, &out[i]) // the value can be decoded, because it is a part of valid JSON
	}
	return out
}

func (a *argument) boolBound(value string) (text, note string) {
	first := string(a.values[0])
	for _, v := range a.values {
		if string(v) != first {
			return value + " in [true, false]", "true or false"
		}
	}
	return value + " == " + first, "always " + first
}

func (a *argument) numberBound(value string) (text, note string) {
	var low, high *apd.Decimal
	var lowest, highest string
	for _, v := range a.values {
		one, _, err := apd.NewFromString(string(v))
		if err != nil {
			return "", "a value is not a number that conditions can compare"
		}
		if low == nil || one.Cmp(low) < 0 {
			low, lowest = one, string(v)
		}
		if high == nil || one.Cmp(high) > 0 {
			high, highest = one, string(v)
		}
	}
	if low.Sign() >= 0 {
		lowest = "0"
	}
	text = fmt.Sprintf("decimal(%[1]s) >= decimal(%[2]q) && decimal(%[1]s) <= decimal(%[3]q)", value, lowest, highest)
	return text, fmt.Sprintf("from %s to %s", lowest, highest)
}

// listBound derives the bound for an argument whose values are lists of strings.
func (a *argument) listBound(value, home string) (text, note string) {
	lists := make([][]string, len(a.values))
	empty, total := false, 0
	for i, v := range a.values {
		var elements []jsontext.Value
		if json.Unmarshal(v, &elements) != nil {
			return "", "it is a list that contains values other than texts"
		}
		for _, e := range elements {
			if e.Kind() != '"' {
				return "", "it is a list that contains values other than texts"
			}
		}
		lists[i] = textsOf(elements)
		empty, total = empty || len(elements) == 0, total+len(elements)
	}
	if total == 0 {
		return value + " == []", "an empty list"
	}
	text, note = textBound(a.name, "x", lists, home)
	if text == "" {
		return "", "its elements: " + note
	}
	// This test excludes objects, because only a list has an element with the index 0. Without the test, `all` would
	// accept an object with suitable keys.
	first := value + `[0] != ""`
	if empty {
		first = "(" + value + " == [] || " + first + ")"
	}
	return fmt.Sprintf("%s && %s.all(x, %s)", first, value, text), "a list whose elements are " + note
}

// textBound derives the bound for strings. perCall contains the strings in each call, name is the name of the argument,
// and value is the expression that reads a string.
func textBound(name, value string, perCall [][]string, home string) (text, note string) {
	texts := slices.Concat(perCall...)
	distinct := slices.Compact(slices.Sorted(slices.Values(texts)))
	if u, ok := commonURL(distinct); ok {
		return urlBound(value, u)
	}
	isPath := arePaths(name, distinct)
	if !isPath && condition.NamesPath(name) {
		return "", "a path is one that programs read in different ways"
	}
	if isPath {
		if folder, ok := commonFolder(distinct, home); ok {
			return fmt.Sprintf("path.within(%s, %s)", value, strconv.QuoteToASCII(folder)), "a path in " + strconv.QuoteToASCII(folder)
		}
	}
	if why := varies(distinct, perCall); why != "" {
		if isPath {
			why = "the paths have no folder in common that a rule could allow, and " + why
		}
		return "", why
	}
	if slices.ContainsFunc(distinct, func(text string) bool { return onlyDots(text) || isPath && isTooWide(text, home) }) {
		return "", "a path is the root, a home folder, or a folder that contains home folders"
	}
	quoted := make([]string, len(distinct))
	for i, one := range distinct {
		quoted[i] = strconv.QuoteToASCII(one)
	}
	list := strings.Join(quoted, ", ")
	return fmt.Sprintf("%s in [%s]", value, list), "one of " + list
}

// varies returns the reason why the observed strings can't become a list of allowed values, or "" if they can.
func varies(distinct []string, perCall [][]string) string {
	if len(distinct) > maxValues {
		return fmt.Sprintf("%d different texts", len(distinct))
	}
	for _, one := range distinct {
		calls := 0
		for _, texts := range perCall {
			if slices.Contains(texts, one) {
				calls++
			}
		}
		switch {
		case len(one) > maxValueBytes:
			return fmt.Sprintf("a text has more than %d bytes", maxValueBytes)
		case calls < minCalls:
			return fmt.Sprintf("a text occurs in fewer than %d calls", minCalls)
		}
	}
	return ""
}
