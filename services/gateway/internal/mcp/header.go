package mcp

import (
	"encoding/base64"
	"strings"
)

// What an encoded value stands between (MCP 2026-07-28, Transports, Value Encoding).
const encodedBegin, encodedEnd = "=?base64?", "?="

// EncodeHeader is a text as the value of a field `Mcp-Name` or `Mcp-Param-…`: as it is where it is
// visible ASCII and spaces within, else in base64, the empty one too (MCP 2026-07-28, Transports, Value Encoding).
func EncodeHeader(text string) string {
	plain := !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	if plain && text != "" && strings.TrimSpace(text) == text && !isEncoded(text) {
		return text
	}
	return encodedBegin + base64.StdEncoding.EncodeToString([]byte(text)) + encodedEnd
}

// DecodeHeader is the text that such a value says; false where it is none.
func DecodeHeader(value string) (string, bool) {
	if !isEncoded(value) {
		return value, true
	}
	text, err := base64.StdEncoding.Strict().DecodeString(value[len(encodedBegin) : len(value)-len(encodedEnd)])
	return string(text), err == nil
}

func isEncoded(value string) bool {
	return len(value) >= len(encodedBegin)+len(encodedEnd) && strings.HasPrefix(value, encodedBegin) && strings.HasSuffix(value, encodedEnd)
}

// Named is what the field `Mcp-Name` of a request says: the name, the URI or the task in its params;
// false for a method whose requests have no such field.
func Named(method, name, uri, task string) (string, bool) {
	switch method {
	case MethodToolsCall, "prompts/get":
		return name, true
	case "resources/read":
		return uri, true
	case MethodTasksGet, MethodTasksUpdate, MethodTasksCancel:
		return task, true
	default:
		return "", false
	}
}
