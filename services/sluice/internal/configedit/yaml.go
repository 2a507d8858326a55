package configedit

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
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
	// unit is the number of blanks by which a nested mapping is indented.
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

// checkBreaks refuses characters that YAML parsers treat as line breaks but that do not end a line here.
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

// explain converts an error of the parser, whose message may contain values.
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

// offset returns the offset of a node.
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

// toNode converts a node. It does not replace aliases by the values that they stand for, so the result is not larger
// than the document.
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

// keyName returns the name of a key. A name that is not a string begins with its tag.
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

// detectUnit returns the additional indentation of the first nested mapping.
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

// A yamlPlace is a container or an entry that exists.
type yamlPlace struct {
	// key is nil for the root and for an item of a list.
	key, value *yaml.Node
	// parent is the container of the value, or nil for the root.
	parent *yaml.Node
}

// locate returns the deepest value on the path that exists, and the rest of the path. It returns an error if a value
// on the path can't be edited.
func (d *yamlDocument) locate(path []string) (at yamlPlace, rest []string, err error) {
	at, rest = yamlPlace{value: d.root}, path
	for at.value != nil && len(rest) > 0 {
		if err := d.checkContainer(at, len(rest) == 1 && d.nameKey != ""); err != nil {
			return at, rest, err
		}
		next, ok := d.step(at.value, rest)
		if !ok {
			return at, rest, nil
		}
		at, rest = next, rest[1:]
	}
	if at.value != nil && len(rest) == 0 {
		err = d.checkPlain(at.value)
	}
	return at, rest, err
}

// step returns the entry of a container with the first name of the path.
func (d *yamlDocument) step(container *yaml.Node, path []string) (yamlPlace, bool) {
	for i, n := range container.Content {
		switch {
		case container.Kind == yaml.SequenceNode:
			if yamlName(n, d.nameKey) == path[0] && len(path) == 1 {
				return yamlPlace{value: n, parent: container}, true
			}
		case i%2 == 0 && n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == path[0]:
			return yamlPlace{key: n, value: container.Content[i+1], parent: container}, true
		}
	}
	return yamlPlace{}, false
}

// yamlName returns the name of an item of a list, or "".
func yamlName(item *yaml.Node, nameKey string) string {
	for i := 0; item.Kind == yaml.MappingNode && i+1 < len(item.Content); i += 2 {
		if item.Content[i].Value == nameKey && item.Content[i+1].Tag == "!!str" {
			return item.Content[i+1].Value
		}
	}
	return ""
}

// checkContainer returns an error if entries of a container can't be edited.
func (d *yamlDocument) checkContainer(at yamlPlace, list bool) error {
	n := at.value
	if err := d.checkPlain(n); err != nil {
		return err
	}
	wanted, kind := yaml.MappingNode, "mapping"
	if list {
		wanted, kind = yaml.SequenceNode, "list"
	}
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null" && at.key != nil:
		return nil
	case n.Style&yaml.FlowStyle != 0 && at.key != nil && len(n.Content) == 0:
		return nil
	case n.Kind != wanted:
		return d.refuseNode(n, "the value is not a "+kind, "replace it by a "+kind)
	case n.Style&yaml.FlowStyle != 0:
		return d.refuseNode(n, "the value is written in braces or brackets", "write it in block style, one key in each line")
	}
	names := make(map[string]bool)
	for i, c := range n.Content {
		switch {
		case list && yamlName(c, d.nameKey) != "" && names[yamlName(c, d.nameKey)]:
			return d.refuseNode(c, "the list has two items of this name", "rename one of the two")
		case !list && i%2 == 0 && c.Tag == "!!merge":
			return d.refuseNode(c, "the mapping has a merge key", "write the merged keys out")
		}
		names[yamlName(c, d.nameKey)] = true
	}
	return nil
}

// checkPlain returns an error if a value has an anchor or a tag, or is an alias.
func (d *yamlDocument) checkPlain(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.AliasNode:
		return d.refuseNode(n, "the value is an alias", "write the value out")
	case n.Anchor != "":
		return d.refuseNode(n, "the value has an anchor", "remove the anchor, and write the value out where it is used")
	case n.Style&yaml.TaggedStyle != 0:
		return d.refuseNode(n, "the value has a tag", "remove the tag")
	}
	return nil
}

