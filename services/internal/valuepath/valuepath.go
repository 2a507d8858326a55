// Package valuepath parses paths that select values in JSON. These are JSON Pointers (RFC 6901) in which the token `*`
// selects every member of an object and every item of an array. All functions are safe for concurrent use.
package valuepath

import (
	"errors"
	"slices"
	"strings"
)

// These are the limits of a path.
const (
	// MaxBytes is the maximum length of a path, in bytes.
	MaxBytes = 512
	// MaxTokens is the maximum number of tokens of a path.
	MaxTokens = 32
)

// Any is the token that selects every member and every item.
const Any = "*"

// A Path is a list of tokens in which escapes are resolved. It has at least one token.
type Path []string

// Parse parses a path. The error says what is wrong with the path.
func Parse(text string) (Path, error) {
	switch {
	case text == "" || text == "/":
		return nil, errors.New("selects the whole value")
	case text[0] != '/':
		return nil, errors.New("does not begin with /")
	case len(text) > MaxBytes:
		return nil, errors.New("is longer than 512 bytes")
	}
	tokens := strings.Split(text[1:], "/")
	if len(tokens) > MaxTokens {
		return nil, errors.New("has more than 32 parts")
	}
	for i, token := range tokens {
		if rest := strings.NewReplacer("~0", "", "~1", "").Replace(token); strings.Contains(rest, "~") {
			return nil, errors.New("has a ~ that is not followed by 0 or 1")
		}
		tokens[i] = strings.ReplaceAll(strings.ReplaceAll(token, "~1", "/"), "~0", "~")
	}
	return tokens, nil
}

// Selects reports whether the path selects the value at a location. The location consists of the names of members and
// the indexes of items on the way from the root to the value.
func (p Path) Selects(location []string) bool {
	return slices.EqualFunc(p, location, func(token, name string) bool { return token == Any || token == name })
}
