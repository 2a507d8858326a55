package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
	"go.yaml.in/yaml/v4/plugin/loaderlimits"
)

const (
	// MaxBytes is the maximum size of a document, in bytes.
	MaxBytes = 4 << 20
	// maxDepth is the maximum nesting depth of mappings and lists. Block style and flow style are counted separately.
	maxDepth = 64
)

// These are the tags of scalars in YAML.
const (
	nullTag  = "!!null"
	strTag   = "!!str"
	boolTag  = "!!bool"
	intTag   = "!!int"
	floatTag = "!!float"
	mergeTag = "!!merge"
)

// A Source is a document that has been parsed as YAML. It is immutable and safe for concurrent use.
type Source struct {
	file string
	root *yaml.Node // nil if the document is empty
}

// Parse parses data, which may have at most [MaxBytes], as a single YAML document. file is the name of the document in
// messages. The error has the type [Errors].
func Parse(file string, data []byte) (*Source, error) {
	s := &Source{file: file}
	if len(data) > MaxBytes {
		return nil, s.refuse(0, 0, fmt.Sprintf("larger than %d bytes", MaxBytes))
	}
	if line, column, message := findBadText(data); message != "" {
		suggestion := "remove it, or escape it in double quotes"
		if message == notUTF8 {
			suggestion = "save the file as UTF-8"
		}
		return nil, Errors{{File: s.file, Line: line, Column: column, Message: message, Suggestion: suggestion}}
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithV4Defaults(),
		yaml.WithPlugin(loaderlimits.New(loaderlimits.DepthValue(maxDepth))))
	if err != nil {
		return nil, fmt.Errorf("make a YAML loader: %w", err)
	}
	var first, second yaml.Node
	switch err := loader.Load(&first); {
	case errors.Is(err, io.EOF):
		return s, nil
	case err != nil:
		return nil, s.explain(data, err)
	}
	switch err := loader.Load(&second); {
	case err == nil:
		return nil, s.refuse(second.Line, second.Column, "a second document starts here; put it into a separate file")
	case !errors.Is(err, io.EOF):
		return nil, s.explain(data, err)
	}
	if root := first.Content[0]; root.Tag != nullTag {
		s.root = root
	}
	return s, nil
}

// File returns the name of the document in messages.
func (s *Source) File() string { return s.file }

// Empty reports whether the document is empty.
func (s *Source) Empty() bool { return s.root == nil }

// Problem returns a problem with the value at path, including its position. Create path with [Key] and [Index]. The
// position of a scalar is that of the scalar itself, and the position of any other value is that of its key. If the
// value does not exist, the position is that of its nearest existing ancestor. If a [OneOrMany] is written without a
// list, its index is removed from the path.
func (s *Source) Problem(path, message, suggestion string) Problem {
	p := Problem{File: s.file, Line: 1, Column: 1, Path: path, Message: message, Suggestion: suggestion}
	if s.root != nil {
		at, walked := find(location{value: s.root}, "", path)
		p.Line, p.Column = at.position()
		p.Path = walked
	}
	return p
}

func (s *Source) refuse(line, column int, message string) error {
	return Errors{{File: s.file, Line: line, Column: column, Message: message}}
}

func (s *Source) explain(data []byte, err error) error {
	parse, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		return s.refuse(0, 0, "is not YAML: "+printable(err.Error()))
	}
	message := "is not YAML: "
	switch {
	case strings.HasPrefix(parse.Message, "unknown anchor"):
		message = noAnchors // the parser's message could contain a secret
	case parse.ContextMsg != "":
		message += parse.ContextMsg + ", " + parse.Message
	default:
		message += parse.Message
	}
	return Errors{{
		File: s.file, Line: parse.Mark.Line, Column: parse.Mark.Column, Message: printable(message), Suggestion: syntaxHint(data, parse),
	}}
}

const notUTF8 = "is not valid UTF-8"

// findBadText finds the first text that documents must not contain: invalid UTF-8, a control character, or a line break
// that YAML parsers treat in different ways.
func findBadText(data []byte) (line, column int, message string) {
	line, column = 1, 1
	for i := 0; i < len(data); {
		r, width := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && width == 1:
			return line, column, notUTF8
		case unicode.IsControl(r) && r != '\t' && r != '\n' && r != '\r', r == '\uFFFE', r == '\uFFFF':
			return line, column, fmt.Sprintf("contains the control character %U", r)
		case r == '\u2028', r == '\u2029':
			return line, column, fmt.Sprintf("contains the line break %U", r)
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
		i += width
	}
	return 0, 0, ""
}

func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, text)
}
