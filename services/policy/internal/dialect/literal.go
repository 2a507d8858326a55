package dialect

import (
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"
)

// maxNumber is the maximum absolute value of a number that can be translated. A 64-bit floating-point number can
// represent all whole numbers up to maxNumber exactly.
const maxNumber = 1 << 53

type valueKind int

const (
	otherValue valueKind = iota // a value that can't be translated
	textValue
	numberValue
	boolValue
	listValue
)

// A literal is the value with which a condition compares an argument.
type literal struct {
	kind   valueKind
	text   string
	number float64
	truth  bool
	list   []literal
}

// literalOf converts a YAML node to a literal.
func literalOf(n *yaml.Node) literal {
	switch {
	case n.Kind == yaml.SequenceNode:
		out := literal{kind: listValue}
		for _, item := range n.Content {
			out.list = append(out.list, literalOf(item))
		}
		return out
	case n.Kind != yaml.ScalarNode:
		return literal{}
	}
	switch n.ShortTag() {
	case "!!str":
		return literal{kind: textValue, text: n.Value}
	case "!!bool":
		return literal{kind: boolValue, truth: strings.EqualFold(n.Value, "true")}
	case "!!int", "!!float":
		number, err := strconv.ParseFloat(n.Value, 64)
		if err == nil && jsontext.Value(n.Value).IsValid() && math.Abs(number) <= maxNumber && !(number == 0 && math.Signbit(number)) {
			return literal{kind: numberValue, number: number}
		}
	}
	return literal{}
}

func isWhole(number float64) bool { return number == math.Trunc(number) }

// whole formats a whole number for a condition.
func whole(number float64) string { return strconv.FormatFloat(number, 'f', -1, 64) }

// decimal returns a call of the function `decimal` in a condition. Its argument is the shortest string that is rounded
// to the given number when it is parsed.
func decimal(number float64) string {
	return `decimal("` + strconv.FormatFloat(number, 'g', -1, 64) + `")`
}

// below returns the greatest floating-point number that is less than the given number, and above returns the smallest
// one that is greater.
func below(number float64) float64 { return math.Nextafter(number, math.Inf(-1)) }
func above(number float64) float64 { return math.Nextafter(number, math.Inf(1)) }

// isOnlyText reports whether v is a string that the source formats treat as equal only to strings. The source formats
// compare values of different types as strings, so they treat the string "5" as equal to the number 5.
func (v *literal) isOnlyText() bool {
	if v.kind != textValue {
		return false
	}
	_, err := strconv.ParseFloat(v.text, 64)
	isNumber := err == nil || strings.Contains(err.Error(), "range")
	return !isNumber && v.text != "true" && v.text != "false" && v.text != "<nil>" && !strings.HasPrefix(v.text, "[") && !strings.HasPrefix(v.text, "map[")
}
