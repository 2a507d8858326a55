// Package strictprotojson converts protobuf messages to and from JSON for MCP tools. It accepts and writes exactly one
// JSON form for each message. The form differs from protobuf's JSON mapping in three ways. A string field with the
// option (sluice.mcp.v1.json) is a JSON object, enum values have short names, and invalid input is not corrected.
package strictprotojson

import (
	"strings"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// IsProgress reports whether a field contains the progress of a call, which is not part of the result.
func IsProgress(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && !fd.IsList() && !fd.IsMap() && fd.Message().FullName() == progressName
}

var progressName = (*mcpv1.Progress)(nil).ProtoReflect().Descriptor().FullName()

// IsJSON reports whether a field is a string that contains a JSON object.
func IsJSON(fd protoreflect.FieldDescriptor) bool {
	opts, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok || fd.Kind() != protoreflect.StringKind {
		return false
	}
	is, _ := proto.GetExtension(opts, mcpv1.E_Json).(bool)
	return is
}

// IsWellKnown reports whether a message is a well-known type, which has a special form in protobuf's JSON mapping.
func IsWellKnown(md protoreflect.MessageDescriptor) bool {
	switch name, ok := strings.CutPrefix(string(md.FullName()), "google.protobuf."); name {
	case "Timestamp", "Duration", "FieldMask", "Struct", "Any", "Empty", "ListValue", "Value",
		"BoolValue", "StringValue", "BytesValue", "Int32Value", "UInt32Value", "Int64Value", "UInt64Value", "FloatValue", "DoubleValue":
		return ok
	}
	return false
}

// IsUnspecified reports whether an enum value is the unspecified value.
func IsUnspecified(v protoreflect.EnumValueDescriptor) bool {
	return enum.NameOf(v) == "unspecified"
}

// Rules returns the constraints in the options of a field, or nil if there are none.
func Rules(fd protoreflect.FieldDescriptor) *validatepb.FieldRules {
	opts, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok || !proto.HasExtension(opts, validatepb.E_Field) {
		return nil
	}
	rules, _ := proto.GetExtension(opts, validatepb.E_Field).(*validatepb.FieldRules)
	return rules
}
