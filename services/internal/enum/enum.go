// Package enum writes the contracts' enums in the form of configuration, records and messages.
package enum

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// unspecified is the suffix of the name of every enum's first value; the text before it is the prefix of all names of
// the enum (buf's ENUM_ZERO_VALUE_SUFFIX, ENUM_VALUE_PREFIX).
const unspecified = "UNSPECIFIED"

// Given is [Name], but empty for the unspecified value.
func Given(v protoreflect.Enum) string {
	if v.Number() == 0 {
		return ""
	}
	return Name(v)
}

// Name returns a value in the form used outside of protobuf, for example "denied_by_rule" for CODE_DENIED_BY_RULE,
// and the number for a value that this contract does not know.
func Name(v protoreflect.Enum) string {
	named := v.Descriptor().Values().ByNumber(v.Number())
	if named == nil {
		return strconv.Itoa(int(v.Number()))
	}
	return NameOf(named)
}

// NameOf is [Name] for a value that its contract knows. The contract may be another project's, without the prefix:
// then it returns the value's own name in lower case.
func NameOf(v protoreflect.EnumValueDescriptor) string {
	name := string(v.Name())
	if values, ok := v.Parent().(protoreflect.EnumDescriptor); ok && values.Values().ByNumber(0) != nil {
		if prefix, found := strings.CutSuffix(string(values.Values().ByNumber(0).Name()), unspecified); found {
			name = strings.TrimPrefix(name, prefix)
		}
	}
	return strings.ToLower(name)
}
