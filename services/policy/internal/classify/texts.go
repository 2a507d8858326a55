package classify

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// maxPath limits the length of an evidence path in bytes. Evidence with a longer path is omitted.
const maxPath = 1024

// Text is a string in a definition. Clients may show all texts of a definition to a model.
type Text struct {
	Value string
	// InKey is true if Value is the name of a member, and false if it is the value of a member or an element.
	InKey bool

	// token is the number of the JSON token for the text in the definition, starting at 1.
	token int
}

// textsIn returns the strings in a definition, in order.
func textsIn(definition jsontext.Value) []Text {
	var out []Text
	dec := jsontext.NewDecoder(bytes.NewReader(definition))
	for count := 1; ; count++ {
		token, err := dec.ReadToken()
		if err != nil { // this is io.EOF, because the definition has already been parsed without errors
			return out
		}
		if token.Kind() == '"' {
			kind, length := dec.StackIndex(dec.StackDepth())
			out = append(out, Text{Value: token.String(), InKey: kind == '{' && length%2 == 1, token: count})
		}
	}
}

// path returns the JSON Pointer of one of the tool's texts, or "" if it is longer than maxPath. It parses the
// definition again to find the pointer. Pointers are not stored, because their total length can be proportional to the
// square of the definition's length.
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
