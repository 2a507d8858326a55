package binding

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxNumbering is the maximum length, in bytes, of a string or number that may differ between repetitions of a call.
// The escapes of a string are resolved before it is measured.
const maxNumbering = 128

// numberingKeys lists the keys of `_meta` with which the protocol and known clients number or tag each request.
var numberingKeys = []string{
	"progressToken", "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/logLevel",
	"claudecode/toolUseId", "vscode.conversationId", "vscode.requestId",
}

// IsPerRequest reports whether a member of `_meta` belongs to a single request and not to the approved call. The member
// is given by its key and its raw value. It is sent to the server unchanged, except that the gateway itself writes
// the trace context and clientCapabilities.
//
// If the value has more content than the key implies, the member is part of the approved call. A server could act on
// that content, so approvers must see it.
func IsPerRequest(key string, value []byte) bool {
	switch key {
	case "traceparent", "tracestate", "baggage":
		return true
	case "io.modelcontextprotocol/clientCapabilities":
		return jsontext.Value(value).Kind() == '{'
	case "io.modelcontextprotocol/clientInfo":
		return isNameAndVersion(value)
	default:
		return slices.Contains(numberingKeys, key) && isNumbering(value)
	}
}

// isNumbering reports whether a value is a number or a short string.
func isNumbering(value jsontext.Value) bool {
	switch value.Kind() { //nolint:exhaustive // values of other kinds don't number requests
	case '"':
		text, err := jsontext.AppendUnquote(nil, value)
		return err == nil && len(text) <= maxNumbering
	case '0':
		return len(value) <= maxNumbering
	default:
		return false
	}
}

// isNameAndVersion reports whether a value is an object whose only members are name and version, both short strings.
// Either may be missing.
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
