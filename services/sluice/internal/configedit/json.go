package configedit

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/tailscale/hujson"
)

type jsonDocument struct {
	text
	root hujson.Value
	node *Node
	// unit is the indentation of one level.
	unit string
	// blank is true if the file contains no value.
	blank bool
}

func parseJSON(t text) (syntax, error) {
	d := &jsonDocument{text: t, unit: "  "}
	body := t.body()
	if len(bytes.TrimSpace(body)) == 0 {
		d.blank, d.node = true, &Node{Kind: Map}
		return d, nil
	}
	if at := jsonTooDeep(body); at >= 0 {
		return nil, t.refuse(t.start+at, tooDeep, "edit the file yourself")
	}
	// The parser requires a line break after a line comment.
	root, err := hujson.Parse(append(bytes.Clone(body), '\n'))
	if err != nil {
		return nil, d.explain(err)
	}
	d.root = root
	if d.node, err = d.toNode(root); err != nil {
		return nil, err
	}
	if o, ok := root.Value.(*hujson.Object); ok && len(o.Members) > 0 {
		if blanks, first := t.indent(d.offset(o.Members[0].Name.StartOffset)); first {
			d.unit = blanks
		}
	}
	return d, nil
}

var tooDeep = fmt.Sprintf("values are nested deeper than %d", MaxDepth)

// jsonTooDeep returns the offset at which the nesting exceeds MaxDepth, or -1. The parser itself has no limit.
func jsonTooDeep(body []byte) int {
	depth := 0
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '"':
			for i++; i < len(body) && body[i] != '"'; i++ {
				if body[i] == '\\' {
					i++
				}
			}
		case '/':
			i += commentLength(body[i:])
		case '{', '[':
			if depth++; depth > MaxDepth {
				return i
			}
		case '}', ']':
			depth--
		}
	}
	return -1
}

// commentLength returns the length in bytes of the comment at the beginning of body, without its first byte. It returns
// 0 if there is no comment.
func commentLength(body []byte) int {
	end := ""
	switch {
	case bytes.HasPrefix(body, []byte("//")):
		end = "\n"
	case bytes.HasPrefix(body, []byte("/*")):
		end = "*/"
	default:
		return 0
	}
	at := bytes.Index(body[2:], []byte(end))
	if at < 0 {
		return len(body)
	}
	return 2 + at + len(end) - 1
}

// explain converts an error from the parser to an EditError. It omits the parser's message, which may contain values.
func (d *jsonDocument) explain(err error) error {
	e := &EditError{Message: "the file is not valid JSON", Suggestion: "correct it there"}
	_, _ = fmt.Sscanf(err.Error(), "hujson: line %d, column %d:", &e.Line, &e.Column) // both stay 0 if the error has no position
	if e.Line == 0 {
		e.Suggestion = "correct it"
	}
	return e
}

func (d *jsonDocument) tree() *Node { return d.node }

func (d *jsonDocument) offset(inBody int) int { return min(d.start+inBody, len(d.data)) }

func (d *jsonDocument) toNode(v hujson.Value) (*Node, error) {
	n := &Node{}
	switch value := v.Value.(type) {
	case *hujson.Object:
		n.Kind = Map
		seen := make(map[string]bool, len(value.Members))
		for _, m := range value.Members {
			name := m.Name.Value.(hujson.Literal).String() //nolint:forcetypeassert // the parser accepts no other names
			if seen[name] {
				return nil, d.refuse(d.offset(m.Name.StartOffset), "the object has this key twice", "remove one of the two")
			}
			seen[name] = true
			child, err := d.toNode(m.Value)
			if err != nil {
				return nil, err
			}
			n.Members = append(n.Members, Member{name, child})
		}
	case *hujson.Array:
		n.Kind = List
		for _, item := range value.Elements {
			child, err := d.toNode(item)
			if err != nil {
				return nil, err
			}
			n.Items = append(n.Items, child)
		}
	case hujson.Literal:
		n.Kind, n.Text = jsonScalar(value)
	}
	return n, nil
}

func jsonScalar(value hujson.Literal) (Kind, string) {
	switch value.Kind() {
	case '"':
		return String, value.String()
	case 't', 'f':
		return Bool, string(value)
	case '0':
		return Number, string(value)
	default:
		return Null, ""
	}
}

// A jsonPlace is the deepest existing object on the path to an entry.
type jsonPlace struct {
	value hujson.Value
	// object is the content of the field value.
	object *hujson.Object
	// rest is the part of the path below the object.
	rest []string
	// index is the index of the path's next member in the object, or -1 if the object has no such member.
	index int
}

func (d *jsonDocument) locate(path []string) (jsonPlace, error) {
	at := jsonPlace{value: d.root, rest: path}
	for {
		object, ok := at.value.Value.(*hujson.Object)
		if !ok {
			return at, d.refuse(d.offset(at.value.StartOffset), "the value is not an object", "replace it with an object")
		}
		at.object, at.index = object, -1
		for i, m := range object.Members {
			if m.Name.Value.(hujson.Literal).String() == at.rest[0] { //nolint:forcetypeassert // names are strings
				at.index = i
			}
		}
		if at.index < 0 || len(at.rest) == 1 {
			return at, nil
		}
		at.value, at.rest = object.Members[at.index].Value, at.rest[1:]
	}
}

