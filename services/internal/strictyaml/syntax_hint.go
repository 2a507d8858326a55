package strictyaml

import (
	"bytes"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v4"
)

// syntaxHint returns a suggestion for correcting text that is not YAML, or "" if it knows none. The suggestion does not
// quote the text, because the text might contain secrets.
func syntaxHint(data []byte, e *yaml.LoadError) string {
	at, before := around(data, e.Mark.Line, e.Mark.Column)
	inValue := strings.TrimRight(before, " ")
	switch {
	case strings.Contains(e.Message, "cannot start any token") && at == '\t':
		return "indent with spaces, not with tabs"
	case strings.Contains(e.Message, "cannot start any token"):
		return fmt.Sprintf("put a value that begins with %c in quotes", at)
	case strings.HasPrefix(e.Message, "unknown anchor"), strings.Contains(e.ContextMsg, "scanning an alias"):
		return "put a value that begins with * in quotes"
	case strings.Contains(e.Message, "mapping values are not allowed"):
		return `write a space after the colon of a key, and put a value that contains ": " in quotes`
	case strings.Contains(e.ContextMsg, "quoted scalar"):
		return fmt.Sprintf("close the quotes that open in line %d", e.ContextMark.Line)
	case strings.HasSuffix(inValue, `"`), strings.HasSuffix(inValue, `'`):
		return `a value ends at its closing quote: put the whole value in quotes of the other kind, for example 'args.region == "eu"'`
	case strings.Contains(e.ContextMsg, "flow sequence"):
		return fmt.Sprintf("close the [ in line %d, or put a value that contains [ ] { } or , in quotes", e.ContextMark.Line)
	case strings.Contains(e.ContextMsg, "flow mapping"):
		return fmt.Sprintf("close the { in line %d, or put a value that contains [ ] { } or , in quotes", e.ContextMark.Line)
	case strings.Contains(e.ContextMsg, "block mapping"), strings.Contains(e.ContextMsg, "block collection"):
		return "indent all keys of a mapping, and all items of a list, by the same number of spaces"
	}
	return ""
}

// around returns the character at a position, and the text before it in its line. Lines and columns are counted from 1.
func around(data []byte, line, column int) (at rune, before string) {
	lines := bytes.Split(data, []byte("\n"))
	if line < 1 || line > len(lines) {
		return 0, ""
	}
	text := []rune(strings.TrimPrefix(string(lines[line-1]), "\ufeff"))
	if column < 1 || column > len(text) {
		return 0, string(text)
	}
	return text[column-1], string(text[:column-1])
}
