package configedit

import (
	"bytes"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v4"
)

// A yamlRange is the range of an entry's block mapping.
type yamlRange struct {
	// start is the offset of the first key. end is the offset of the end of the last line, without the line break.
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
		return yamlRange{}, d.refuseNode(n, "the value is not a mapping", "replace it with a mapping")
	case n.Style&yaml.FlowStyle != 0:
		return yamlRange{}, d.refuseNode(n, "the value is written in braces", "write it in block style, one key in each line")
	case at.key != nil && n.Line == at.key.Line:
		return yamlRange{}, d.refuseNode(n, "the value begins in the line of its key", "begin it in the next line")
	}
	return yamlRange{start: d.offset(n), end: d.entryEnd(at, n.Line, false), indent: n.Column - 1}, nil
}

// outerIndent returns the indentation of an entry's key, or of its dash if the entry is a list item.
func (d *yamlDocument) outerIndent(at yamlPlace) int {
	if at.key != nil {
		return at.key.Column - 1
	}
	return at.parent.Column - 1
}

// contentEnd returns the end of the content that begins on the given line. The content includes all following lines
// that are indented by more than indent spaces. If dashes is true, it also includes list items that are indented by
// exactly indent spaces. Comments with less indentation do not end the content.
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

// entryEnd returns the end of the last line of an entry that begins on the given line. The entry does not include
// comments after its last value, because a person may have written them for the next entry.
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

// lastValueEnd returns an offset in the last value of n, or after this value but before the comments that follow it.
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

// blockScalarEnd returns the end of the last line of a block scalar whose header is at the given offset.
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

// quotedEnd returns the end of a quoted string that begins at the given offset. The string may extend over several
// lines.
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

// afterKey returns the offset after a key's colon, and the offset after a null or an empty container on the same line.
// The two offsets are equal if the key has no value. afterKey returns an error if the key has any other value.
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

// keyEnd returns the offset after a key. The key must be written on one line.
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
