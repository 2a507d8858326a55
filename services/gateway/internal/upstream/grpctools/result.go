package grpctools

import (
	"encoding/base64"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// result writes an answer as a CallToolResult (MCP 2025-11-25, "Tool Result"): as JSON,
// and the same as text for clients that look at nothing else.
func (t *tool) result(m protoreflect.Message) ([]byte, error) {
	structured, err := appendMessage(nil, m)
	if err != nil {
		return nil, err
	}
	switch {
	case t.success && len(structured) == len(`{}`):
		structured = []byte(`{"success":true}`)
	case t.success:
		structured = append([]byte(`{"success":true,`), structured[1:]...)
	}
	text, err := jsontext.AppendQuote(nil, structured)
	if err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	out := make([]byte, 0, len(text)+len(structured)+80)
	out = append(append(out, `{"content":[{"type":"text","text":`...), text...)
	out = append(append(out, `}],"structuredContent":`...), structured...)
	return append(out, '}'), nil
}

// maxJSON is how long an answer may be as JSON, in bytes: it is in a result twice.
const maxJSON = upstream.MaxMessage / 2

var errJSON = fmt.Errorf("the answer has more than %d bytes as JSON", maxJSON)

// metaStatus is the key in a result's `_meta` under which a server's status stands.
const metaStatus = "io.grpc/status"

// failure writes why a call failed as a result that says so: whoever reads the text can act
// on it. Whatever the status says that machines can tell apart stands in `_meta` as well.
func failure(st *status.Status) ([]byte, error) {
	code := codeName(st.Code())
	text, meta := code, `{"code":"`+code+`"`
	i := slices.IndexFunc(st.Details(), func(detail any) bool {
		_, ok := detail.(*errdetails.ErrorInfo)
		return ok
	})
	if i >= 0 {
		info, _ := st.Details()[i].(*errdetails.ErrorInfo)
		reason, err := jsontext.AppendQuote(nil, info.GetReason())
		if err != nil {
			return nil, fmt.Errorf("write the failure: %w", err)
		}
		text, meta = text+" "+info.GetReason(), meta+`,"reason":`+string(reason)
	}
	if st.Message() != "" {
		text += ": " + st.Message()
	}
	return failed(strings.ToValidUTF8(text, "�"), meta+"}")
}

// failed is a result that says that the call failed and why.
func failed(text, meta string) ([]byte, error) {
	quoted, err := jsontext.AppendQuote(nil, text)
	if err != nil {
		return nil, fmt.Errorf("write the failure: %w", err)
	}
	out := append([]byte(`{"content":[{"type":"text","text":`), quoted...)
	out = append(out, `}],"isError":true`...)
	if meta != "" {
		out = append(append(append(out, `,"_meta":{"`+metaStatus+`":`...), meta...), '}')
	}
	return append(out, '}'), nil
}

// codeName is a status code as the contracts write it.
func codeName(c codes.Code) string {
	return codepb.Code(c).String()
}

// appendMessage writes a message as its output schema says. What a field without presence
// holds is written even where that is nothing; an enum that says nothing is left out.
func appendMessage(out []byte, m protoreflect.Message) (_ []byte, err error) {
	if len(out) > maxJSON { // empty fields are written, too
		return nil, errJSON
	}
	if wellKnown(m.Descriptor().FullName()) != nil {
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
		if isProgress(fd) || fd.HasPresence() && !m.Has(fd) || fd.Kind() == protoreflect.EnumKind && !fd.IsList() && !fd.IsMap() && saysNothing(fd, m.Get(fd)) {
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
		if out, err = appendField(out, fd, m.Get(fd)); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func saysNothing(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
	value := fd.Enum().Values().ByNumber(v.Enum())
	return value != nil && isUnspecified(value)
}

func appendField(out []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) (_ []byte, err error) {
	switch {
	case fd.IsList():
		out = append(out, '[')
		for i := range v.List().Len() {
			if i > 0 {
				out = append(out, ',')
			}
			if out, err = appendValue(out, fd, v.List().Get(i)); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case fd.IsMap():
		return appendMap(out, fd, v.Map())
	}
	return appendValue(out, fd, v)
}

func appendMap(out []byte, fd protoreflect.FieldDescriptor, entries protoreflect.Map) (_ []byte, err error) {
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
		if out, err = appendValue(append(out, ':'), fd.MapValue(), entries.Get(k)); err != nil {
			return nil, err
		}
	}
	return append(out, '}'), nil
}

func appendValue(out []byte, fd protoreflect.FieldDescriptor, v protoreflect.Value) ([]byte, error) {
	text := ""
	switch fd.Kind() { //nolint:exhaustive // numbers of 64 bits are left
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return appendMessage(out, v.Message())
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
			text = valueName(value)
		} else {
			text = strconv.Itoa(int(v.Enum()))
		}
	case protoreflect.StringKind:
		if isJSON(fd) {
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

// appendObject writes a field that holds a JSON object as text.
func appendObject(out []byte, fd protoreflect.FieldDescriptor, text string) ([]byte, error) {
	if text == "" {
		text = "{}"
	}
	v := jsontext.Value(text)
	if !v.IsValid() || v.Kind() != '{' {
		return nil, fmt.Errorf("write %s: it holds no JSON object", fd.Name())
	}
	return append(out, v...), nil
}

// progressOf is how far the call is, as a notification for a request with a token; nil
// where the message does not say.
func progressOf(m protoreflect.Message, token []byte) []byte {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !isProgress(fd) || !m.Has(fd) {
			continue
		}
		p := m.Get(fd).Message()
		number := func(name protoreflect.Name) float64 {
			f := p.Get(p.Descriptor().Fields().ByName(name)).Float()
			if math.IsNaN(f) || math.IsInf(f, 0) {
				return 0
			}
			return f
		}
		out := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), token...)
		out = strconv.AppendFloat(append(out, `,"progress":`...), number("progress"), 'f', -1, 64)
		if total := number("total"); total > 0 {
			out = strconv.AppendFloat(append(out, `,"total":`...), total, 'f', -1, 64)
		}
		if text := p.Get(p.Descriptor().Fields().ByName("message")).String(); text != "" {
			quoted, err := jsontext.AppendQuote(nil, text)
			if err != nil {
				return nil
			}
			out = append(append(out, `,"message":`...), quoted...)
		}
		return append(out, "}}"...)
	}
	return nil
}

// says tells whether a message says how far the call is, and so is not its answer.
func saysProgress(m protoreflect.Message) bool {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); isProgress(fd) && m.Has(fd) {
			return true
		}
	}
	return false
}
