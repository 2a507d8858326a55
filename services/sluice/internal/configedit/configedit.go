// Package configedit changes single entries in JSON, TOML and YAML configuration files, and can undo these changes. It
// does not change any bytes outside an entry, such as the byte order mark, line breaks, comments and indentation.
//
// An entry is a value with a name in a container, for example the server "github" in the object "mcpServers". [Apply]
// computes the new content of a file and parses it again. It returns an error if the content differs in more than the
// planned entries. The package does no I/O.
package configedit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
)

const (
	// MaxBytes is the maximum size of a file, in bytes.
	MaxBytes = 8 << 20
	// MaxDepth is the maximum nesting of values in a file.
	MaxDepth = 128
	// MaxMembers is the maximum number of members of a map in a new value.
	MaxMembers = 1_000
	// MaxEdits is the maximum number of edits in one [Change]. There is a limit because each edit parses the whole file.
	MaxEdits = 256
)

// A Format is the syntax of a file. The zero value is invalid.
type Format int

// These are the formats. JSON may contain comments and trailing commas.
const (
	JSON Format = iota + 1
	TOML
	YAML
)

// String returns the name of the format.
func (f Format) String() string {
	switch f {
	case JSON:
		return "JSON"
	case TOML:
		return "TOML"
	case YAML:
		return "YAML"
	default:
		return fmt.Sprintf("format %d", int(f))
	}
}

// A Layout describes how a file stores entries.
type Layout struct {
	Format Format `json:"format"`
	// NameKey is the key that holds the name of an entry if the container is a list. If NameKey is empty, the container
	// is a map, and the names of entries are the map's keys. Only YAML supports lists.
	NameKey string `json:"name_key,omitempty"`
}

// An Edit replaces, inserts or removes one entry.
type Edit struct {
	// Path contains the keys from the root of the document to the entry. The last element is the name of the entry.
	Path []string
	// Value is the new value: a bool, an int, a string, a []string, a [*Node] or an [Object]. The value nil removes the
	// entry. If the entry does not exist, it is inserted. Containers that do not exist are inserted too.
	Value any
}

// An Object is a map whose members are written in the order of the slice.
type Object []Field

// A Field is a member of an [Object]. Its value has one of the types that [Edit] lists.
type Field struct {
	Name  string
	Value any
}

// An EditError is the reason why a file can't be parsed or edited. It does not contain values from the file.
type EditError struct {
	// Line and Column are the position in the file, starting at 1. They are 0 if the error is about the whole file.
	Line, Column int
	Message      string
	// Suggestion describes how to solve the problem. It is empty if this is not known.
	Suggestion string
	// Snippet is text that a person can add to the file if the edit was refused. It may be empty.
	Snippet string
}

// Error returns the position, the message and the suggestion in one line.
func (e *EditError) Error() string {
	var b strings.Builder
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d, column %d: ", e.Line, e.Column)
	}
	b.WriteString(e.Message)
	if e.Suggestion != "" {
		b.WriteString(": " + e.Suggestion)
	}
	return b.String()
}

// A Change is the result of [Apply].
type Change struct {
	// After is the new content of the file.
	After []byte

	layout Layout
	before []byte
	steps  []step
}

// A step records one edit and its effect on the file.
type step struct {
	splices []splice
	entry   oldEntry
	ours    string
}

// A splice replaces the bytes between two offsets with a text. The splices of a step are sorted and do not overlap.
type splice struct {
	start, end int
	text       string
}

// A syntax is a parsed file of one format. Its methods return splices of this file.
type syntax interface {
	tree() *Node
	// set replaces or inserts an entry.
	set(path []string, c content) ([]splice, error)
	// remove removes an entry, which must exist.
	remove(path []string) ([]splice, error)
	// fragment returns the source of an entry, which must exist. The result can be parsed without the rest of the file.
	fragment(path []string) (string, error)
}

// content is the content of an entry. If value is nil, fragment is the source of an earlier value.
type content struct {
	value    *Node
	fragment string
}

// Apply makes at most [MaxEdits] edits in data, in order. If an edit is refused, the error is an [*EditError] with a
// snippet.
func Apply(l Layout, data []byte, edits ...Edit) (*Change, error) {
	if len(edits) > MaxEdits {
		return nil, &EditError{
			Message:    fmt.Sprintf("these are %d edits, and one change can have %d", len(edits), MaxEdits),
			Suggestion: "edit fewer entries",
		}
	}
	c := &Change{After: data, layout: l, before: data}
	for _, e := range edits {
		if err := c.apply(e); err != nil {
			return nil, withSnippet(err, l, e)
		}
	}
	return c, nil
}

