// Package enum writes the contracts' enums as people and machines read them.
package enum

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unspecified is what the name of every enum's first value ends in; before it stands what
// the names of all its values begin with (buf's ENUM_ZERO_VALUE_SUFFIX, ENUM_VALUE_PREFIX).
const unspecified = "UNSPECIFIED"

// Given is [Name], but empty for the unspecified value.
func Given(v protoreflect.Enum) string {
	if v.Number() == 0 {
		return ""
	}
	return Name(v)
}

// Name is a value as it is written everywhere outside of protobuf, for example
// "denied_by_rule" for CODE_DENIED_BY_RULE: its number for one that this contract does not
// know.
func Name(v protoreflect.Enum) string {
	named := v.Descriptor().Values().ByNumber(v.Number())
	if named == nil {
		return strconv.Itoa(int(v.Number()))
	}
	return NameOf(named)
}

// NameOf is [Name] of a value that its contract knows, also where that is another's and
// follows no rule: then it is the value's own name, in lower case.
func NameOf(v protoreflect.EnumValueDescriptor) string {
	name := string(v.Name())
	if values, ok := v.Parent().(protoreflect.EnumDescriptor); ok && values.Values().ByNumber(0) != nil {
		if prefix, found := strings.CutSuffix(string(values.Values().ByNumber(0).Name()), unspecified); found {
			name = strings.TrimPrefix(name, prefix)
		}
	}
	return strings.ToLower(name)
}
