// Package enum formats protobuf enum values for configuration files, records and messages.
package enum

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unspecified is the suffix of the name of the first value in every enum. The part before this suffix is the prefix of
// all names in the enum (buf's rules ENUM_ZERO_VALUE_SUFFIX and ENUM_VALUE_PREFIX).
const unspecified = "UNSPECIFIED"

// NameOrEmpty is like [Name], but returns the empty string for the unspecified value.
func NameOrEmpty(v protoreflect.Enum) string {
	if v.Number() == 0 {
		return ""
	}
	return Name(v)
}

// Name returns the name of a value in the form that is used outside protobuf. For CODE_DENIED_BY_RULE, it is
// "denied_by_rule". For a number without a name, Name returns the number.
func Name(v protoreflect.Enum) string {
	named := v.Descriptor().Values().ByNumber(v.Number())
	if named == nil {
		return strconv.Itoa(int(v.Number()))
	}
	return NameOf(named)
}

// NameOf is like [Name], but takes the descriptor of a value. If the names in the enum have no prefix, as in enums of
// other projects, NameOf returns the whole name in lower case.
func NameOf(v protoreflect.EnumValueDescriptor) string {
	name := string(v.Name())
	if values, ok := v.Parent().(protoreflect.EnumDescriptor); ok && values.Values().ByNumber(0) != nil {
		if prefix, found := strings.CutSuffix(string(values.Values().ByNumber(0).Name()), unspecified); found {
			name = strings.TrimPrefix(name, prefix)
		}
	}
	return strings.ToLower(name)
}
