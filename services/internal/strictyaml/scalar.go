package strictyaml

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v4"
)

// Only decimal numbers are accepted, because parsers disagree on other forms. For example, 010 can mean 8 or 10.
var (
	wholeNumber   = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)
	decimalNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?$`)
)

// decodeText sets v to the value of a scalar if the scalar is a string. It reports whether the scalar is a string. The
// message of a problem does not contain the value, because a string might be a secret.
func (d *decoder) decodeText(at location, path *valuePath, v reflect.Value) bool {
	n := at.value
	if n.Kind == yaml.ScalarNode && n.Tag == strTag {
		v.SetString(n.Value)
		return true
	}
	suggestion := ""
	if n.Kind == yaml.ScalarNode {
		suggestion = "put it in quotes"
	}
	d.report(at, path, "wanted text, found "+kindOf(n), suggestion)
	return false
}

func (d *decoder) decodeDuration(at location, path *valuePath, v reflect.Value) {
	const wanted = `a duration such as "30s"`
	n := at.value
	if n.Kind != yaml.ScalarNode || n.Tag != strTag {
		suggestion := ""
		if n.Tag == intTag && wholeNumber.MatchString(n.Value) {
			suggestion = "write the unit too, for example " + n.Value + "s"
		}
		d.report(at, path, "wanted "+wanted+", found "+describe(n), suggestion)
		return
	}
	duration, err := time.ParseDuration(n.Value)
	if err != nil {
		d.report(at, path, "wanted "+wanted+", found "+describe(n), "units are ms, s, m and h")
		return
	}
	v.SetInt(int64(duration))
}

func (d *decoder) decodeBool(at location, path *valuePath, v reflect.Value) {
	n := at.value
	if n.Kind == yaml.ScalarNode && n.Tag == boolTag {
		v.SetBool(boolValue(n))
		return
	}
	suggestion := ""
	if b, known := looseBool[n.Value]; known && n.Kind == yaml.ScalarNode {
		suggestion = fmt.Sprintf("write %t", b)
	}
	d.report(at, path, "wanted true or false, found "+describe(n), suggestion)
}

// boolValue returns the value of a scalar that YAML resolves to a boolean, which is true, True, TRUE, false, False or
// FALSE.
func boolValue(n *yaml.Node) bool { return n.Value[0] == 't' || n.Value[0] == 'T' }

func (d *decoder) decodeNumber(at location, path *valuePath, v reflect.Value) {
	form, wanted := wholeNumber, wholeRange(v.Type())
	var err error
	switch {
	case v.CanInt():
		var i int64
		i, err = strconv.ParseInt(number(at.value, form), 10, v.Type().Bits())
		v.SetInt(i)
	case v.CanUint():
		var u uint64
		u, err = strconv.ParseUint(number(at.value, form), 10, v.Type().Bits())
		v.SetUint(u)
	default:
		form, wanted = decimalNumber, "a number"
		var x float64
		x, err = strconv.ParseFloat(number(at.value, form), v.Type().Bits())
		v.SetFloat(x)
	}
	if err != nil {
		d.report(at, path, "wanted "+wanted+", found "+describe(at.value), numberHint(at.value, form))
	}
}

// looseBool maps words that YAML 1.1 reads as booleans to their boolean values.
var looseBool = map[string]bool{
	"yes": true, "on": true, "y": true, "true": true, "no": false, "off": false, "n": false, "false": false,
}

// number returns the text of a number if it matches form, and "" if it does not.
func number(n *yaml.Node, form *regexp.Regexp) string {
	if n.Kind == yaml.ScalarNode && (n.Tag == intTag || n.Tag == floatTag) && form.MatchString(n.Value) {
		return n.Value
	}
	return ""
}

func numberHint(n *yaml.Node, form *regexp.Regexp) string {
	switch {
	case n.Kind != yaml.ScalarNode:
		return ""
	case n.Tag == strTag && form.MatchString(n.Value):
		return "remove the quotes"
	case n.Tag == intTag && !form.MatchString(n.Value):
		return "write it in decimal, without leading zeros or underscores"
	default:
		return ""
	}
}

// wholeRange returns a description of the range of integers that the type t allows. It panics for other types.
func wholeRange(t reflect.Type) string {
	switch t.Kind() { //nolint:exhaustive // other kinds are refused
	case reflect.Int, reflect.Int64, reflect.Float32, reflect.Float64:
		return "a whole number"
	case reflect.Int8, reflect.Int16, reflect.Int32:
		limit := int64(math.MaxInt64) >> (64 - t.Bits())
		return fmt.Sprintf("a whole number from %d to %d", -limit-1, limit)
	case reflect.Uint, reflect.Uint64:
		return "a whole number that is not negative"
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return fmt.Sprintf("a whole number from 0 to %d", uint64(math.MaxUint64)>>(64-t.Bits()))
	default:
		panic(fmt.Sprintf("strictyaml: can't decode into %s", t))
	}
}

// kindOf returns a description of the kind of a node. It does not show the value.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Tag == strTag:
		return "text"
	case n.Tag == intTag, n.Tag == floatTag:
		return "a number"
	case n.Tag == boolTag:
		return "a truth value"
	case n.Tag == nullTag:
		return "nothing"
	default:
		return "a date"
	}
}

// describe returns a description of the kind of a node. For a scalar, the description includes the value.
func describe(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode || n.Tag == nullTag {
		return kindOf(n)
	}
	if n.Tag == boolTag {
		return n.Value
	}
	return kindOf(n) + " " + quote(n.Value)
}

// untyped converts a node to nil, bool, int64, float64, string, []any or map[string]any. A number that fits neither
// int64 nor float64 becomes a string.
func untyped(n *yaml.Node) any {
	switch n.Kind { //nolint:exhaustive // aliases are reported elsewhere
	case yaml.MappingNode:
		m := make(map[string]any, len(n.Content)/2)
		for key, value := range pairs(n) {
			m[key.Value] = untyped(value)
		}
		return m
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			list[i] = untyped(item)
		}
		return list
	case yaml.ScalarNode:
		return untypedScalar(n)
	default:
		return nil
	}
}

func untypedScalar(n *yaml.Node) any {
	switch n.Tag {
	case nullTag:
		return nil
	case boolTag:
		return boolValue(n)
	}
	if i, err := strconv.ParseInt(number(n, wholeNumber), 10, 64); err == nil {
		return i
	}
	if x, err := strconv.ParseFloat(number(n, decimalNumber), 64); err == nil {
		return x
	}
	return n.Value
}
