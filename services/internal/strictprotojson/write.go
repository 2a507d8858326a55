package strictprotojson

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// ErrTooLarge means that the JSON form of a message would be too long.
var ErrTooLarge = errors.New("the message is too large as JSON")

// Append appends a message to out as a JSON object. If out becomes longer than limit bytes, Append returns
// [ErrTooLarge]. By then, out can be slightly longer than limit. A field without presence is written even if it is
// empty. Unspecified enum values and progress are omitted.
func Append(out []byte, m protoreflect.Message, limit int) ([]byte, error) {
	return (&writer{limit}).message(out, m)
}

type writer struct{ most int }

func (w *writer) message(out []byte, m protoreflect.Message) (_ []byte, err error) {
	if len(out) > w.most { // empty messages count too
		return nil, ErrTooLarge
	}
	if IsWellKnown(m.Descriptor()) {
		text, err := protojson.Marshal(m.Interface())
		if err != nil {
			return nil, fmt.Errorf("write a %s: %w", m.Descriptor().Name(), err)
		}
		v := jsontext.Value(text)
		if err := v.Compact(); err != nil {
			return nil, fmt.Errorf("write a %s: %w", m.Descriptor().Name(), err)
		}
		return append(out, v...), nil
	}
	out = append(out, '{')
	first := true
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if IsProgress(fd) || fd.HasPresence() && !m.Has(fd) || fd.Kind() == protoreflect.EnumKind && !fd.IsList() && !fd.IsMap() && isUnspecifiedValue(fd, m.Get(fd)) {
			continue
		}
		if !first {
			out = append(out, ',')
		}
		first = false
		if out, err = jsontext.AppendQuote(out, fd.JSONName()); err != nil {
			return nil, fmt.Errorf("write %s: %w", fd.Name(), err)
		}
		out = append(out, ':')
		if out, err = w.field(out, fd, m.Get(fd)); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func isUnspecifiedValue(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	value := fd.Enum().Values().ByNumber(v.Enum())
	return value != nil && IsUnspecified(value)
}

func (w *writer) field(out []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) (_ []byte, err error) {
	switch {
	case fd.IsList():
		out = append(out, '[')
		for i := range v.List().Len() {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = w.value(out, fd, v.List().Get(i)); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case fd.IsMap():
		return w.entries(out, fd, v.Map())
	}
	return w.value(out, fd, v)
}

func (w *writer) entries(out []byte, fd protoreflect.FieldDescriptor, entries protoreflect.Map) (_ []byte, err error) {
	var keys []protoreflect.MapKey
	entries.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	out = append(out, '{')
	for i, k := range keys {
		if i > 0 {
			out = append(out, ',')
		}
		if out, err = jsontext.AppendQuote(out, k.String()); err != nil {
			return nil, fmt.Errorf("write %s: %w", fd.Name(), err)
		}
		if out, err = w.value(append(out, ':'), fd.MapValue(), entries.Get(k)); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func (w *writer) value(out []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	text := ""
	switch fd.Kind() { //nolint:exhaustive // values of other kinds are numbers of 64 bits
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return w.message(out, v.Message())
	case protoreflect.BoolKind:
		return strconv.AppendBool(out, v.Bool()), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return strconv.AppendInt(out, v.Int(), 10), nil
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return strconv.AppendUint(out, v.Uint(), 10), nil
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if f := v.Float(); !math.IsNaN(f) && !math.IsInf(f, 0) {
			bits := 64
			if fd.Kind() == protoreflect.FloatKind {
				bits = 32
			}
			return strconv.AppendFloat(out, f, 'g', -1, bits), nil
		}
		return append(out, "null"...), nil
	case protoreflect.BytesKind:
		text = base64.StdEncoding.EncodeToString(v.Bytes())
	case protoreflect.EnumKind:
		if value := fd.Enum().Values().ByNumber(v.Enum()); value != nil {
			text = enum.NameOf(value)
		} else {
			text = strconv.Itoa(int(v.Enum()))
		}
	case protoreflect.StringKind:
		if IsJSON(fd) {
			return appendObject(out, fd, v.String())
		}
		text = v.String()
	default: // numbers of 64 bits
		text = v.String()
	}
	out, err := jsontext.AppendQuote(out, text)
	if err != nil {
		return nil, fmt.Errorf("write %s: %w", fd.Name(), err)
	}
	return out, nil
}

// appendObject appends a string field that contains a JSON object.
func appendObject(out []byte, fd protoreflect.FieldDescriptor, text string) ([]byte, error) {
	if text == "" {
		text = "{}"
	}
	v := jsontext.Value(text)
	if !v.IsValid() || v.Kind() != '{' {
		return nil, fmt.Errorf("write %s: it contains no JSON object", fd.Name())
	}
	return append(out, v...), nil
}
