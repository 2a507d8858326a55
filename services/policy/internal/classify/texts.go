package classify

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// maxPath is the maximum length, in bytes, of the path of a piece of evidence. Evidence with a longer path is omitted.
const maxPath = 1024

// Text is a string anywhere in a definition. A client may show every text of a definition to a model.
type Text struct {
	Value string
	// InKey is true if Value is the name of a member, and false if it is a value.
	InKey bool

	// token is the number of the text's JSON token in the definition. The first token has number 1.
	token int
}

// textsIn returns the strings in a definition, in the order in which they occur.
func textsIn(definition jsontext.Value) []Text {
	var out []Text
	dec := jsontext.NewDecoder(bytes.NewReader(definition))
	for count := 1; ; count++ {
		token, err := dec.ReadToken()
		if err != nil { // io.EOF; other errors can't happen, because the definition was parsed before
			return out
		}
		if token.Kind() == '"' {
			kind, length := dec.StackIndex(dec.StackDepth())
			out = append(out, Text{Value: token.String(), InKey: kind == '{' && length%2 == 1, token: count})
		}
	}
}

// path returns the JSON Pointer of one of the tool's texts, or "" if the pointer is longer than maxPath. It parses the
// definition again to find the pointer. The pointers are not stored, because their total length can be proportional to
// the square of the definition's length.
func (t *Tool) path(text Text) string {
	dec := jsontext.NewDecoder(bytes.NewReader(t.definition))
	for range text.token {
		if _, err := dec.ReadToken(); err != nil {
			return ""
		}
	}
	if path := string(dec.StackPointer()); len(path) <= maxPath {
		return path
	}
	return ""
}
