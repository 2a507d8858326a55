package npmtest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Reply is the response to one command. It contains either Result or Error.
type Reply struct {
	// ID is the id of the command.
	ID int64 `json:"id"`
	// Result is the value that the SDK returned. The Node program encodes it again, so numbers are doubles, and unknown
	// fields are present only if the SDK's schema allows them. [Reply.Message] returns the bytes that were received.
	Result jsontext.Value `json:"result"`
	// Error is the error that the SDK threw, or nil.
	Error *Error `json:"error"`
	// Progress contains the params of the progress notifications in order, without the progress token.
	Progress []jsontext.Value `json:"progress"`
	// HTTP contains those POST requests of this command that received a response, in the order of the responses.
	HTTP []Exchange `json:"http"`
}

// Error is an error that the SDK threw.
type Error struct {
	// Name is the class of the error: McpError for a JSON-RPC error, and StreamableHTTPError for an HTTP status.
	Name string `json:"name"`
	// Code is the JSON-RPC code or the HTTP status, or 0 if there is none.
	Code int64 `json:"code"`
	// Message is the SDK's own error message, followed by the server's message.
	Message string `json:"message"`
	// Data is the data of the JSON-RPC error, with numbers as doubles. It is nil if the error has no data.
	Data jsontext.Value `json:"data"`
}

// Error returns all fields in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("%s %d: %s %s", e.Name, e.Code, e.Message, e.Data)
}

// Exchange is one HTTP POST with its response.
type Exchange struct {
	// Sent is the body of the request.
	Sent string `json:"sent"`
	// Status is the HTTP status.
	Status int `json:"status"`
	// Headers contains the headers of the response, with names in lower case.
	Headers map[string]string `json:"headers"`
	// Body is the response body, which may be an event stream. If it is incomplete, it contains the bytes that were
	// received within two seconds after the SDK returned.
	Body string `json:"body"`
	// Broken is the reason why the body is incomplete. It is empty if the body is complete.
	Broken string `json:"broken"`
}

// Messages returns the JSON-RPC messages in the response byte for byte, from a JSON body or an event stream. For other
// media types it returns nil.
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

// events returns the data of each event in a stream (WHATWG HTML, section 9.2). Events without data are left out.
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

// Message returns the JSON-RPC response to the command, byte for byte. The test fails if there is no response.
func (r Reply) Message(t testing.TB) string {
	t.Helper()
	if len(r.HTTP) > 0 {
		if all := r.HTTP[len(r.HTTP)-1].Messages(); len(all) > 0 {
			return all[len(all)-1]
		}
	}
	t.Fatalf("no JSON-RPC message was received: %+v, error %v", r.HTTP, r.Error)
	return ""
}

// ToolResult is a result of `tools/call`.
type ToolResult struct {
	// IsError is true if the tool failed or the call was refused.
	IsError bool `json:"isError"`
	// Content contains the content for the model. Only text content is parsed.
	Content []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	} `json:"content"`
	// StructuredContent is the structured content with numbers as doubles, or nil.
	StructuredContent jsontext.Value `json:"structuredContent"`
	// Meta is the result's `_meta`.
	Meta map[string]jsontext.Value `json:"_meta"`
}

// Text returns all text content, one line for each part.
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

// ToolResult parses the result of a call. The test fails if the SDK threw an error.
func (r Reply) ToolResult(t testing.TB) ToolResult {
	t.Helper()
	var result ToolResult
	r.Into(t, &result)
	return result
}

// ToolNames returns the names in a list of tools, in order. The test fails if the SDK threw an error.
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

// Into unmarshals the result into a pointer. The test fails if the SDK threw an error.
func (r Reply) Into(t testing.TB, result any) {
	t.Helper()
	if r.Error != nil {
		t.Fatalf("the TypeScript SDK threw %v", r.Error)
	}
	if err := json.Unmarshal(r.Result, result); err != nil {
		t.Fatalf("read the result: %v: %s", err, r.Result)
	}
}
