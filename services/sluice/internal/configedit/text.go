package configedit

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

const bom = "\ufeff"

// text is the content of a file.
type text struct {
	data []byte
	// start is the offset of the first byte after the byte order mark.
	start int
	// newline is the line break that the file uses.
	newline string
}

// newText returns the content of a file as a text. It returns an error if the content is too large or not valid UTF-8.
func newText(data []byte) (text, error) {
	t := text{data: data, newline: "\n"}
	if len(data) > MaxBytes {
		return t, &EditError{
			Message:    fmt.Sprintf("the file is larger than %d MiB", MaxBytes>>20),
			Suggestion: "make it smaller, or edit it yourself",
		}
	}
	if bytes.HasPrefix(data, []byte(bom)) {
		t.start = len(bom)
	}
	if !utf8.Valid(data) {
		at := 0
		for r, size := utf8.DecodeRune(data); r != utf8.RuneError || size > 1; r, size = utf8.DecodeRune(data[at:]) {
			at += size
		}
		return t, t.refuse(at, "the file is not valid UTF-8", "save it as UTF-8")
	}
	if at := bytes.IndexByte(data, '\n'); at > 0 && data[at-1] == '\r' {
		t.newline = "\r\n"
	}
	return t, nil
}

// body returns the content after the byte order mark.
func (t text) body() []byte { return t.data[t.start:] }

func (t text) refuse(offset int, message, suggestion string) *EditError {
	line, column := t.position(offset)
	return &EditError{Line: line, Column: column, Message: message, Suggestion: suggestion}
}

// position returns the line and the column of an offset. The column is counted in characters.
func (t text) position(offset int) (line, column int) {
	offset = max(t.start, min(offset, len(t.data)))
	at := max(t.start, t.lineStart(offset))
	return 1 + bytes.Count(t.data[:offset], []byte{'\n'}), 1 + utf8.RuneCount(t.data[at:offset])
}

// lineStart returns the offset of the first byte of the line that contains the given offset.
func (t text) lineStart(offset int) int {
	return max(t.start, bytes.LastIndexByte(t.data[:offset], '\n')+1)
}

// lineEnd returns the offset of the line break that ends the line with the given offset. If no line break follows, it
// returns the end of the file.
func (t text) lineEnd(offset int) int {
	at := bytes.IndexByte(t.data[offset:], '\n')
	if at < 0 {
		return len(t.data)
	}
	at += offset
	if at > offset && t.data[at-1] == '\r' {
		at--
	}
	return at
}

// nextLine returns the offset of the first byte after the line that contains the given offset.
func (t text) nextLine(offset int) int {
	if at := bytes.IndexByte(t.data[offset:], '\n'); at >= 0 {
		return offset + at + 1
	}
	return len(t.data)
}

// indent returns the spaces and tabs at the beginning of the line with the given offset. It also reports whether the
// line contains nothing else before the offset.
func (t text) indent(offset int) (blanks string, first bool) {
	line := t.data[t.lineStart(offset):offset]
	rest := bytes.TrimLeft(line, " \t")
	return string(line[:len(line)-len(rest)]), len(rest) == 0
}

// wholeLines extends a range to whole lines if there are only spaces and tabs around it. Otherwise it returns the range
// unchanged.
func (t text) wholeLines(start, end int) (int, int) {
	_, first := t.indent(start)
	eol := t.lineEnd(end)
	if !first || len(bytes.Trim(t.data[end:eol], " \t")) > 0 {
		return start, end
	}
	return t.lineStart(start), t.nextLine(eol)
}

// appended returns the splice that adds lines at the end of the file. If the file ended with a line break, the new file
// ends with one too.
func (t text) appended(lines string, blankLine bool) splice {
	end := len(t.data)
	body := string(t.body())
	switch {
	case strings.TrimSpace(body) == "" && body == "":
		return splice{end, end, lines + t.newline}
	case !strings.HasSuffix(body, "\n"):
		if blankLine {
			lines = t.newline + lines
		}
		return splice{end, end, t.newline + lines}
	case blankLine && strings.TrimSpace(body) != "":
		return splice{end, end, t.newline + lines + t.newline}
	default:
		return splice{end, end, lines + t.newline}
	}
}