// checkEntry returns an error if the bytes of an entry can't be replaced.
func (d *yamlDocument) checkEntry(n *yaml.Node) error {
	switch {
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		return d.checkPlain(n)
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			if n.Content[i].Tag == "!!merge" {
				return d.refuseNode(n.Content[i], "the mapping has a merge key", "write the merged keys out")
			}
		}
	}
	for _, child := range n.Content {
		if err := d.checkEntry(child); err != nil {
			return err
		}
	}
	return nil
}

// A yamlRange is the block mapping of an entry.
type yamlRange struct {
	// start is the offset of the first key, and end the end of the last line, without its line break.
	start, end int
	// indent is the indentation of the keys.
	indent int
}

// entryRange returns the range of an entry whose value is a block mapping.
func (d *yamlDocument) entryRange(at yamlPlace) (yamlRange, error) {
	if err := d.checkEntry(at.value); err != nil {
		return yamlRange{}, err
	}
	n := at.value
	switch {
	case n.Kind != yaml.MappingNode:
		return yamlRange{}, d.refuseNode(n, "the value is not a mapping", "replace it by a mapping")
	case n.Style&yaml.FlowStyle != 0:
		return yamlRange{}, d.refuseNode(n, "the value is written in braces", "write it in block style, one key in each line")
	case at.key != nil && n.Line == at.key.Line:
		return yamlRange{}, d.refuseNode(n, "the value begins in the line of its key", "begin it in the next line")
	}
	return yamlRange{start: d.offset(n), end: d.entryEnd(at, n.Line, false), indent: n.Column - 1}, nil
}

// outerIndent returns the indentation of the key or of the dash of an entry.
func (d *yamlDocument) outerIndent(at yamlPlace) int {
	if at.key != nil {
		return at.key.Column - 1
	}
	return at.parent.Column - 1
}

// contentEnd returns the end of the last line that is indented more than indent, from the line first on. If dashes is
// true, items of a list with this indentation belong to the content, too. Comments with less indentation do not end the
// content.
func (d *yamlDocument) contentEnd(first, indent int, dashes bool) int {
	end := d.lineEnd(d.lines[first-1])
	for _, at := range d.lines[first:] {
		line := d.data[at:d.lineEnd(at)]
		rest := bytes.TrimLeft(line, " ")
		blank := len(bytes.TrimSpace(rest)) == 0
		isItem := dashes && len(line)-len(rest) == indent && (bytes.HasPrefix(rest, []byte("- ")) || string(rest) == "-")
		switch {
		case blank:
		case len(line)-len(rest) > indent || isItem:
			end = at + len(line)
		case rest[0] != '#':
			return end
		}
	}
	return end
}

// entryEnd returns the end of the last line of an entry, from the line first on. Comments after the last value are not
// part of the entry, because a person may have written them for the next one.
func (d *yamlDocument) entryEnd(at yamlPlace, first int, dashes bool) int {
	end := d.contentEnd(first, d.outerIndent(at), dashes)
	last := d.lastValueEnd(at.value)
	for {
		line := bytes.TrimSpace(d.data[d.lineStart(end):end])
		above := d.lineStart(end) - 1
		if above < last || len(line) > 0 && line[0] != '#' {
			return end
		}
		end = d.lineEnd(d.lineStart(above))
	}
}

// lastValueEnd returns an offset before which all lines belong to a value. Comments are only after this offset.
func (d *yamlDocument) lastValueEnd(n *yaml.Node) int {
	for len(n.Content) > 0 {
		n = n.Content[len(n.Content)-1]
	}
	start := d.offset(n)
	switch {
	case n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0:
		return d.blockScalarEnd(start)
	case n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0:
		return d.quotedEnd(start)
	default:
		return start
	}
}

