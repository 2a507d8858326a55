package issuer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// template is text with placeholders for claims, such as `k8s/{/kubernetes.io/namespace}/{/sub}`. Different values of
// the claims never result in the same text, because a `/` follows each placeholder except the last, and only the claim
// of the last placeholder may contain `/`.
type template struct {
	// prefix is the text before the first placeholder.
	prefix       string
	placeholders []placeholder
}

type placeholder struct {
	pointer string
	claim   valuepath.Path
	// after is the text between this placeholder and the next one, or the text after the last placeholder.
	after string
}

// ParseSubject returns an error unless the text is a template of a subject, such as `corp/{/sub}`.
func ParseSubject(text string) error {
	_, err := parseTemplate(text)
	return err
}

// HasPrefix reports whether every result of a template begins with the given prefix. It returns false if the template
// is not valid.
func HasPrefix(text, prefix string) bool {
	t, err := parseTemplate(text)
	return err == nil && strings.HasPrefix(t.prefix, prefix)
}

// UsesOnly reports whether a template contains no claim except the given one. It returns false if the template is not
// valid.
func UsesOnly(text, pointer string) bool {
	t, err := parseTemplate(text)
	return err == nil && !slices.ContainsFunc(t.placeholders, func(p placeholder) bool { return p.pointer != pointer })
}

func parseTemplate(text string) (template, error) {
	prefix, rest, found := strings.Cut(text, "{")
	if !found {
		return template{}, errors.New("the template contains no claim: write one as {/sub}")
	}
	out := template{prefix: prefix}
	for found {
		pointer, after, closed := strings.Cut(rest, "}")
		if !closed {
			return template{}, errors.New("a brace of the template is not closed")
		}
		claim, err := parsePointer(pointer)
		if err != nil {
			return template{}, err
		}
		p := placeholder{pointer: pointer, claim: claim}
		p.after, rest, found = strings.Cut(after, "{")
		if found && !strings.HasPrefix(p.after, "/") {
			return template{}, errors.New("a `/` must follow each claim of the template except the last")
		}
		out.placeholders = append(out.placeholders, p)
	}
	if strings.Contains(text, "}}") || !isPlain(text) {
		return template{}, errors.New("the template contains an unmatched brace or a control character")
	}
	return out, nil
}

// parsePointer parses the JSON Pointer of a claim.
func parsePointer(text string) (valuepath.Path, error) {
	path, err := valuepath.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("the JSON Pointer %q %w", text, err)
	}
	return path, nil
}

// execute returns the text of the template, in which the values of the claims replace the placeholders.
func (t template) execute(claims object) (string, *Refusal) {
	var out strings.Builder
	out.WriteString(t.prefix)
	for i, p := range t.placeholders {
		text, refusal := claims.textAt(p.pointer, p.claim)
		if refusal != nil {
			return "", refusal
		}
		if i < len(t.placeholders)-1 && strings.Contains(text, "/") {
			return "", refuse(WrongClaim, "the token's claim %s contains a `/`", p.pointer)
		}
		out.WriteString(text)
		out.WriteString(p.after)
	}
	return out.String(), nil
}

// uses reports whether the template contains a claim.
func (t template) uses(pointer string) bool {
	for _, p := range t.placeholders {
		if p.pointer == pointer {
			return true
		}
	}
	return false
}

// textAt returns the value of a claim that must be a string of at least one character, without control characters.
func (o object) textAt(pointer string, path valuepath.Path) (string, *Refusal) {
	value, ok := o.find(path)
	if !ok {
		return "", refuse(WrongClaim, "the token has no claim %s", pointer)
	}
	text, ok := value.(string)
	if !ok || text == "" || !isPlain(text) {
		return "", refuse(WrongClaim, "the token's claim %s is not a text without control characters", pointer)
	}
	return text, nil
}

func isPlain(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl)
}

// ParseClaim returns an error unless the text is the JSON Pointer of a claim.
func ParseClaim(text string) error {
	_, err := parsePointer(text)
	return err
}
