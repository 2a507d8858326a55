package configedit

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

type tomlDocument struct {
	text
	node        *Node
	expressions []tomlExpression
}

// A tomlExpression is a table header, or a key with its value.
type tomlExpression struct {
	kind unstable.Kind
	// key is the complete key, including the keys of the table header above the expression.
	key []string
	// start is the offset of the expression. end is the offset of the end of its last line, without the line break.
	start, end int
}

func parseTOML(t text) (syntax, error) {
	d := &tomlDocument{text: t}
	if err := d.scan(); err != nil {
		return nil, err
	}
	var values map[string]any
	if err := toml.Unmarshal(t.body(), &values); err != nil {
		e := &EditError{Message: "the file is not valid TOML", Suggestion: "correct it there"}
		if invalid, ok := errors.AsType[*toml.DecodeError](err); ok {
			e.Line, e.Column = invalid.Position()
		}
		return nil, e
	}
	d.node = tomlNode(values)
	return d, nil
}

// maxTOMLKeys is the maximum number of keys in a TOML file, including the keys in headers and inline tables. The
// decoder's time for finding duplicate keys is quadratic in this number.
const maxTOMLKeys = 10_000

// scan reads the expressions. It limits their nesting and the number of keys, because the decoder has no such limits.
func (d *tomlDocument) scan() error {
	var p unstable.Parser
	p.Reset(d.body())
	var table []string
	keys := 0
	for p.NextExpression() {
		n := p.Expression()
		e, nesting := d.expression(n, table), 0
		keys += keyParts(n)
		if n.Kind == unstable.KeyValue {
			nesting = tomlNesting(n.Value(), MaxDepth, &keys)
		} else {
			table = e.key
		}
		switch {
		case len(e.key)+nesting > MaxDepth:
			return d.refuse(e.start, tooDeep, "edit the file yourself")
		case keys > maxTOMLKeys:
			return d.refuse(e.start, fmt.Sprintf("the file has more than %d keys", maxTOMLKeys), "edit the file yourself")
		}
		d.expressions = append(d.expressions, e)
	}
	if invalid, ok := errors.AsType[*unstable.ParserError](p.Error()); ok {
		at := d.start
		if len(invalid.Highlight) > 0 {
			at += int(p.Range(invalid.Highlight).Offset)
		}
		return d.refuse(at, "the file is not valid TOML", "correct it there")
	}
	return p.Error()
}

// expression returns an expression with its complete key and its range. The complete key of a value begins with the
// keys of the table header above the expression.
func (d *tomlDocument) expression(n *unstable.Node, table []string) tomlExpression {
	e := tomlExpression{kind: n.Kind}
	start, end := -1, 0 // the range of the key
	for it := n.Key(); it.Next(); {
		key := it.Node()
		e.key = append(e.key, string(key.Data))
		end = int(key.Raw.Offset + key.Raw.Length)
		if start < 0 {
			start = int(key.Raw.Offset)
		}
	}
	switch n.Kind { //nolint:exhaustive // the parser returns no other expressions
	case unstable.KeyValue:
		e.key = slices.Concat(table, e.key)
		start, end = int(n.Raw.Offset), int(n.Raw.Offset+n.Raw.Length)
	case unstable.ArrayTable:
		start = bytes.LastIndex(d.body()[:start], []byte("[["))
	default:
		start = bytes.LastIndexByte(d.body()[:start], '[')
	}
	e.start, e.end = d.start+start, d.lineEnd(d.start+end)
	return e
}

// keyParts returns the number of parts of a dotted key. The key belongs to an expression or to a member of an inline
// table.
func keyParts(n *unstable.Node) int {
	parts := 0
	for key := n.Key(); key.Next(); {
		parts++
	}
	return parts
}

// tomlNesting returns the depth of nested arrays and inline tables in a value, at most limit. It adds the number of
// keys down to this depth to *keys.
func tomlNesting(n *unstable.Node, limit int, keys *int) int {
	if limit == 0 || n.Kind != unstable.Array && n.Kind != unstable.InlineTable {
		return 0
	}
	deepest := 0
	for it := n.Children(); it.Next(); {
		child, parts := it.Node(), 0
		if child.Kind == unstable.KeyValue {
			parts = keyParts(child)
			*keys += parts
			child = child.Value()
		}
		deepest = max(deepest, min(parts, limit)+tomlNesting(child, limit-1, keys))
	}
	return 1 + deepest
}

