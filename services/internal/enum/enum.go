// Package enum writes values of protobuf enums in the form of configuration files, records and messages.
package enum

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unspecified is the suffix of the name of every enum's first value. The text before the suffix is the prefix of all
// names of the enum (buf's rules ENUM_ZERO_VALUE_SUFFIX and ENUM_VALUE_PREFIX).
const unspecified = "UNSPECIFIED"

// NameOrEmpty is like [Name], but returns the empty string for the unspecified value.
func NameOrEmpty(v protoreflect.Enum) string {
	if v.Number() == 0 {
		return ""
	}
	return Name(v)
}

// Name returns a value's name in the form used outside of protobuf, for example "denied_by_rule" for
// CODE_DENIED_BY_RULE. For a number without a name it returns the number.
func Name(v protoreflect.Enum) string {
	named := v.Descriptor().Values().ByNumber(v.Number())
	if named == nil {
		return strconv.Itoa(int(v.Number()))
	}
	return NameOf(named)
}

// NameOf is like [Name] for a value with a name. If the names of the enum have no prefix, as in other projects'
// enums, NameOf returns the whole name in lower case.
func NameOf(v protoreflect.EnumValueDescriptor) string {
	name := string(v.Name())
	if values, ok := v.Parent().(protoreflect.EnumDescriptor); ok && values.Values().ByNumber(0) != nil {
		if prefix, found := strings.CutSuffix(string(values.Values().ByNumber(0).Name()), unspecified); found {
			name = strings.TrimPrefix(name, prefix)
		}
	}
	return strings.ToLower(name)
}
