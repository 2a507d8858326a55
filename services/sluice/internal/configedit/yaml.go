package configedit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

type yamlDocument struct {
	text
	nameKey string
	// root is nil if the document is empty.
	root *yaml.Node
	node *Node
	// lines contains the offset of each line.
	lines []int
	// unit is the number of spaces by which a nested mapping is indented.
	unit int
}

func parseYAML(t text, nameKey string) (syntax, error) {
	d := &yamlDocument{text: t, nameKey: nameKey, node: &Node{Kind: Map}, unit: 2, lines: []int{t.start}}
	for i, b := range t.data {
		if b == '\n' {
			d.lines = append(d.lines, i+1)
		}
	}
	if err := d.checkBreaks(); err != nil {
		return nil, err
	}
	if err := d.load(); err != nil || d.root == nil {
		return d, err
	}
	var err error
	if d.node, err = d.toNode(d.root); err != nil {
		return nil, err
	}
	if d.node.Kind == Null {
		d.root, d.node = nil, &Node{Kind: Map}
		return d, nil
	}
	d.unit = d.detectUnit()
	return d, nil
}

// checkBreaks refuses characters that YAML parsers treat as line breaks but this package does not.
func (d *yamlDocument) checkBreaks() error {
	at := bytes.IndexFunc(d.body(), func(r rune) bool { return r == '\u0085' || r == '\u2028' || r == '\u2029' })
	for i, b := range d.body() {
		if b == '\r' && !bytes.HasPrefix(d.body()[i:], []byte("\r\n")) {
			at = i
			break
		}
	}
	if at < 0 {
		return nil
	}
	return d.refuse(d.start+at, "the file has a line break other than LF and CRLF", "replace it by LF")
}

func (d *yamlDocument) load() error {
	loader, err := yaml.NewLoader(bytes.NewReader(d.body()), yaml.WithV4Defaults(),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(MaxDepth))))
	if err != nil {
		return fmt.Errorf("make a YAML loader: %w", err)
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return d.explain(err)
	}
	switch err := loader.Load(&second); {
	case err == nil:
		return d.refuseNode(&second, "the file contains a second document", "move it to a file of its own")
	case !errors.Is(err, io.EOF):
		return d.explain(err)
	}
	d.root = first.Content[0]
	return nil
}

// explain converts an error from the parser to an EditError. It omits the parser's message, which may contain values.
func (d *yamlDocument) explain(err error) error {
	e := &EditError{Message: "the file is not valid YAML", Suggestion: "correct it"}
	if invalid, ok := errors.AsType[*yaml.LoadError](err); ok && invalid.Mark.Line > 0 {
		e.Line, e.Column, e.Suggestion = invalid.Mark.Line, max(1, invalid.Mark.Column), "correct it there"
	}
	return e
}

func (d *yamlDocument) refuseNode(n *yaml.Node, message, suggestion string) error {
	return d.refuse(d.offset(n), message, suggestion)
}

func (d *yamlDocument) tree() *Node { return d.node }

// offset returns the offset at which a node begins.
func (d *yamlDocument) offset(n *yaml.Node) int {
	if n.Line < 1 || n.Line > len(d.lines) {
		return len(d.data)
	}
	at := d.lines[n.Line-1]
	for range n.Column - 1 {
		_, size := utf8.DecodeRune(d.data[at:])
		at += size
	}
	return at
}

// toNode converts a node. It does not expand aliases, so the result is not larger than the document.
func (d *yamlDocument) toNode(n *yaml.Node) (*Node, error) {
	out := &Node{}
	switch n.Kind { //nolint:exhaustive // there are no documents inside a document
	case yaml.MappingNode:
		out.Kind = Map
		if err := d.addMembers(out, n); err != nil {
			return nil, err
		}
	case yaml.SequenceNode:
		out.Kind = List
		for _, item := range n.Content {
			child, err := d.toNode(item)
			if err != nil {
				return nil, err
			}
			out.Items = append(out.Items, child)
		}
	case yaml.AliasNode:
		out.Kind, out.Text = Other, "*"+n.Value
	default:
		out.Kind, out.Text = yamlScalar(n)
	}
	if n.Anchor != "" {
		out.mark += "&" + n.Anchor
	}
	if n.Style&yaml.TaggedStyle != 0 {
		out.mark += "!" + n.Tag
	}
	return out, nil
}

func (d *yamlDocument) addMembers(out *Node, n *yaml.Node) error {
	seen := make(map[string]bool, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		name, err := d.keyName(key)
		if err != nil {
			return err
		}
		if key.Tag != "!!str" {
			out.mark = "?"
		}
		if seen[name] {
			return d.refuseNode(key, "the mapping has this key twice", "remove one of the two")
		}
		seen[name] = true
		child, err := d.toNode(n.Content[i+1])
		if err != nil {
			return err
		}
		out.Members = append(out.Members, Member{name, child})
	}
	return nil
}

// keyName returns the name of a key. If the key is not a string, the name begins with the key's tag.
func (d *yamlDocument) keyName(key *yaml.Node) (string, error) {
	switch {
	case key.Kind == yaml.ScalarNode && key.Tag == "!!str":
		return key.Value, nil
	case key.Kind == yaml.ScalarNode:
		return key.Tag + " " + key.Value, nil
	default:
		n, err := d.toNode(key)
		if err != nil {
			return "", err
		}
		return "! " + n.digest(), nil
	}
}

func yamlScalar(n *yaml.Node) (Kind, string) {
	switch n.Tag {
	case "!!null":
		return Null, ""
	case "!!bool":
		return Bool, strings.ToLower(n.Value)
	case "!!int", "!!float":
		return Number, n.Value
	case "!!str":
		return String, n.Value
	default:
		return Other, n.Tag + " " + n.Value
	}
}

// detectUnit returns the additional indentation of the first nested mapping in the file.
func (d *yamlDocument) detectUnit() int {
	if d.root.Kind != yaml.MappingNode {
		return 2
	}
	for i := 1; i < len(d.root.Content); i += 2 {
		value := d.root.Content[i]
		if value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 && value.Column > d.root.Column {
			return value.Column - d.root.Column
		}
	}
	return 2
}
