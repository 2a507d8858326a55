package configedit

import (
	"bytes"
	"strings"

	"go.yaml.in/yaml/v4"
)

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
		} else if strings.TrimSpace(line) == "" { // shorter blank lines have no content in a block scalar
			lines[i+1] = strings.TrimLeft(line, " ")
		}
	}
	return strings.Join(lines, "\n")
}

// nested returns the lines of an entry that is nested in the keys of path. The first line has the given indentation.
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

// insert adds an entry after the last entry of a container that is in block style.
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

// fill adds the first entry to a container whose key has no value, the value null, or empty braces or brackets. It also
// adds the value of an entry that has no value.
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

// parentColon returns the offset after the colon of the key for an entry's container. It returns -1 if the container is
// the root.
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
	// The fragment includes the last line break, because the value of a block scalar depends on it.
	end := min(d.nextLine(r.end), r.end+len(d.newline))
	return strings.Repeat(" ", r.indent) + string(d.data[r.start:end]), nil
}
