package mcp

import (
	"encoding/base64"
	"strings"
)

// An encoded value stands between these delimiters (MCP 2026-07-28, Transports, Value Encoding).
const encodedBegin, encodedEnd = "=?base64?", "?="

// EncodeHeader encodes the value of a header `Mcp-Name` or `Mcp-Param-…` (MCP 2026-07-28, Transports, Value Encoding).
// It returns visible ASCII text unchanged if the text neither begins nor ends with a space. It encodes all other
// strings in base64, including the empty string and strings that look as if they were encoded.
func EncodeHeader(text string) string {
	plain := !strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' })
	if plain && text != "" && strings.TrimSpace(text) == text && !isEncoded(text) {
		return text
	}
	return encodedBegin + base64.StdEncoding.EncodeToString([]byte(text)) + encodedEnd
}

// DecodeHeader reverses [EncodeHeader]. It returns a value that is not encoded unchanged. If the base64 is invalid,
// DecodeHeader returns false.
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

// NameHeader returns the value of the header `Mcp-Name` for a request. Depending on the method, this is the name, the
// URI or the task id in the request's params. NameHeader returns false if requests with this method have no such
// header.
func NameHeader(method, name, uri, task string) (string, bool) {
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