func tomlNode(value any) *Node {
	switch v := value.(type) {
	case map[string]any:
		n := &Node{Kind: Map}
		for name, child := range v {
			n.Members = append(n.Members, Member{name, tomlNode(child)})
		}
		slices.SortFunc(n.Members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
		return n
	case []any:
		n := &Node{Kind: List}
		for _, child := range v {
			n.Items = append(n.Items, tomlNode(child))
		}
		return n
	case string:
		return &Node{Kind: String, Text: v}
	case bool:
		return &Node{Kind: Bool, Text: fmt.Sprint(v)}
	case int64:
		return &Node{Kind: Number, Text: strconv.FormatInt(v, 10)}
	case float64:
		return &Node{Kind: Number, Text: tomlFloat(v)}
	default:
		return &Node{Kind: Other, Text: fmt.Sprintf("%T %v", v, v)}
	}
}

// tomlFloat formats a number so that TOML does not parse it as an integer.
func tomlFloat(x float64) string {
	s := strings.ToLower(strconv.FormatFloat(x, 'g', -1, 64))
	if strings.ContainsAny(s, ".einf") {
		return s
	}
	return s + ".0"
}

func (d *tomlDocument) tree() *Node { return d.node }

// A tomlBlock is the table of an entry, including its subtables.
type tomlBlock struct {
	// header is the offset of the table's header.
	header int
	// body is the offset of the end of the header's line. end is the offset of the end of the block's last line. Both are
	// before the line break.
	body, end int
}

// block returns the table of an entry, or nil if the entry does not exist. It returns an error if the entry is not a
// single table.
func (d *tomlDocument) block(path []string) (*tomlBlock, error) {
	var b *tomlBlock
	inside := false
	for _, e := range d.expressions {
		below := hasPrefix(e.key, path)
		switch {
		case e.kind == unstable.KeyValue && inside:
			b.end = e.end
		case e.kind == unstable.KeyValue && hasPrefix(path, e.key):
			return nil, d.refuse(e.start, "the value is an inline table", "write it as a table, "+tomlHeader(path))
		case e.kind == unstable.KeyValue && below:
			return nil, d.refuse(e.start, "the entry has dotted keys", "write it as a table, "+tomlHeader(path))
		case e.kind == unstable.KeyValue:
		case e.kind == unstable.ArrayTable && (below && !inside || hasPrefix(path, e.key)):
			return nil, d.refuse(e.start, "the entry is in an array of tables", "write it as a table, "+tomlHeader(path))
		case !below:
			inside = false
		case b == nil && len(e.key) == len(path):
			b, inside = &tomlBlock{header: e.start, body: e.end, end: e.end}, true
		case inside:
			b.end = e.end
		case b == nil:
			return nil, d.refuse(e.start, "the entry has a subtable before its table", "write "+tomlHeader(path)+" before it")
		default:
			return nil, d.refuse(e.start, "the tables of the entry are in several places", "move this table to the others")
		}
	}
	return b, nil
}

func hasPrefix(key, prefix []string) bool {
	return len(key) >= len(prefix) && slices.Equal(key[:len(prefix)], prefix)
}

func (d *tomlDocument) set(path []string, c content) ([]splice, error) {
	b, err := d.block(path)
	if err != nil {
		return nil, err
	}
	lines := strings.TrimPrefix(c.fragment, firstLine(c.fragment))
	if c.value != nil {
		if lines = encodeTOML(c.value, d.newline); lines != "" {
			lines = d.newline + lines
		}
	}
	if b == nil {
		header := tomlHeader(path)
		if c.value == nil {
			header = firstLine(c.fragment)
		}
		return []splice{d.appended(header+lines, true)}, nil
	}
	return []splice{{b.body, b.end, lines}}, nil
}

// firstLine returns the first line without its line break.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return strings.TrimSuffix(line, "\r")
}

func (d *tomlDocument) remove(path []string) ([]splice, error) {
	b, err := d.block(path)
	if err != nil {
		return nil, err
	}
	if b == nil {
		return nil, d.refuse(d.start, "the entry has no table of its own", "remove it yourself")
	}
	start, end := d.wholeLines(b.header, b.end)
	if above := d.lineStart(max(d.start, start-1)); end == len(d.data) && above < start {
		if len(bytes.TrimSpace(d.data[above:start])) == 0 { // the blank line before the last table
			start = above
		}
	}
	return []splice{{start, end, ""}}, nil
}

func (d *tomlDocument) fragment(path []string) (string, error) {
	b, err := d.block(path)
	if err != nil {
		return "", err
	}
	if b == nil {
		return "", d.refuse(d.start, "the entry has no table of its own", "write "+tomlHeader(path)+" above it")
	}
	return string(d.data[b.header:b.end]), nil
}