// blockScalarEnd returns the end of the last line of a block scalar whose header is at start.
func (d *yamlDocument) blockScalarEnd(start int) int {
	end, indent := start, -1
	for at := d.nextLine(start); at < len(d.data); at = d.nextLine(at) {
		line := d.data[at:d.lineEnd(at)]
		rest := bytes.TrimLeft(line, " ")
		switch blanks := len(line) - len(rest); {
		case len(rest) == 0:
		case indent < 0:
			indent, end = blanks, at+len(line)
		case blanks < indent:
			return end
		default:
			end = at + len(line)
		}
	}
	return end
}

// quotedEnd returns the end of a quoted string that begins at start, in any number of lines.
func (d *yamlDocument) quotedEnd(start int) int {
	for i := start + 1; i < len(d.data); i++ {
		switch quote := d.data[start]; {
		case d.data[i] == '\\' && quote == '"':
			i++
		case d.data[i] == quote && quote == '\'' && i+1 < len(d.data) && d.data[i+1] == quote:
			i++
		case d.data[i] == quote:
			return i
		}
	}
	return len(d.data)
}

func (d *yamlDocument) set(path []string, c content) ([]splice, error) {
	at, rest, err := d.locate(path)
	switch {
	case err != nil:
		return nil, err
	case len(rest) == 0 && !isNull(at.value):
		r, err := d.entryRange(at)
		if err != nil {
			return nil, err
		}
		return []splice{{r.start, r.end, d.block(c, r.indent)}}, nil
	case at.value == nil: // the document is empty
		return []splice{d.appended(d.nested(path, c, 0), false)}, nil
	case isNull(at.value) || len(at.value.Content) == 0:
		return d.fill(at, rest, c)
	default:
		return d.insert(at, rest, c), nil
	}
}

