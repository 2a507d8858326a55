package redaction

import (
	"bytes"
	"encoding/base64"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
)

// A part names the part of a message that is searched.
type part uint8

const (
	inArguments part = iota
	inResult
	inError
	inParams
	inProgress  // params of notifications/progress
	inCancelled // params of notifications/cancelled
)

// paramsOf returns the part that contains the params of a server's message with this method. The server has sent the
// message before its answer.
func paramsOf(method string) part {
	switch method {
	case mcp.MethodProgress:
		return inProgress
	case mcp.MethodCancelled:
		return inCancelled
	}
	return inParams
}

// keptMembers contains the members whose values redactions do not replace, for example `type`. A value is kept only if
// it has the form that MCP defines. Kept values contain no data. They determine how a message is read, or were chosen
// by the receiver of the message.
var keptMembers = map[part][]keptMember{
	inResult: {
		{steps("isError"), isBoolean}, {steps("resultType"), isKeyword}, {steps("content/*/type"), isKeyword},
		{steps("messages/*/role"), isKeyword}, {steps("messages/*/content/type"), isKeyword},
	},
	inError:     {{steps("code"), isNumber}},
	inParams:    {{steps("level"), isKeyword}},
	inProgress:  {{steps("progressToken"), isID}, {steps("progress"), isNumber}, {steps("total"), isNumber}},
	inCancelled: {{steps("requestId"), isID}},
}

// A keptMember is a member whose value redactions do not replace if isForm returns true for the value.
type keptMember struct {
	at     []step
	isForm func(raw jsontext.Value) bool
}

func isBoolean(raw jsontext.Value) bool {
	return raw.Kind() == jsontext.KindTrue || raw.Kind() == jsontext.KindFalse
}

func isNumber(raw jsontext.Value) bool { return raw.Kind() == jsontext.KindNumber }

func isID(raw jsontext.Value) bool { return isNumber(raw) || raw.Kind() == jsontext.KindString }

// isKeyword reports whether a value is a string that looks like an MCP keyword, for example "resource_link".
func isKeyword(raw jsontext.Value) bool {
	if raw.Kind() != jsontext.KindString {
		return false
	}
	word := raw[1 : len(raw)-1]
	return len(word) <= maxKeyword && !bytes.ContainsFunc(word, func(c rune) bool { return (c < 'a' || c > 'z') && c != '_' })
}

// maxKeyword limits the length of a keyword, in bytes. MCP's own keywords have at most 14 bytes.
const maxKeyword = 32

// A step is one element of a location. It leads from a JSON value to one of the value's members or elements.
type step struct {
	// name is the key of the member. It is empty if the step leads to an element.
	name   string
	isItem bool
}

// item is the step to any element of an array.
var item = step{isItem: true}

// steps parses a location, such as `content/*/data`. In a location, `*` matches every element of an array.
func steps(location string) (out []step) {
	for name := range strings.SplitSeq(location, "/") {
		if name == "*" {
			out = append(out, item)
		} else {
			out = append(out, step{name: name})
		}
	}
	return out
}

// dataRoots maps each part except the arguments to a member. Paths can begin at that member as well as at the root of
// the part.
var dataRoots = map[part]string{
	inResult: "structuredContent", inError: "data", inParams: "data", inProgress: "data", inCancelled: "data",
}

// base64Members are the locations of the values that MCP defines as base64 (MCP, Content and Resource Contents).
var base64Members = [][]step{
	steps("content/*/data"), steps("content/*/resource/blob"), steps("contents/*/blob"), steps("messages/*/content/data"),
	steps("messages/*/content/resource/blob"),
}

// objects contains the replacements for values that MCP defines as objects or arrays. All other values are replaced
// with a string.
var objects = []struct {
	at   []step
	with string
}{
	{steps("structuredContent"), `{"redacted":"[redacted: path]"}`},
	{steps("content"), `[` + textContent + `]`},
	{steps("content/*"), textContent},
	{steps("content/*/resource"), `{"uri":"redacted:path","text":"[redacted: path]"}`},
	{steps("contents"), `[]`},
	{steps("contents/*"), `{"uri":"redacted:path","text":"[redacted: path]"}`},
	{steps("messages"), `[]`},
	{steps("messages/*"), `{"role":"user","content":` + textContent + `}`},
	{steps("messages/*/content"), textContent},
	{steps("_meta"), `{}`},
}

const textContent = `{"type":"text","text":"[redacted: path]"}`

// isAt reports whether the current value of the message is at the given location. It returns false while the walker
// searches JSON in a string.
func (w *walker) isAt(location []step) bool { return !w.inString && slices.Equal(w.location, location) }

// keptForm returns a function that reports whether the current value must not be replaced. It returns nil if every
// value at this location may be replaced.
func (w *walker) keptForm() func(raw jsontext.Value) bool {
	for _, k := range keptMembers[w.part] {
		if w.isAt(k.at) {
			return k.isForm
		}
	}
	return nil
}

// isRoot reports whether paths can begin at the current value because it is the value of a member in dataRoots.
func (w *walker) isRoot() bool {
	return !w.inString && len(w.location) == 1 && !w.location[0].isItem && w.location[0].name == dataRoots[w.part]
}

// isBase64 reports whether MCP defines the current value as base64.
func (w *walker) isBase64() bool {
	return w.part != inArguments && slices.ContainsFunc(base64Members, w.isAt)
}

// mayBeBase64 reports whether a text contains only base64 characters (RFC 4648, sections 4 and 5) and line breaks.
func mayBeBase64(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("+/-_=\r\n", c)
	})
}

// selectedText returns the text that replaces a value that a path has selected.
func (w *walker) selectedText(raw jsontext.Value) []byte {
	text := replacement(ByPath)
	switch isObject := raw.Kind() == jsontext.KindBeginObject || raw.Kind() == jsontext.KindBeginArray; {
	case w.part != inResult:
	case w.isBase64():
		text = base64.StdEncoding.EncodeToString([]byte(text))
	case isObject:
		for _, o := range objects {
			if w.isAt(o.at) {
				return []byte(o.with)
			}
		}
	}
	return quoted(text)
}
