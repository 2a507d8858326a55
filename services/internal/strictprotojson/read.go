package strictprotojson

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/internal/enum"
)

// Error describes a problem in JSON text and its position.
type Error struct {
	// Pointer is a JSON Pointer (RFC 6901) to the value.
	Pointer string
	// Message describes the problem, for people and for models.
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Pointer + ": " + e.Message }

// Read reads a JSON object into an empty message. It accepts only one form of each message. Fields have their JSON
// names, numbers are JSON numbers, strings are JSON strings, and enum values are written as their names. 64-bit
// integers are written as strings of digits. Required fields must be present. The input must be JSON without repeated
// names. Read does not check the other constraints of the fields. Errors have the type [*Error].
func Read(text []byte, m protoreflect.Message) error {
	r := &reader{dec: jsontext.NewDecoder(bytes.NewReader(text))}
	if err := r.message(m, ""); err != nil {
		return err
	}
	if _, err := r.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return errorAt("", "something follows the object")
	}
	return nil
}

type reader struct{ dec *jsontext.Decoder }

func errorAt(at, why string, args ...any) error {
	return &Error{Pointer: "/" + strings.TrimPrefix(at, "/"), Message: fmt.Sprintf(why, args...)}
}

func (r *reader) message(m protoreflect.Message, at string) error {
	if IsWellKnown(m.Descriptor()) {
		if value := m.Descriptor().Fields().ByName("value"); value != nil && value.Number() == 1 && m.Descriptor().Fields().Len() == 1 {
			v, err := r.scalar(value, at) // a wrapper type, such as google.protobuf.StringValue
			if err == nil {
				m.Set(value, v)
			}
			return err
		}
		text, err := r.dec.ReadValue()
		if err != nil {
			return errorAt(at, "%v", err)
		}
		if m.Descriptor().FullName() == "google.protobuf.Any" { // the members of Any have other names
			return errorAt(at, "is not offered")
		}
		if err := protojson.Unmarshal(text, m.Interface()); err != nil {
			return errorAt(at, "is not a valid %s", m.Descriptor().Name())
		}
		return nil
	}
	if r.dec.PeekKind() != '{' {
		return errorAt(at, "must be an object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return errorAt(at, "%v", err)
	}
	fields := m.Descriptor().Fields()
	given := make(map[protoreflect.FieldNumber]bool)
	for r.dec.PeekKind() != '}' {
		key, err := r.dec.ReadToken()
		if err != nil {
			return errorAt(at, "%v", err)
		}
		name := key.String()
		inside := at + "/" + escapePointer(name)
		fd := fields.ByJSONName(name)
		if fd == nil || IsProgress(fd) {
			return errorAt(inside, "is not known; the known fields are %s", fieldNames(fields))
		}
		if other := fd.ContainingOneof(); other != nil && !other.IsSynthetic() && m.WhichOneof(other) != nil {
			return errorAt(inside, "is one of two that exclude each other")
		}
		given[fd.Number()] = true
		if err := r.field(m, fd, inside); err != nil {
			return err
		}
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return errorAt(at, "%v", err)
	}
	for i := range fields.Len() {
		if fd := fields.Get(i); Rules(fd).GetRequired() && !given[fd.Number()] {
			return errorAt(at+"/"+escapePointer(fd.JSONName()), "is missing")
		}
	}
	return nil
}

// fieldNames returns the names of the fields for error messages.
func fieldNames(fields protoreflect.FieldDescriptors) string {
	var names []string
	for i := range fields.Len() {
		if fd := fields.Get(i); !IsProgress(fd) {
			names = append(names, fd.JSONName())
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// escapePointer escapes a name so that it can be a reference token of a JSON Pointer.
func escapePointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

func (r *reader) field(m protoreflect.Message, fd protoreflect.FieldDescriptor, at string) error {
	switch {
	case fd.IsList():
		return r.list(m.Mutable(fd).List(), fd, at)
	case fd.IsMap():
		return r.entries(m.Mutable(fd).Map(), fd, at)
	case fd.Message() != nil:
		return r.message(m.Mutable(fd).Message(), at)
	}
	v, err := r.scalar(fd, at)
	if err != nil {
		return err
	}
	m.Set(fd, v)
	return nil
}

func (r *reader) list(list protoreflect.List, fd protoreflect.FieldDescriptor, at string) error {
	if r.dec.PeekKind() != '[' {
		return errorAt(at, "must be an array")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return errorAt(at, "%v", err)
	}
	for i := 0; r.dec.PeekKind() != ']'; i++ {
		inside := at + "/" + strconv.Itoa(i)
		if fd.Message() != nil {
			if err := r.message(list.AppendMutable().Message(), inside); err != nil {
				return err
			}
			continue
		}
		v, err := r.scalar(fd, inside)
		if err != nil {
			return err
		}
		list.Append(v)
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r *reader) entries(entries protoreflect.Map, fd protoreflect.FieldDescriptor, at string) error {
	if fd.MapKey().Kind() != protoreflect.StringKind {
		return errorAt(at, "has keys that are not strings, which tools can't accept")
	}
	if r.dec.PeekKind() != '{' {
		return errorAt(at, "must be an object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return errorAt(at, "%v", err)
	}
	for r.dec.PeekKind() != '}' {
		token, err := r.dec.ReadToken()
		if err != nil {
			return errorAt(at, "%v", err)
		}
		name := token.String()
		key, inside := protoreflect.ValueOfString(name).MapKey(), at+"/"+escapePointer(name)
		if fd.MapValue().Message() != nil {
			v := entries.NewValue()
			if err := r.message(v.Message(), inside); err != nil {
				return err
			}
			entries.Set(key, v)
			continue
		}
		v, err := r.scalar(fd.MapValue(), inside)
		if err != nil {
			return err
		}
		entries.Set(key, v)
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r *reader) scalar(fd protoreflect.FieldDescriptor, at string) (protoreflect.Value, error) {
	raw, err := r.dec.ReadValue()
	if err != nil {
		return protoreflect.Value{}, errorAt(at, "%v", err)
	}
	v, err := scalarOf(fd, raw)
	if err != nil {
		return protoreflect.Value{}, errorAt(at, "%v", err)
	}
	return v, nil
}

var (
	errNotString = errors.New("must be a string")
	errNotObject = errors.New("must be an object")
)

func scalarOf(fd protoreflect.FieldDescriptor, raw jsontext.Value) (protoreflect.Value, error) {
	if IsJSON(fd) {
		if raw.Kind() != '{' {
			return protoreflect.Value{}, errNotObject
		}
		return protoreflect.ValueOfString(string(raw)), nil // the spelling of the object is not changed
	}
	switch fd.Kind() { //nolint:exhaustive // values of other kinds are JSON strings, see below
	case protoreflect.BoolKind:
		if raw.Kind() != 't' && raw.Kind() != 'f' {
			return protoreflect.Value{}, errors.New("must be true or false")
		}
		return protoreflect.ValueOfBool(raw.Kind() == 't'), nil
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		n, err := parseInt(raw, '0', 32)
		return protoreflect.ValueOfInt32(int32(n)), err
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		n, err := parseInt(raw, '"', 64)
		return protoreflect.ValueOfInt64(n), err
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		n, err := parseUint(raw, '0', 32)
		return protoreflect.ValueOfUint32(uint32(n)), err
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		n, err := parseUint(raw, '"', 64)
		return protoreflect.ValueOfUint64(n), err
	case protoreflect.FloatKind, protoreflect.DoubleKind:
		if raw.Kind() != '0' {
			return protoreflect.Value{}, errors.New("must be a number")
		}
		bits := 64
		if fd.Kind() == protoreflect.FloatKind {
			bits = 32
		}
		n, err := strconv.ParseFloat(string(raw), bits)
		if err != nil {
			return protoreflect.Value{}, errors.New("is too large a number")
		}
		if bits == 32 {
			return protoreflect.ValueOfFloat32(float32(n)), nil
		}
		return protoreflect.ValueOfFloat64(n), nil
	}
	text, err := jsontext.AppendUnquote(nil, raw)
	if raw.Kind() != '"' || err != nil {
		return protoreflect.Value{}, errNotString
	}
	switch fd.Kind() { //nolint:exhaustive // values of other kinds are handled above
	case protoreflect.BytesKind:
		b, err := base64.StdEncoding.Strict().DecodeString(string(text))
		if err != nil || base64.StdEncoding.EncodeToString(b) != string(text) { // DecodeString accepts line breaks
			return protoreflect.Value{}, errors.New("must be base64 (RFC 4648, section 4)")
		}
		return protoreflect.ValueOfBytes(b), nil
	case protoreflect.EnumKind:
		return enumValueOf(fd.Enum(), string(text))
	}
	return protoreflect.ValueOfString(string(text)), nil
}

// parseInt parses an integer from JSON. A 32-bit integer must be a JSON number, and a 64-bit integer must be a JSON
// string.
func parseInt(raw jsontext.Value, kind jsontext.Kind, bits int) (int64, error) {
	text, err := digits(raw, kind)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(text, 10, bits)
	if err != nil || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("must be a whole number of %d bits, without leading zeros", bits)
	}
	return n, nil
}

func parseUint(raw jsontext.Value, kind jsontext.Kind, bits int) (uint64, error) {
	text, err := digits(raw, kind)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("must be a whole number of %d bits, not below 0, without leading zeros", bits)
	}
	return n, nil
}

// digits returns the digits of a number. It returns an error unless the number is written in its only accepted form.
func digits(raw jsontext.Value, kind jsontext.Kind) (string, error) {
	if raw.Kind() != kind {
		if kind == '"' {
			return "", errors.New("must be a string of digits")
		}
		return "", errors.New("must be a number")
	}
	text := strings.Trim(string(raw), `"`)
	if strings.Trim(text, "-0123456789") != "" {
		return "", errors.New("must be a whole number, written in digits")
	}
	return text, nil
}

func enumValueOf(values protoreflect.EnumDescriptor, name string) (protoreflect.Value, error) {
	var names []string
	for i := range values.Values().Len() {
		v := values.Values().Get(i)
		if IsUnspecified(v) {
			continue
		}
		if enum.NameOf(v) == name {
			return protoreflect.ValueOfEnum(v.Number()), nil
		}
		names = append(names, enum.NameOf(v))
	}
	return protoreflect.Value{}, fmt.Errorf("must be one of %s", strings.Join(names, ", "))
}
