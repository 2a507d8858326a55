package redaction

import (
	"encoding/base64"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// A part is the part of a message that is searched.
type part uint8

const (
	inArguments part = iota
	inResult
	inError
	inParams
)

// kept are members that MCP defines and that contain no data: their values select how a message is read, or belong to
// the receiver. They are never replaced.
var kept = map[part][]string{
	inResult: {"isError", "resultType", "content/*/type", "messages/*/role", "messages/*/content/type"},
	inError:  {"code"},
	inParams: {"progressToken", "requestId", "progress", "total", "level"},
}

// dataRoots are the members at which paths begin, besides the whole part.
var dataRoots = map[part]string{inResult: "structuredContent", inError: "data", inParams: "data"}

// base64Members are the members with base64 (MCP, Content and Resource Contents).
var base64Members = []string{
	"content/*/data", "content/*/resource/blob", "contents/*/blob", "messages/*/content/data", "messages/*/content/resource/blob",
}

// objects are replacements for objects and arrays that MCP defines. Anything else becomes a string.
var objects = map[string]string{
	"structuredContent":  `{"redacted":"[redacted: path]"}`,
	"content":            `[` + textContent + `]`,
	"content/*":          textContent,
	"content/*/resource": `{"uri":"redacted:path","text":"[redacted: path]"}`,
	"contents":           `[]`,
	"contents/*":         `{"uri":"redacted:path","text":"[redacted: path]"}`,
	"messages":           `[]`,
	"messages/*":         `{"role":"user","content":` + textContent + `}`,
	"messages/*/content": textContent,
	"_meta":              `{}`,
}

const textContent = `{"type":"text","text":"[redacted: path]"}`

// here returns the location of the current value as text. It is empty in the content of a string.
func (w *walker) here() string {
	if w.text {
		return ""
	}
	return strings.Join(w.location, "/")
}

// keeps reports whether the current value is never replaced.
func (w *walker) keeps() bool {
	return !w.text && w.part != inArguments && len(w.location) <= 4 && slices.Contains(kept[w.part], w.here())
}

// isRoot reports whether paths begin at the current value.
func (w *walker) isRoot() bool {
	return !w.text && len(w.location) == 1 && w.location[0] == dataRoots[w.part]
}

// isBase64 reports whether MCP defines the current value as base64.
func (w *walker) isBase64() bool {
	if w.text || w.part == inArguments || len(w.location) == 0 {
		return false
	}
	last := w.location[len(w.location)-1]
	return (last == "data" || last == "blob") && slices.Contains(base64Members, w.here())
}

// selectedText returns the replacement of a value that a path selects.
func (w *walker) selectedText(raw jsontext.Value) []byte {
	text := replacement(ByPath)
	switch with, ok := objects[w.here()]; {
	case w.part != inResult:
	case w.isBase64():
		text = base64.StdEncoding.EncodeToString([]byte(text))
	case ok && (raw.Kind() == jsontext.KindBeginObject || raw.Kind() == jsontext.KindBeginArray):
		return []byte(with)
	}
	return quoted(text)
}
