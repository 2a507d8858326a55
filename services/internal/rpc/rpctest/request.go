package rpctest

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	validatev1 "buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// samples contains sample strings. Each pattern in the proto files matches at least one of them.
var samples = []string{"a", "0", "2026-07-28", strings.Repeat("0", 64), "a:a"}

// Request returns the smallest request that satisfies the constraints of a method.
func Request(t *testing.T, method protoreflect.MethodDescriptor) proto.Message {
	t.Helper()
	req := message(t, method.Input())
	fill(req.ProtoReflect())
	if err := protovalidate.Validate(req); err != nil {
		t.Fatalf("make a request for %s: %v", method.FullName(), err)
	}
	return req
}

// fill sets every field whose zero value violates the constraints.
func fill(m protoreflect.Message) {
	oneofs := m.Descriptor().Oneofs()
	for i := range oneofs.Len() {
		rules, ok := proto.GetExtension(oneofs.Get(i).Options(), validatev1.E_Oneof).(*validatev1.OneofRules)
		if ok && rules.GetRequired() {
			set(m, oneofs.Get(i).Fields().Get(0), new(validatev1.FieldRules))
		}
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		rules, ok := proto.GetExtension(fields.Get(i).Options(), validatev1.E_Field).(*validatev1.FieldRules)
		if ok && isZeroRefused(fields.Get(i), rules) {
			set(m, fields.Get(i), rules)
		}
	}
}

func isZeroRefused(field protoreflect.FieldDescriptor, rules *validatev1.FieldRules) bool {
	if field.IsList() {
		return rules.GetRepeated().GetMinItems() > 0
	}
	return rules.GetRequired() ||
		rules.GetString().GetMinLen() > 0 || rules.GetString().GetPrefix() != "" || len(rules.GetString().GetIn()) > 0 ||
		!matches(rules.GetString().GetPattern(), "") ||
		rules.GetBytes().GetLen() > 0 || rules.GetBytes().GetMinLen() > 0 ||
		slices.Contains(rules.GetEnum().GetNotIn(), 0) ||
		rules.GetInt32().GetGte() > 0 || rules.GetInt64().GetGte() > 0 || rules.GetUint64().GetGte() > 0
}

func set(m protoreflect.Message, field protoreflect.FieldDescriptor, rules *validatev1.FieldRules) {
	if field.IsList() {
		list := m.Mutable(field).List()
		for range rules.GetRepeated().GetMinItems() {
			list.Append(value(list.NewElement(), field, rules.GetRepeated().GetItems()))
		}
		return
	}
	m.Set(field, value(m.NewField(field), field, rules))
}

// value returns the smallest value that satisfies the rules. zero is the zero value of the field's type.
func value(zero protoreflect.Value, field protoreflect.FieldDescriptor, rules *validatev1.FieldRules) protoreflect.Value {
	switch field.Kind() { //nolint:exhaustive // for other kinds the zero value satisfies the rules
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(text(rules.GetString()))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(make([]byte, max(1, rules.GetBytes().GetLen(), rules.GetBytes().GetMinLen())))
	case protoreflect.EnumKind:
		if rules.GetEnum() == nil {
			return zero
		}
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rules.GetInt32().GetGte())
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rules.GetInt64().GetGte())
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(rules.GetUint64().GetGte())
	case protoreflect.MessageKind:
		if _, ok := zero.Message().Interface().(*durationpb.Duration); ok {
			return protoreflect.ValueOfMessage(durationpb.New(max(time.Second, rules.GetDuration().GetGte().AsDuration())).ProtoReflect())
		}
		fill(zero.Message())
	}
	return zero
}

// text returns a string that satisfies the rules.
func text(rules *validatev1.StringRules) string {
	if len(rules.GetIn()) > 0 {
		return rules.GetIn()[0]
	}
	for _, sample := range samples {
		if rules.GetPattern() != "" && matches(rules.GetPattern(), sample) {
			return sample
		}
	}
	return rules.GetPrefix() + strings.Repeat("a", max(1, int(rules.GetMinLen())))
}

func matches(pattern, text string) bool {
	ok, err := regexp.MatchString(pattern, text)
	return ok && err == nil
}