func (d *jsonDocument) set(path []string, c content) ([]splice, error) {
	s := style{newline: d.newline, unit: d.unit}
	if d.blank {
		return []splice{d.appended(jsonMember(nil, path, c, s), false)}, nil
	}
	at, err := d.locate(path)
	if err != nil {
		return nil, err
	}
	s.compact = d.inOneLine(at)
	if at.index < 0 {
		return d.insert(at, c, s), nil
	}
	member := at.object.Members[at.index]
	s.indent, _ = d.indent(d.offset(member.Name.StartOffset))
	start, end := d.offset(member.Value.StartOffset), d.offset(member.Value.EndOffset)
	return []splice{{start, end, jsonContent(c, s)}}, nil
}

func jsonContent(c content, s style) string {
	if c.value == nil {
		return c.fragment
	}
	return encodeJSON(c.value, s)
}

// jsonMember returns a JSON member with the given name and content. If path is not empty, the content is nested in
// objects with the keys in path. If the name is nil, the result is an object without a name.
func jsonMember(name *string, path []string, c content, s style) string {
	if name == nil {
		inner := s.deeper()
		member := jsonMember(&path[0], path[1:], c, inner)
		if s.compact {
			return "{" + member + "}"
		}
		return "{" + s.newline + inner.indent + member + s.newline + s.indent + "}"
	}
	if len(path) == 0 {
		return quote(*name) + ": " + jsonContent(c, s)
	}
	return quote(*name) + ": " + jsonMember(nil, path, c, s)
}

// inOneLine reports whether an object has members and the first member is on the object's first line.
func (d *jsonDocument) inOneLine(at jsonPlace) bool {
	if len(at.object.Members) == 0 {
		return false
	}
	start, first := at.value.StartOffset, at.object.Members[0].Name.StartOffset
	return !bytes.Contains(d.body()[start:first], []byte{'\n'})
}

// insert adds a member after the last member of an object.
func (d *jsonDocument) insert(at jsonPlace, c content, s style) []splice {
	parent, _ := d.indent(d.offset(at.value.StartOffset))
	members := at.object.Members
	if len(members) == 0 {
		s.indent = parent
		return d.insertFirst(at, c, s.deeper(), parent)
	}
	last := members[len(members)-1]
	indent, first := d.indent(d.offset(last.Name.StartOffset))
	s.indent = indent
	if !first && !s.compact {
		s.indent = parent + s.unit
	}
	comma := last.Value.AfterExtra != nil
	end := last.Value.EndOffset + len(last.Value.AfterExtra)
	member := jsonMember(&at.rest[0], at.rest[1:], c, s)
	if s.compact {
		if comma {
			return []splice{{d.offset(end + 1), d.offset(end + 1), " " + member + ","}}
		}
		return []splice{{d.offset(end), d.offset(end), ", " + member}}
	}
	if comma {
		point := d.offset(end + 1 + sameLine(at.object.AfterExtra))
		return []splice{{point, point, d.newline + s.indent + member + ","}}
	}
	point := d.offset(end + sameLine(at.object.AfterExtra))
	return []splice{{d.offset(end), d.offset(end), ","}, {point, point, d.newline + s.indent + member}}
}

// insertFirst adds a member to an empty object, after the comments in the object.
func (d *jsonDocument) insertFirst(at jsonPlace, c content, s style, parent string) []splice {
	extra := at.object.AfterExtra
	comments := bytes.TrimRight(extra, " \t\r\n")
	point := d.offset(at.value.StartOffset + 1 + len(comments))
	text := d.newline + s.indent + jsonMember(&at.rest[0], at.rest[1:], c, s)
	if !bytes.Contains(extra[len(comments):], []byte{'\n'}) {
		text += d.newline + parent
	}
	return []splice{{point, point, text}}
}

// sameLine returns the number of bytes up to the end of the last comment on the first line. The parameter extra
// contains white space and comments.
func sameLine(extra hujson.Extra) int {
	end := 0
	for i := 0; i < len(extra); i++ {
		switch extra[i] {
		case ' ', '\t':
		case '/':
			comment := extra[i : i+1+commentLength(extra[i:])]
			if comment[1] == '/' {
				return i + len(bytes.TrimRight(comment, "\r\n"))
			}
			if bytes.Contains(comment, []byte{'\n'}) {
				return end
			}
			i += len(comment) - 1
			end = i + 1
		default:
			return end
		}
	}
	return end
}

func (d *jsonDocument) remove(path []string) ([]splice, error) {
	at, err := d.locate(path)
	if err != nil {
		return nil, err
	}
	members := at.object.Members
	m := members[at.index]
	start, end := d.offset(m.Name.StartOffset), d.offset(m.Value.EndOffset)
	last := at.index == len(members)-1
	if !last || m.Value.AfterExtra != nil { // a comma follows
		end = d.offset(m.Value.EndOffset + len(m.Value.AfterExtra) + 1)
	}
	start, end = d.wholeLines(start, end)
	out := []splice{{start, end, ""}}
	if last && m.Value.AfterExtra == nil && at.index > 0 {
		before := members[at.index-1].Value
		comma := d.offset(before.EndOffset + len(before.AfterExtra))
		out = append([]splice{{comma, comma + 1, ""}}, out...)
	}
	return out, nil
}

func (d *jsonDocument) fragment(path []string) (string, error) {
	at, err := d.locate(path)
	if err != nil {
		return "", err
	}
	v := at.object.Members[at.index].Value
	return strings.Clone(string(d.body()[v.StartOffset:v.EndOffset])), nil
}
