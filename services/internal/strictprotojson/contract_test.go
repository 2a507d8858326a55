package strictprotojson_test

import (
	"sync"
	"testing"

	_ "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate" // registers the options of the contract
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	_ "google.golang.org/protobuf/types/known/anypb" // registers a well-known type
	_ "google.golang.org/protobuf/types/known/emptypb"
	_ "google.golang.org/protobuf/types/known/structpb"
	_ "google.golang.org/protobuf/types/known/timestamppb"
	_ "google.golang.org/protobuf/types/known/wrapperspb"

	_ "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1" // registers the options of the contract
)

// contract is a protobuf file with fields of every kind, in the text format of a FileDescriptorProto.
const contract = `
name: "t/t.proto" package: "t" syntax: "proto3"
dependency: ["sluice/mcp/v1/tool.proto", "buf/validate/validate.proto", "google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto",
  "google/protobuf/struct.proto", "google/protobuf/any.proto", "google/protobuf/empty.proto"]
enum_type {
  name: "Kind"
  value { name: "KIND_UNSPECIFIED" number: 0 } value { name: "KIND_SHORT_NOTE" number: 1 } value { name: "KIND_LONG" number: 2 }
}
enum_type { name: "Color" value { name: "RED" number: 0 } value { name: "DARK_BLUE" number: 1 } }
message_type {
  name: "All"
  field { name: "flag" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL }
  field { name: "i32" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  field { name: "s32" number: 3 type: TYPE_SINT32 label: LABEL_OPTIONAL }
  field { name: "i64" number: 4 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "f64" number: 5 type: TYPE_SFIXED64 label: LABEL_OPTIONAL }
  field { name: "u32" number: 6 type: TYPE_UINT32 label: LABEL_OPTIONAL }
  field { name: "u64" number: 7 type: TYPE_FIXED64 label: LABEL_OPTIONAL }
  field { name: "single" number: 8 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { name: "number" number: 9 type: TYPE_DOUBLE label: LABEL_OPTIONAL }
  field { name: "some_text" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "data" number: 11 type: TYPE_BYTES label: LABEL_OPTIONAL options { [sluice.mcp.v1.json]: true } }
  field { name: "kind" number: 12 type: TYPE_ENUM type_name: ".t.Kind" label: LABEL_OPTIONAL }
  field { name: "color" number: 13 type: TYPE_ENUM type_name: ".t.Color" label: LABEL_OPTIONAL }
  field { name: "object" number: 14 type: TYPE_STRING label: LABEL_OPTIONAL options { [sluice.mcp.v1.json]: true } }
  field { name: "numbers" number: 15 type: TYPE_INT32 label: LABEL_REPEATED }
  field { name: "kinds" number: 16 type: TYPE_ENUM type_name: ".t.Kind" label: LABEL_REPEATED }
  field { name: "inside" number: 17 type: TYPE_MESSAGE type_name: ".t.Small" label: LABEL_OPTIONAL }
  field { name: "list" number: 18 type: TYPE_MESSAGE type_name: ".t.Small" label: LABEL_REPEATED }
  field { name: "by_name" number: 19 type: TYPE_MESSAGE type_name: ".t.All.ByNameEntry" label: LABEL_REPEATED }
  field { name: "sizes" number: 20 type: TYPE_MESSAGE type_name: ".t.All.SizesEntry" label: LABEL_REPEATED }
  field { name: "maybe" number: 21 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 1 proto3_optional: true }
  field { name: "shelf" number: 22 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "row" number: 23 type: TYPE_MESSAGE type_name: ".t.Small" label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "progress" number: 24 type: TYPE_MESSAGE type_name: ".sluice.mcp.v1.Progress" label: LABEL_OPTIONAL }
  oneof_decl { name: "place" } oneof_decl { name: "_maybe" }
  nested_type {
    name: "ByNameEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_MESSAGE type_name: ".t.Small" label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "SizesEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT64 label: LABEL_OPTIONAL }
  }
}
message_type {
  name: "Small"
  field { name: "id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL options { [buf.validate.field] { required: true string { max_len: 3 } } } }
  field { name: "inside" number: 2 type: TYPE_MESSAGE type_name: ".t.Small" label: LABEL_OPTIONAL }
}
message_type {
  name: "Known"
  field { name: "at" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "big" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Int64Value" label: LABEL_OPTIONAL }
  field { name: "free" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Struct" label: LABEL_OPTIONAL }
  field { name: "any" number: 4 type: TYPE_MESSAGE type_name: ".google.protobuf.Any" label: LABEL_OPTIONAL }
  field { name: "none" number: 5 type: TYPE_MESSAGE type_name: ".google.protobuf.Empty" label: LABEL_OPTIONAL }
  field { name: "values" number: 6 type: TYPE_MESSAGE type_name: ".google.protobuf.StringValue" label: LABEL_REPEATED }
}
message_type { name: "Steps" field { name: "steps" number: 1 type: TYPE_MESSAGE type_name: ".sluice.mcp.v1.Progress" label: LABEL_REPEATED } }
message_type { name: "Nothing" field { name: "progress" number: 1 type: TYPE_MESSAGE type_name: ".sluice.mcp.v1.Progress" label: LABEL_OPTIONAL } }
message_type {
  name: "Numbered"
  field { name: "by_number" number: 1 type: TYPE_MESSAGE type_name: ".t.Numbered.ByNumberEntry" label: LABEL_REPEATED }
  nested_type {
    name: "ByNumberEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
  }
}
`

// messages returns the messages of the contract.
var messages = sync.OnceValues(func() (protoreflect.MessageDescriptors, error) {
	var file descriptorpb.FileDescriptorProto
	if err := prototext.Unmarshal([]byte(contract), &file); err != nil {
		return nil, err
	}
	built, err := protodesc.NewFile(&file, protoregistry.GlobalFiles)
	if err != nil {
		return nil, err
	}
	return built.Messages(), nil
})

// newMessage returns an empty message of a type that the contract defines.
func newMessage(t testing.TB, name protoreflect.Name) protoreflect.Message {
	t.Helper()
	all, err := messages()
	if err != nil {
		t.Fatal(err)
	}
	return dynamicpb.NewMessage(all.ByName(name))
}

// field returns a field of a message type that the contract defines.
func field(t testing.TB, message protoreflect.Name, name protoreflect.Name) protoreflect.FieldDescriptor {
	t.Helper()
	return newMessage(t, message).Descriptor().Fields().ByName(name)
}
