package grpctools

import (
	"encoding/base64"
	"fmt"
	"math"
	"regexp"
	"slices"

	validatepb "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// This file generates JSON Schemas (2020-12) for protobuf messages. A schema is never stricter than the protobuf
// definition. JSON Schema can't express all rules, so the server itself must check the other rules.

type schema = map[string]any

// inputSchema returns the schema of a tool's arguments. It allows only the message's fields, with their JSON names.
func inputSchema(md protoreflect.MessageDescriptor, budget *int) (schema, error) {
	return (&schemas{input: true, budget: budget}).objectSchema(md)
}

// outputSchema returns the schema of a tool's result, which is the response message without its progress field.
func outputSchema(md protoreflect.MessageDescriptor, budget *int) (schema, error) {
	return (&schemas{budget: budget}).objectSchema(md)
}

// maxSchemas is the maximum number of properties and enum names in the schemas of one server. This limit is necessary
// because nested messages can produce very large schemas from few bytes.
const maxSchemas = 200_000

// errSchemas is the error for a server whose schemas exceed maxSchemas.
var errSchemas = fmt.Errorf("the schemas of the server's tools have more than %d properties", maxSchemas)

type schemas struct {
	input bool
	// budget points to the number of properties and enum names that may still be added to the server's schemas.
	budget *int
	// enclosing contains the messages that enclose the current message.
	enclosing []protoreflect.FullName
}

// objectSchema returns the schema of a tool's arguments or result. MCP requires that the schema describes an object.
func (s *schemas) objectSchema(md protoreflect.MessageDescriptor) (schema, error) {
	out := s.message(md)
	switch {
	case *s.budget < 0:
		return nil, errSchemas
	case out["type"] != "object" || out["properties"] == nil:
		return nil, fmt.Errorf("%s is not a message with fields", md.FullName())
	}
	return out, nil
}

// takeBudget subtracts n from the budget. It reports whether the budget was at least n.
func (s *schemas) takeBudget(n int) bool {
	*s.budget -= n
	return *s.budget >= 0
}

func (s *schemas) message(md protoreflect.MessageDescriptor) schema {
	if known := wellKnown(md.FullName()); known != nil {
		return known
	}
	// The fields are left out of the schema if the message contains itself or the schemas are too large.
	if slices.Contains(s.enclosing, md.FullName()) || !s.takeBudget(1+md.Fields().Len()) {
		return schema{"type": "object"}
	}
	s.enclosing = append(s.enclosing, md.FullName())
	defer func() { s.enclosing = s.enclosing[:len(s.enclosing)-1] }()
	properties, required := schema{}, []string{}
	fields := md.Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if strictprotojson.IsProgress(fd) {
			continue
		}
		rules := strictprotojson.Rules(fd)
		properties[fd.JSONName()] = s.field(fd, rules)
		if rules.GetRequired() {
			required = append(required, fd.JSONName())
		}
	}
	out := schema{"type": "object", "properties": properties}
	if s.input {
		out["additionalProperties"] = false
		if len(required) > 0 {
			out["required"] = required
		}
	}
	return out
}

func (s *schemas) field(fd protoreflect.FieldDescriptor, rules *validatepb.FieldRules) schema {
	var out schema
	switch {
	case fd.IsMap():
		values := s.value(fd.MapValue())
		bounded(values, rules.GetMap().GetValues())
		out = schema{"type": "object", "additionalProperties": values}
		bounded(out, rules)
	case fd.IsList():
		items := s.value(fd)
		bounded(items, rules.GetRepeated().GetItems())
		out = schema{"type": "array", "items": items}
		bounded(out, rules)
	default:
		out = s.value(fd)
		bounded(out, rules)
		if s.input && rules.GetRequired() && out["type"] == "string" && out["minLength"] == nil && out["enum"] == nil {
			out["minLength"] = 1
		}
	}
	if text := descriptionOf(fd); text != "" {
		out["description"] = text
	}
	return out
}

// isDeprecated reports whether the protobuf definition marks an enum value as deprecated. Schemas omit such values.
func isDeprecated(v protoreflect.EnumValueDescriptor) bool {
	options, _ := v.Options().(*descriptorpb.EnumValueOptions)
	return options.GetDeprecated()
}