func (c *Change) apply(e Edit) error {
	if err := checkEdit(c.layout, e); err != nil {
		return err
	}
	doc, err := parse(c.layout, c.After)
	if err != nil {
		return err
	}
	s := step{entry: oldEntry{Path: slices.Clone(e.Path)}}
	if old := doc.tree().find(c.layout, e.Path); old != nil {
		if s.entry.Old, err = fragmentOf(doc, e.Path); err != nil {
			return err
		}
	}
	s.entry.Created = doc.tree().missing(e.Path)
	var want *Node
	switch {
	case e.Value != nil:
		want = nodeOf(e.Value)
		s.ours = want.digest()
		s.splices, err = doc.set(e.Path, content{value: want})
	case s.entry.Old != nil:
		s.splices, err = doc.remove(e.Path)
	default: // there is nothing to remove
		c.steps = append(c.steps, s)
		return nil
	}
	if err != nil {
		return err
	}
	after, err := checked(c.layout, doc, c.After, e.Path, want, s.splices)
	if err != nil {
		return err
	}
	if want != nil {
		if s.entry.Ours, err = sourceOf(c.layout, after, e.Path); err != nil {
			return err
		}
	}
	c.After, c.steps = after, append(c.steps, s)
	return nil
}

// sourceOf returns the source text of an entry in a file.
func sourceOf(l Layout, data []byte, path []string) (*string, error) {
	doc, err := parse(l, data)
	if err != nil {
		return nil, err
	}
	return fragmentOf(doc, path)
}

func fragmentOf(doc syntax, path []string) (*string, error) {
	text, err := doc.fragment(path)
	return &text, err
}

// checked applies splices to data and parses the result. It returns an error if the result differs from data in more
// than the entry at path. It also returns an error unless the entry has the value want, or does not exist if want is
// nil.
func checked(l Layout, before syntax, data []byte, path []string, want *Node, splices []splice) ([]byte, error) {
	after := spliced(data, splices)
	doc, err := parse(l, after)
	if err != nil {
		return nil, &EditError{Message: "the edit would make the file invalid", Suggestion: "edit the file yourself"}
	}
	planned, have := before.tree().with(l, path, want), doc.tree()
	if l.Format == TOML && want == nil { // a table without subtables does not exist unless it has a header
		planned, have = planned.pruned(path), have.pruned(path)
	}
	if !have.equal(planned) {
		return nil, &EditError{Message: "the edit would change other parts of the file", Suggestion: "edit the file yourself"}
	}
	return after, nil
}

func spliced(data []byte, splices []splice) []byte {
	var out bytes.Buffer
	at := 0
	for _, s := range splices {
		out.Write(data[at:s.start])
		out.WriteString(s.text)
		at = s.end
	}
	out.Write(data[at:])
	return out.Bytes()
}

// Parse parses a file. If the file is empty, it returns an empty tree.
func Parse(l Layout, data []byte) (*Node, error) {
	doc, err := parse(l, data)
	if err != nil {
		return nil, err
	}
	return doc.tree(), nil
}

func parse(l Layout, data []byte) (syntax, error) {
	t, err := newText(data)
	if err != nil {
		return nil, err
	}
	switch l.Format {
	case JSON:
		return parseJSON(t)
	case TOML:
		return parseTOML(t)
	case YAML:
		return parseYAML(t, l.NameKey)
	default:
		return nil, fmt.Errorf("configedit: %v is unknown", l.Format)
	}
}

// checkEdit returns an error if an edit is invalid, which is a mistake of the caller.
func checkEdit(l Layout, e Edit) error {
	if len(e.Path) == 0 {
		return fmt.Errorf("configedit: an edit has no path")
	}
	if l.NameKey != "" && l.Format != YAML {
		return fmt.Errorf("configedit: %v has no lists of entries", l.Format)
	}
	if e.Value == nil {
		return nil
	}
	if err := checkValue(l.Format, e.Value); err != nil {
		return err
	}
	n, name := nodeOf(e.Value), e.Path[len(e.Path)-1]
	if have := n.Get(l.NameKey); l.NameKey != "" && (have == nil || have.Kind != String || have.Text != name) {
		return fmt.Errorf("configedit: the value of %q must have its name in %q", name, l.NameKey)
	}
	if l.Format != JSON && n.Kind != Map {
		return fmt.Errorf("configedit: the value of %q is not a map", name)
	}
	return nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
