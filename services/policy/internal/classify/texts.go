package classify

import (
	"bytes"

	"github.com/go-json-experiment/json/jsontext"
)

// maxPath is how long the path of a piece of evidence may be, in bytes: a longer one is left out with its evidence.
const maxPath = 1024

// Text is a text of a definition, wherever it stands: a client may show a model any of it.
type Text struct {
	Value string
	// InKey reports whether Value is a member's name and not a value.
	InKey bool

	// token counts the tokens of the definition up to this one.
	token int
}

// textsIn returns the texts in a definition, in its order.
func textsIn(definition jsontext.Value) []Text {
	var out []Text
	dec := jsontext.NewDecoder(bytes.NewReader(definition))
	for count := 1; ; count++ {
		token, err := dec.ReadToken()
		if err != nil { // its end: it was read before
			return out
		}
		if token.Kind() == '"' {
			kind, length := dec.StackIndex(dec.StackDepth())
			out = append(out, Text{Value: token.String(), InKey: kind == '{' && length%2 == 1, token: count})
		}
	}
}

// path returns where a text of the tool stands; empty if that is longer than maxPath. It reads the definition again,
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
