package binding

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxNumbering is the maximum length of a text or a number that may differ between repetitions of a call, in bytes,
// with escapes resolved.
const maxNumbering = 128

// numbering are the keys of `_meta` by which the protocol, and known clients, number or mark each request.
var numbering = []string{
	"progressToken", "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/logLevel",
	"claudecode/toolUseId", "vscode.conversationId", "vscode.requestId",
}

// OfSending reports whether a member of `_meta`, with this raw value, belongs to one request and not to the approved
// call. Such a member is sent to the server unchanged, except that the gateway writes the trace context and
// clientCapabilities itself. A member with more content than its key implies is part of the approved call: a server
// could act on it, so approvers must see it.
func OfSending(key string, value []byte) bool {
	switch key {
	case "traceparent", "tracestate", "baggage":
		return true
	case "io.modelcontextprotocol/clientCapabilities":
		return jsontext.Value(value).Kind() == '{'
	case "io.modelcontextprotocol/clientInfo":
		return isNameAndVersion(value)
	default:
		return slices.Contains(numbering, key) && isNumbering(value)
	}
}

// isNumbering reports whether a value is a number or a short text.
func isNumbering(value jsontext.Value) bool {
	switch value.Kind() { //nolint:exhaustive // other kinds of values number nothing
	case '"':
		text, err := jsontext.AppendUnquote(nil, value)
		return err == nil && len(text) <= maxNumbering
	case '0':
		return len(value) <= maxNumbering
	default:
		return false
	}
}

// isNameAndVersion reports whether a value is an object with only a name and a version, or one of them, which are
// short texts.
func isNameAndVersion(value jsontext.Value) bool {
	var has map[string]jsontext.Value
	if value.Kind() != '{' || json.Unmarshal(value, &has) != nil {
		return false
	}
	for key, value := range has {
		if key != "name" && key != "version" || value.Kind() != '"' || !isNumbering(value) {
			return false
		}
	}
	return true
}
