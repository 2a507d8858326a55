package npmtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Reply is what became of one command: Result or Error.
type Reply struct {
	// ID is the command's.
	ID int64 `json:"id"`
	// Result is what the SDK returned, written out again: numbers are doubles, unknown fields are those
	// that its schemas let through. [Reply.Message] has what really came.
	Result jsontext.Value `json:"result"`
	// Error is what the SDK threw, nil when it returned.
	Error *Error `json:"error"`
	// Progress holds the params of the progress notifications, without their token, in order.
	Progress []jsontext.Value `json:"progress"`
	// HTTP holds the POSTs that this command caused and that were answered, in the order of their answers.
	HTTP []Exchange `json:"http"`
}

// Error is an error of the SDK.
type Error struct {
	// Name is its class: McpError for a JSON-RPC error, StreamableHTTPError for an HTTP status.
	Name string `json:"name"`
	// Code is the JSON-RPC code or the HTTP status; 0 when there is none.
	Code int64 `json:"code"`
	// Message is for people. The SDK puts text of its own before the server's.
	Message string `json:"message"`
	// Data is the JSON-RPC error's, numbers as doubles; nil when there is none.
	Data jsontext.Value `json:"data"`
}

// Error says it all in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %d: %s %s", e.Name, e.Code, e.Message, e.Data)
}

// Exchange is one HTTP POST as it went out and came back.
type Exchange struct {
	// Sent is the body of the request.
	Sent string `json:"sent"`
	// Status is the HTTP status.
	Status int `json:"status"`
	// Headers are those of the response, names in lower case.
	Headers map[string]string `json:"headers"`
	// Body is the body of the response, an event stream included: all of it, or what had come two
	// seconds after the SDK was done.
	Body string `json:"body"`
	// Broken says why the body stopped short; empty when it did not.
	Broken string `json:"broken"`
}

// Messages returns the JSON-RPC messages of the response, byte for byte, whether they came as one body
// or as events. A body of another media type has none.
func (e Exchange) Messages() []string {
	mediaType, _, _ := strings.Cut(e.Headers["content-type"], ";")
	switch mediaType {
	case "application/json":
		return []string{e.Body}
	case "text/event-stream":
		return events(e.Body)
	default:
		return nil
	}
}

// events returns the data of the events of a stream that have any (WHATWG HTML, section 9.2).
func events(stream string) []string {
	var all []string
	var data []string
	for line := range strings.Lines(stream) {
		line = strings.TrimRight(line, "\r\n")
		text, isData := strings.CutPrefix(line, "data:")
		if isData {
			data = append(data, strings.TrimPrefix(text, " "))
		}
		if line == "" {
			if joined := strings.Join(data, "\n"); joined != "" {
				all = append(all, joined)
			}
			data = nil
		}
	}
	return all
}

// Message returns the JSON-RPC response to the command, byte for byte. The test fails if there is none.
func (r Reply) Message(t testing.TB) string {
	t.Helper()
	if len(r.HTTP) > 0 {
		if all := r.HTTP[len(r.HTTP)-1].Messages(); len(all) > 0 {
			return all[len(all)-1]
		}
	}
	t.Fatalf("no JSON-RPC message came back: %+v, error %v", r.HTTP, r.Error)
	return ""
}

// ToolResult is a result of `tools/call`.
type ToolResult struct {
	// IsError tells that the call failed as a tool does, or was refused.
	IsError bool `json:"isError"`
	// Content holds the pieces meant for a model. Only text is read.
	Content []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
	// StructuredContent is nil when there is none. Its numbers are doubles.
	StructuredContent jsontext.Value `json:"structuredContent"`
	// Meta is the result's `_meta`.
	Meta map[string]jsontext.Value `json:"_meta"`
}

// Text returns the text of all pieces, a line each.
func (r ToolResult) Text() string {
	var b strings.Builder
	for i, piece := range r.Content {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(piece.Text)
	}
	return b.String()
}

// ToolResult reads the result of a call. The test fails if the SDK threw instead.
func (r Reply) ToolResult(t testing.TB) ToolResult {
	t.Helper()
	var result ToolResult
	r.Into(t, &result)
	return result
}

// ToolNames returns the names in a list of tools, in order. The test fails if the SDK threw instead.
func (r Reply) ToolNames(t testing.TB) []string {
	t.Helper()
	var list struct {
		Tools []struct {
			Name string `json:"name"`
		} `json:"tools"`
	}
	r.Into(t, &list)
	names := make([]string, 0, len(list.Tools))
	for _, tool := range list.Tools {
		names = append(names, tool.Name)
	}
	return names
}

// Into reads the result into a pointer. The test fails if the SDK threw instead.
func (r Reply) Into(t testing.TB, result any) {
	t.Helper()
	if r.Error != nil {
		t.Fatalf("the TypeScript SDK threw %v", r.Error)
	}
	if err := json.Unmarshal(r.Result, result); err != nil {
		t.Fatalf("read the result: %v: %s", err, r.Result)
	}
}
