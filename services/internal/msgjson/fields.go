// Package msgjson has protobuf messages as JSON, as MCP tools take and give them: in one form
// alone. It differs from the form of protobuf itself in what follows: a string field that
// holds a JSON object (sluice.mcp.v1.json) is that object, enums are written in short, and
// what is read is not put right.
package msgjson

import (
	"strings"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// IsProgress reports whether a field says how far a call is, and nothing of its answer.
func IsProgress(fd protoreflect.FieldDescriptor) bool {
	return fd.Message() != nil && !fd.IsList() && !fd.IsMap() && fd.Message().FullName() == progressName
}

var progressName = (*mcpv1.Progress)(nil).ProtoReflect().Descriptor().FullName()

// IsJSON reports whether a field holds a JSON object as text.
func IsJSON(fd protoreflect.FieldDescriptor) bool {
	opts, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok || fd.Kind() != protoreflect.StringKind {
		return false
	}
	is, _ := proto.GetExtension(opts, mcpv1.E_Json).(bool)
	return is
}

// IsWellKnown reports whether JSON has a form of its own for a message, which is protobuf's.
func IsWellKnown(md protoreflect.MessageDescriptor) bool {
	switch name, ok := strings.CutPrefix(string(md.FullName()), "google.protobuf."); name {
	case "Timestamp", "Duration", "FieldMask", "Struct", "Any", "Empty", "ListValue", "Value",
		"BoolValue", "StringValue", "BytesValue", "Int32Value", "UInt32Value", "Int64Value", "UInt64Value", "FloatValue", "DoubleValue":
		return ok
	}
	return false
}

// IsUnspecified reports whether a value of an enum is the one that says nothing.
func IsUnspecified(v protoreflect.EnumValueDescriptor) bool {
	return enum.NameOf(v) == "unspecified"
}

// Rules are what a contract says of a field beside its type; nil where it says nothing.
func Rules(fd protoreflect.FieldDescriptor) *validatepb.FieldRules {
	opts, ok := fd.Options().(*descriptorpb.FieldOptions)
	if !ok || !proto.HasExtension(opts, validatepb.E_Field) {
		return nil
	}
	rules, _ := proto.GetExtension(opts, validatepb.E_Field).(*validatepb.FieldRules)
	return rules
}
