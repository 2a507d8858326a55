package classify

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// maxPath is the longest path of a piece of evidence, in bytes. Evidence with a longer path is left out.
const maxPath = 1024

// Text is a text at any place of a definition. A client may show a model any of them.
type Text struct {
	Value string
	// InKey reports whether Value is a member's name, not a value.
	InKey bool

	// token is the number of the text's token in the definition, from 1.
	token int
}

// textsIn returns the texts in a definition, in its order.
func textsIn(definition jsontext.Value) []Text {
	var out []Text
	dec := jsontext.NewDecoder(bytes.NewReader(definition))
	for count := 1; ; count++ {
		token, err := dec.ReadToken()
		if err != nil { // its end: it was parsed before
			return out
		}
		if token.Kind() == '"' {
			kind, length := dec.StackIndex(dec.StackDepth())
			out = append(out, Text{Value: token.String(), InKey: kind == '{' && length%2 == 1, token: count})
		}
	}
}

// path returns the path of a text of the tool; empty if it is longer than maxPath. It reads the definition again,
// because the paths of all texts together can be as long as the square of the definition.
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