func (s *schemas) value(fd protoreflect.FieldDescriptor) schema {
	if strictprotojson.IsJSON(fd) {
		return schema{"type": "object"}
	}
	switch fd.Kind() { //nolint:exhaustive // the default type is a string
	case protoreflect.BoolKind:
		return schema{"type": "boolean"}
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return schema{"type": "integer", "minimum": math.MinInt32, "maximum": math.MaxInt32}
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return schema{"type": "integer", "minimum": 0, "maximum": int64(math.MaxUint32)}
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return schema{"type": "string", "pattern": "^-?[0-9]{1,19}$"}
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return schema{"type": "string", "pattern": "^[0-9]{1,20}$"}
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		return schema{"type": "number"}
	case protoreflect.BytesKind:
		return schema{"type": "string", "contentEncoding": "base64"}
	case protoreflect.EnumKind:
		names := []string{}
		if !s.takeBudget(fd.Enum().Values().Len()) {
			return schema{"type": "string"}
		}
		for i := range fd.Enum().Values().Len() {
			if v := fd.Enum().Values().Get(i); !strictprotojson.IsUnspecified(v) && !isDeprecated(v) {
				names = append(names, enum.NameOf(v))
			}
		}
		return schema{"type": "string", "enum": names}
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return s.message(fd.Message())
	}
	return schema{"type": "string"}
}

// wellKnown returns the schema of a message that has a special form in JSON, or nil for any other message.
func wellKnown(name protoreflect.FullName) schema {
	switch name {
	case "google.protobuf.Timestamp":
		return schema{"type": "string", "format": "date-time"}
	case "google.protobuf.Duration":
		return schema{"type": "string", "pattern": `^-?[0-9]{1,12}([.][0-9]{1,9})?s$`}
	case "google.protobuf.FieldMask":
		return schema{"type": "string"}
	case "google.protobuf.Struct", "google.protobuf.Any", "google.protobuf.Empty":
		return schema{"type": "object"}
	case "google.protobuf.ListValue":
		return schema{"type": "array"}
	case "google.protobuf.Value":
		return schema{}
	case "google.protobuf.BoolValue":
		return schema{"type": "boolean"}
	case "google.protobuf.StringValue", "google.protobuf.BytesValue", "google.protobuf.Int64Value", "google.protobuf.UInt64Value":
		return schema{"type": "string"}
	case "google.protobuf.Int32Value", "google.protobuf.UInt32Value":
		return schema{"type": "integer"}
	case "google.protobuf.FloatValue", "google.protobuf.DoubleValue":
		return schema{"type": "number"}
	}
	return nil
}

// bounded adds a field's validation rules to a schema as far as JSON Schema can express them. The server itself must
// check the other rules.
func bounded(out schema, rules *validatepb.FieldRules) {
	if rules == nil {
		return
	}
	set := rules.ProtoReflect().WhichOneof(rules.ProtoReflect().Descriptor().Oneofs().ByName("type"))
	if set == nil {
		return
	}
	rules.ProtoReflect().Get(set).Message().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch out["type"] {
		case "integer", "number":
			numbers(out, string(fd.Name()), v)
		case "string":
			texts(out, string(fd.Name()), v)
		case "array":
			switch fd.Name() {
			case "min_items":
				out["minItems"] = v.Uint()
			case "max_items":
				out["maxItems"] = v.Uint()
			case "unique":
				out["uniqueItems"] = v.Bool()
			}
		case "object":
			switch fd.Name() {
			case "min_pairs":
				out["minProperties"] = v.Uint()
			case "max_pairs":
				out["maxProperties"] = v.Uint()
			}
		}
		return true
	})
}

func numbers(out schema, rule string, v protoreflect.Value) {
	if word := map[string]string{"gte": "minimum", "gt": "exclusiveMinimum", "lte": "maximum", "lt": "exclusiveMaximum", "const": "const"}[rule]; word != "" {
		if f, ok := v.Interface().(float64); ok && (math.IsNaN(f) || math.IsInf(f, 0)) {
			return
		}
		if f, ok := v.Interface().(float32); ok && (math.IsNaN(float64(f)) || math.IsInf(float64(f), 0)) {
			return
		}
		out[word] = v.Interface()
	}
}

func texts(out schema, rule string, v protoreflect.Value) {
	base64ed := out["contentEncoding"] != nil
	switch rule {
	case "min_len":
		if least := v.Uint(); base64ed {
			out["minLength"] = base64.StdEncoding.EncodedLen(int(min(least, math.MaxInt32)))
		} else {
			out["minLength"] = least
		}
	case "max_len":
		if maxLength := v.Uint(); base64ed {
			out["maxLength"] = base64.StdEncoding.EncodedLen(int(min(maxLength, math.MaxInt32)))
		} else {
			out["maxLength"] = maxLength
		}
	case "max_bytes": // a character has at least one byte
		if out["maxLength"] == nil {
			out["maxLength"] = v.Uint()
		}
	case "pattern":
		if !base64ed {
			out["pattern"] = v.String()
		}
	case "prefix":
		if out["pattern"] == nil && !base64ed {
			out["pattern"] = "^" + regexp.QuoteMeta(v.String())
		}
	case "in":
		if out["enum"] != nil || base64ed {
			return
		}
		var names []string
		for i := range v.List().Len() {
			text, ok := v.List().Get(i).Interface().(string)
			if !ok {
				return
			}
			names = append(names, text)
		}
		out["enum"] = names
	}
}