func isNull(n *yaml.Node) bool { return n != nil && n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

// block returns the lines of a block mapping. The first line has no indentation.
func (d *yamlDocument) block(c content, indent int) string {
	s := style{newline: d.newline, indent: strings.Repeat(" ", indent), unit: strings.Repeat(" ", d.unit)}
	if c.value != nil {
		return encodeYAML(c.value, s)
	}
	trimmed := strings.TrimLeft(strings.TrimSuffix(strings.TrimSuffix(c.fragment, "\n"), "\r"), " ")
	old := c.fragment[:len(c.fragment)-len(strings.TrimLeft(c.fragment, " "))]
	lines := strings.Split(trimmed, "\n")
	for i, line := range lines[1:] {
		if rest, ok := strings.CutPrefix(line, old); ok {
			lines[i+1] = s.indent + rest
		} else if strings.TrimSpace(line) == "" { // shorter blank lines have no content in a block scalar either
			lines[i+1] = strings.TrimLeft(line, " ")
		}
	}
	return strings.Join(lines, "\n")
}

// nested returns the lines of an entry at a path of keys. The first line has the indentation indent.
func (d *yamlDocument) nested(path []string, c content, indent int) string {
	blanks := strings.Repeat(" ", indent)
	if len(path) == 0 {
		return blanks + d.block(c, indent)
	}
	if len(path) == 1 && d.nameKey != "" {
		return blanks + "- " + d.block(c, indent+2)
	}
	return blanks + yamlKey(path[0]) + ":" + d.newline + d.nested(path[1:], c, indent+d.unit)
}

// insert adds an entry after the last entry of a container in block style.
func (d *yamlDocument) insert(at yamlPlace, rest []string, c content) []splice {
	n := at.value
	last := n.Content[len(n.Content)-1]
	line, dashes := last.Line, false
	if n.Kind == yaml.MappingNode {
		line, dashes = n.Content[len(n.Content)-2].Line, last.Kind == yaml.SequenceNode
	}
	end := d.contentEnd(line, n.Column-1, dashes)
	return []splice{{end, end, d.newline + d.nested(rest, c, n.Column-1)}}
}

// fill adds the first entry of a container whose key has no value, the value null, or an empty pair of braces or
// brackets. It also adds the value of an entry that has none.
func (d *yamlDocument) fill(at yamlPlace, rest []string, c content) ([]splice, error) {
	colon, value, err := d.afterKey(at)
	if err != nil {
		return nil, err
	}
	eol := d.lineEnd(colon)
	lines := d.newline + d.nested(rest, c, at.key.Column-1+d.unit)
	if value == colon {
		return []splice{{eol, eol, lines}}, nil
	}
	return []splice{{colon, value, ""}, {eol, eol, lines}}, nil
}

// afterKey returns the offset after the colon of a key, and the offset after a null or an empty container in the same
// line. The two are equal if the key has no value. Any other value is an error.
func (d *yamlDocument) afterKey(at yamlPlace) (colon, value int, err error) {
	start := d.keyEnd(at.key)
	line := string(d.data[start:d.lineEnd(start)])
	rest, ok := strings.CutPrefix(strings.TrimLeft(line, " "), ":")
	if !ok {
		return 0, 0, d.refuseNode(at.key, "the key is not followed by a colon", "write KEY: in one line")
	}
	colon = start + len(line) - len(rest)
	token := strings.TrimSpace(rest)
	if i := strings.Index(" "+token, " #"); i >= 0 {
		token = strings.TrimSpace(token[:i])
	}
	switch {
	case token == "":
		return colon, colon, nil
	case slices.Contains([]string{"null", "~", "Null", "NULL", "{}", "[]"}, strings.ReplaceAll(token, " ", "")):
		return colon, colon + strings.Index(rest, token) + len(token), nil
	default:
		return 0, 0, d.refuseNode(at.key, "the value of the key is not in block style", "write one key in each line")
	}
}

// keyEnd returns the offset after a key that is written in one line.
func (d *yamlDocument) keyEnd(key *yaml.Node) int {
	at := d.offset(key)
	line := d.data[at:d.lineEnd(at)]
	switch {
	case key.Style&yaml.DoubleQuotedStyle != 0:
		for i := 1; i < len(line); i++ {
			switch line[i] {
			case '\\':
				i++
			case '"':
				return at + i + 1
			}
		}
	case key.Style&yaml.SingleQuotedStyle != 0:
		for i := 1; i < len(line); i++ {
			if line[i] == '\'' && i+1 < len(line) && line[i+1] == '\'' {
				i++
			} else if line[i] == '\'' {
				return at + i + 1
			}
		}
	default:
		return at + min(len(line), len(strings.TrimRightFunc(key.Value, unicode.IsSpace)))
	}
	return at
}

func (d *yamlDocument) remove(path []string) ([]splice, error) {
	at, rest, err := d.locate(path)
	if err != nil || len(rest) > 0 {
		return nil, err
	}
	start, line, end := d.offset(at.value), at.value.Line, 0
	if at.key != nil {
		start, line = d.offset(at.key), at.key.Line
	}
	if err := d.checkEntry(at.value); err != nil {
		return nil, err
	}
	end = d.entryEnd(at, line, at.value.Kind == yaml.SequenceNode)
	if at.key == nil {
		start = d.lineStart(start) + bytes.LastIndexByte(d.data[d.lineStart(start):start], '-')
	}
	start, end = d.wholeLines(start, end)
	out := []splice{{start, end, ""}}
	if entries := len(at.parent.Content); at.key != nil && entries == 2 || at.key == nil && entries == 1 {
		colon, err := d.parentColon(path)
		if err != nil || colon < 0 {
			return out, err
		}
		empty := " {}"
		if at.key == nil {
			empty = " []"
		}
		out = append([]splice{{colon, colon, empty}}, out...)
	}
	return out, nil
}

// parentColon returns the offset after the colon of the key of an entry's container. If the container is the root, it
// returns -1.
func (d *yamlDocument) parentColon(path []string) (int, error) {
	if len(path) < 2 {
		return -1, nil
	}
	parent := yamlPlace{value: d.root}
	for i := range len(path) - 1 {
		parent, _ = d.step(parent.value, path[i:])
	}
	colon, _, err := d.afterKey(parent)
	return colon, err
}

func (d *yamlDocument) fragment(path []string) (string, error) {
	at, _, err := d.locate(path)
	if err != nil {
		return "", err
	}
	if isNull(at.value) {
		return "", nil
	}
	r, err := d.entryRange(at)
	if err != nil {
		return "", err
	}
	// The value of a block scalar depends on the line break after its last line.
	end := min(d.nextLine(r.end), r.end+len(d.newline))
	return strings.Repeat(" ", r.indent) + string(d.data[r.start:end]), nil
}
