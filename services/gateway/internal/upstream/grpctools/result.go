package grpctools

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	codepb "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/strictprotojson"
)

// result encodes a response as a CallToolResult (MCP 2025-11-25, Tool Result). The result contains the response as
// structured JSON, and as text for clients that read only text.
func (t *tool) result(m protoreflect.Message) ([]byte, error) {
	structured, err := strictprotojson.Append(nil, m, maxJSON)
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

// maxJSON is the maximum length, in bytes, of a response in JSON. A result contains the JSON twice.
const maxJSON = upstream.MaxMessage / 2

// metaStatus is the key for the server's status in the `_meta` of a result.
const metaStatus = "io.grpc/status"

// failure encodes the status of a failed call as a tool result that reports an error. The text of the result is for the
// model. `_meta` repeats the code, the reason and the metadata for programs.
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
		if len(info.GetMetadata()) > 0 {
			facts, err := json.Marshal(info.GetMetadata(), json.Deterministic(true))
			if err != nil {
				return nil, fmt.Errorf("write the failure: %w", err)
			}
			meta += `,"metadata":` + string(facts)
		}
	}
	if st.Message() != "" {
		text += ": " + st.Message()
	}
	return failed(strings.ToValidUTF8(text, "�"), meta+"}")
}

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

func codeName(c codes.Code) string {
	return codepb.Code(c).String()
}

// progressOf returns a progress notification with the given token and the progress in a message. It returns nil if the
// message contains no progress.
func progressOf(m protoreflect.Message, token []byte) []byte {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !strictprotojson.IsProgress(fd) || !m.Has(fd) {
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

func isProgress(m protoreflect.Message) bool {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		if fd := fields.Get(i); strictprotojson.IsProgress(fd) && m.Has(fd) {
			return true
		}
	}
	return false
}
