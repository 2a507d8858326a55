package configedit

import (
	"bytes"
	"strings"
)

// keepComments returns an error if the splices would remove a comment. The values from [Apply] contain no comments, so
// any comment in such a value was added later.
func keepComments(f Format, data []byte, splices []splice) error {
	for _, s := range splices {
		if hasComment(f, data[s.start:s.end]) {
			return &EditError{
				Message:    "a comment was added to it",
				Suggestion: "move the comment, or edit the entry yourself",
			}
		}
	}
	return nil
}

// hasComment reports whether a part of a file contains a comment. The part must not begin inside a string or a comment.
func hasComment(f Format, part []byte) bool {
	switch f {
	case JSON:
		return jsonComment(part)
	case TOML:
		return tomlComment(part)
	case YAML:
		return yamlComment(part)
	default:
		return true
	}
}

func jsonComment(part []byte) bool {
	for i := 0; i < len(part); i++ {
		switch part[i] {
		case '"':
			for i++; i < len(part) && part[i] != '"'; i++ {
				if part[i] == '\\' {
					i++
				}
			}
		case '/':
			return true
		}
	}
	return false
}

func tomlComment(part []byte) bool {
	for i := 0; i < len(part); i++ {
		switch part[i] {
		case '"', '\'':
			i += tomlStringLength(part[i:]) - 1
		case '#':
			return true
		}
	}
	return false
}

// tomlStringLength returns the length in bytes of the string at the beginning of a part of a TOML file.
func tomlStringLength(part []byte) int {
	quotes := part[:1]
	if triple := bytes.Repeat(quotes, 3); bytes.HasPrefix(part, triple) {
		quotes = triple
	}
	for i := len(quotes); i < len(part); i++ {
		switch {
		case part[i] == '\\' && part[0] == '"':
			i++
		case bytes.HasPrefix(part[i:], quotes):
			i += len(quotes)
			for len(quotes) == 3 && i < len(part) && part[i] == part[0] { // quotes that precede the three closing quotes
				i++
			}
			return i
		}
	}
	return len(part)
}

// yamlComment reports whether a part of a YAML file contains a comment. It also returns true for some strings that only
// look like comments, for example in a block scalar.
func yamlComment(part []byte) bool {
	for line := range bytes.Lines(part) {
		for i := 0; i < len(line); i++ {
			switch {
			case line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t'):
				return true
			case line[i] == '"' || line[i] == '\'':
				before := bytes.TrimRight(line[:i], " \t")
				if len(before) == 0 || strings.IndexByte(":-?[{,", before[len(before)-1]) >= 0 {
					i += yamlStringLength(line[i:]) - 1
				}
			}
		}
	}
	return false
}

// yamlStringLength returns the length in bytes of the quoted string at the beginning of a line. It returns 1 if the
// string does not end on this line.
func yamlStringLength(line []byte) int {
	for i := 1; i < len(line); i++ {
		switch {
		case line[i] == '\\' && line[0] == '"':
			i++
		case line[i] == '\'' && line[0] == '\'' && i+1 < len(line) && line[i+1] == '\'':
			i++
		case line[i] == line[0]:
			if i+1 == len(line) || bytes.IndexByte([]byte(":,]} \t\r\n"), line[i+1]) >= 0 {
				return i + 1
			}
			return 1
		}
	}
	return 1
}
