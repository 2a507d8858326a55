package binding

import (
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxNumbering is the maximum length, in bytes, of a string or number that can differ between repetitions of a call.
// The length of a string does not include its escapes and quotes.
const maxNumbering = 128

// numberingKeys lists the keys of `_meta` that the protocol and known clients use to number or tag each request.
var numberingKeys = []string{
	"progressToken", "io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/logLevel",
	"claudecode/toolUseId", "vscode.conversationId", "vscode.requestId",
}

// IsPerRequest reports whether a member of `_meta` belongs to a single request and not to the approved call. key and
// value are the member's key and raw value. The gateway sends such a member to the server unchanged, except for the
// trace context and clientCapabilities, which the gateway itself writes.
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
// Either member can be missing.
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
