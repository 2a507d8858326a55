package configedit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// checkValue returns an error if the format can't represent the value.
func checkValue(f Format, value any) error {
	switch v := value.(type) {
	case bool, int:
		return nil
	case string:
		return checkString(v)
	case []string:
		for _, item := range v {
			if err := checkString(item); err != nil {
				return err
			}
		}
		return nil
	case Object:
		return checkObject(f, v)
	case *Node:
		return checkNode(f, v)
	default:
		return fmt.Errorf("configedit: a value of type %T", value)
	}
}

func checkObject(f Format, object Object) error {
	if err := checkMembers(len(object)); err != nil {
		return err
	}
	names := make(map[string]bool, len(object))
	for _, m := range object {
		if names[m.Name] {
			return fmt.Errorf("configedit: the key %q occurs twice", m.Name)
		}
		names[m.Name] = true
		if err := errors.Join(checkString(m.Name), checkValue(f, m.Value)); err != nil {
			return err
		}
	}
	return nil
}

func checkMembers(n int) error {
	if n > MaxMembers {
		return &EditError{
			Message:    fmt.Sprintf("the entry has a map with more than %d members", MaxMembers),
			Suggestion: "edit the file yourself",
		}
	}
	return nil
}

func checkNode(f Format, n *Node) error {
	if err := checkMembers(len(n.Members)); err != nil {
		return err
	}
	if n.Kind == Other || n.mark != "" || n.Kind == Null && f == TOML {
		return &EditError{Message: "the entry has a value that can't be copied", Suggestion: "edit the file yourself"}
	}
	for _, item := range n.Items {
		if err := checkNode(f, item); err != nil {
			return err
		}
	}
	for _, m := range n.Members {
		if err := checkNode(f, m.Value); err != nil {
			return err
		}
	}
	return nil
}

func checkString(s string) error {
	if !utf8.ValidString(s) {
		return errors.New("configedit: a string is not valid UTF-8")
	}
	return nil
}

// quote returns a string in double quotes that JSON, TOML and YAML parse in the same way.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r <= 0xffff && r != ' ' && (!unicode.IsGraphic(r) || unicode.IsSpace(r)):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// flow returns a value on one line that is valid in JSON and YAML.
func flow(n *Node) string {
	parts := make([]string, 0, len(n.Items)+len(n.Members))
	switch n.Kind { //nolint:exhaustive // scalars are not quoted, except for strings
	case String:
		return quote(n.Text)
	case Null:
		return "null"
	case List:
		for _, item := range n.Items {
			parts = append(parts, flow(item))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case Map:
		for _, m := range n.Members {
			parts = append(parts, quote(m.Name)+": "+flow(m.Value))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	default:
		return n.Text
	}
}

// A style describes how a new value is formatted.
type style struct {
	newline string
	// indent is the indentation of the line in which the value begins.
	indent string
	// unit is the additional indentation of nested lines.
	unit string
	// compact is true if JSON is written on one line.
	compact bool
}

func (s style) deeper() style {
	s.indent += s.unit
	return s
}

// encodeJSON returns a value as JSON. The value begins on the same line as the name of its member.
func encodeJSON(n *Node, s style) string {
	if len(n.Members) == 0 || s.compact {
		return flow(n)
	}
	inner := s.deeper()
	var b strings.Builder
	b.WriteByte('{')
	for i, m := range n.Members {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(s.newline + inner.indent + quote(m.Name) + ": " + encodeJSON(m.Value, inner))
	}
	b.WriteString(s.newline + s.indent + "}")
	return b.String()
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(name string) string {
	if bareKey.MatchString(name) {
		return name
	}
	return quote(name)
}

func tomlHeader(path []string) string {
	keys := make([]string, len(path))
	for i, key := range path {
		keys[i] = tomlKey(key)
	}
	return "[" + strings.Join(keys, ".") + "]"
}

// encodeTOML returns the lines of a table, without the table's header.
func encodeTOML(n *Node, newline string) string {
	lines := make([]string, len(n.Members))
	for i, m := range n.Members {
		lines[i] = tomlKey(m.Name) + " = " + tomlValue(m.Value)
	}
	return strings.Join(lines, newline)
}

func tomlValue(n *Node) string {
	parts := make([]string, 0, len(n.Items)+len(n.Members))
	for _, item := range n.Items {
		parts = append(parts, tomlValue(item))
	}
	for _, m := range n.Members {
		parts = append(parts, tomlKey(m.Name)+" = "+tomlValue(m.Value))
	}
	switch {
	case n.Kind == List:
		return "[" + strings.Join(parts, ", ") + "]"
	case n.Kind == Map && len(parts) > 0:
		return "{ " + strings.Join(parts, ", ") + " }"
	default:
		return flow(n)
	}
}

// plainKey matches keys that need no quotes in YAML, unless yamlWord also matches them. yamlWord matches words that
// YAML 1.1 parses as booleans or null.
var (
	plainKey = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`)
	yamlWord = regexp.MustCompile(`(?i)^(?:y|n|yes|no|on|off|true|false|null)$`)
)

func yamlKey(name string) string {
	if plainKey.MatchString(name) && !yamlWord.MatchString(name) {
		return name
	}
	return quote(name)
}

// encodeYAML returns the lines of a block mapping. The first line has no indentation.
func encodeYAML(n *Node, s style) string {
	if len(n.Members) == 0 {
		return flow(n)
	}
	lines := make([]string, len(n.Members))
	for i, m := range n.Members {
		lines[i] = yamlKey(m.Name) + ":" + yamlAfterKey(m.Value, s)
	}
	return strings.Join(lines, s.newline+s.indent)
}

func yamlAfterKey(n *Node, s style) string {
	if len(n.Members) == 0 {
		return " " + flow(n)
	}
	inner := s.deeper()
	return s.newline + inner.indent + encodeYAML(n, inner)
}

// Snippet returns the text of an entry that a person can add to a file, or "" if the edit removes an entry.
func Snippet(l Layout, e Edit) string {
	if e.Value == nil {
		return ""
	}
	n, s := nodeOf(e.Value), style{newline: "\n", unit: "  "}
	switch {
	case l.Format == TOML:
		return tomlHeader(e.Path) + "\n" + encodeTOML(n, "\n") + "\n"
	case l.Format == YAML && l.NameKey != "":
		containers := e.Path[:len(e.Path)-1]
		s.indent = strings.Repeat("  ", len(containers)+1)
		return yamlParents(containers) + "- " + encodeYAML(n, s) + "\n"
	case l.Format == YAML:
		return encodeYAML(nested(e.Path, n), s) + "\n"
	default:
		return encodeJSON(nested(e.Path, n), s) + "\n"
	}
}

// yamlParents returns a line for each of the nested keys, followed by the indentation of the next line.
func yamlParents(path []string) string {
	var b strings.Builder
	for i, key := range path {
		b.WriteString(yamlKey(key) + ":\n" + strings.Repeat("  ", i+1))
	}
	return b.String()
}

// nested returns a map that contains the given value at the given path.
func nested(path []string, n *Node) *Node {
	for _, key := range slices.Backward(path) {
		n = &Node{Kind: Map, Members: []Member{{key, n}}}
	}
	return n
}

func withSnippet(err error, l Layout, e Edit) error {
	if refused, ok := errors.AsType[*EditError](err); ok && e.Value != nil {
		refused.Snippet = Snippet(l, e)
	}
	return err
}
