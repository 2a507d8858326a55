package jsonrpc

import "github.com/go-json-experiment/json/jsontext"

// Unquote returns the decoded value of a JSON string. It returns "" for any other value.
func Unquote(raw []byte) string {
	out, err := jsontext.AppendUnquote(nil, raw)
	if err != nil {
		return ""
	}
	return string(out)
}
