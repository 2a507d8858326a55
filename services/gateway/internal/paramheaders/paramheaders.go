// Package paramheaders finds the arguments that a tool call must repeat in HTTP headers (MCP 2026-07-28, Transports,
// Custom Headers from Tool Parameters). The tool's schema marks each of these arguments with the member `x-mcp-header`.
package paramheaders

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

const headerPrefix = "Mcp-Param-"

const (
	// annotation is the member of an argument's schema that contains the name of a header.
	annotation = "x-mcp-header"
	// maxDepth is the maximum depth of the properties in a schema with annotations. maxBindings is the maximum number of
	// headers for one tool, because the size of a request's head is limited.
	maxDepth    = 16
	maxBindings = 64
	// maxValue limits the length of a header value that the gateway adds for a client, in bytes. The limit is necessary
	// because the size of a request's head is limited.
	maxValue = 4 << 10
	// maxSafe is the highest integer that a header may contain. The lowest is -maxSafe.
	maxSafe = 1<<53 - 1
)

// ErrMismatch means that a header differs from the argument that it must repeat. Compare it with errors.Is.
var ErrMismatch = errors.New("a header disagrees with the arguments")

// A Binding names an HTTP header and the argument that the header must repeat. It is immutable.
type Binding struct {
	// Path contains the keys that lead to the argument.
	Path []string
	// Header is the full name of the header.
	Header string
}

// Bindings returns the bindings in a tool's definition, sorted by header. There is one binding for each annotated
// property in the schema of the tool's arguments. If an annotation violates the specification, Bindings returns none,
// because clients must not list a tool with such an annotation.
func Bindings(definition []byte) []Binding {
	if !bytes.Contains(definition, []byte(annotation)) {
		return nil
	}
	var tool struct {
		Schema schema `json:"inputSchema"`
	}
	if json.Unmarshal(definition, &tool) != nil {
		return nil
	}
	out, ok := tool.Schema.bindings(nil, nil)
	if !ok {
		return nil
	}
	slices.SortFunc(out, func(a, b Binding) int { return strings.Compare(a.Header, b.Header) })
	return out
}

// schema contains those members of an argument's schema that this package reads.
type schema struct {
	Type       jsontext.Value    `json:"type"`
	Header     *string           `json:"x-mcp-header"`
	Properties map[string]schema `json:"properties"`
}

// bindings appends the bindings for an object's properties to out. It returns false if an annotation violates the
// specification.
func (s schema) bindings(out []Binding, path []string) ([]Binding, bool) {
	ok := len(path) < maxDepth
	for name, p := range s.Properties {
		at := append(slices.Clone(path), name)
		if p.Header != nil {
			field := headerPrefix + *p.Header
			primitive := slices.Contains([]string{`"string"`, `"integer"`, `"boolean"`}, string(p.Type))
			twice := slices.ContainsFunc(out, func(b Binding) bool { return strings.EqualFold(b.Header, field) })
			if !primitive || twice || !isToken(*p.Header) || len(out) == maxBindings {
				return nil, false
			}
			out = append(out, Binding{Path: at, Header: field})
		}
		if out, ok = p.bindings(out, at); !ok {
			return nil, false
		}
	}
	return out, ok
}

// isToken reports whether a string may be part of a header's name (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

// Headers returns the headers that the gateway must send with a call. arguments is a raw JSON object or empty.
// clientHeader returns the value of a header in the client's request, or "". If a value does not match its argument,
// Headers returns an error that wraps [ErrMismatch].
func Headers(arguments []byte, bindings []Binding, clientHeader func(header string) string) (out []upstream.Header, err error) {
	found, err := argumentValues(arguments, bindings)
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		argument := found[b.Header]
		value, has, err := b.value(argument)
		if err != nil {
			return nil, err
		}
		field := clientHeader(b.Header)
		text, ok := mcp.DecodeHeader(field)
		same := text == value || argument.Kind() == '0' && sameNumber(text, value)
		switch {
		case !ok:
			return nil, fmt.Errorf("%w: %s is not valid base64", ErrMismatch, b.Header)
		case has && field == "" && value != "":
			return nil, fmt.Errorf("%w: %s is missing", ErrMismatch, b.Header)
		case !same:
			return nil, fmt.Errorf("%w: %s has another value", ErrMismatch, b.Header)
		case has:
			out = append(out, upstream.Header{Name: b.Header, Value: value})
		}
	}
	return out, nil
}

// DerivedHeaders returns the headers of a call for a client that does not send them itself. It omits an argument that
// cannot be written in a header. In that case, the server decides what to do about the missing header.
func DerivedHeaders(arguments []byte, bindings []Binding) (out []upstream.Header) {
	found, err := argumentValues(arguments, bindings)
	if err != nil {
		return nil
	}
	for _, b := range bindings {
		if value, has, err := b.value(found[b.Header]); err == nil && has && len(value) <= maxValue {
			out = append(out, upstream.Header{Name: b.Header, Value: value})
		}
	}
	return out
}

// argumentValues returns the arguments that headers must repeat. The keys of the map are the names of the headers.
func argumentValues(arguments []byte, bindings []Binding) (map[string]jsontext.Value, error) {
	if len(bindings) == 0 || len(arguments) == 0 {
		return nil, nil //nolint:nilnil // no arguments is a valid result
	}
	found := make(map[string]jsontext.Value, len(bindings))
	if err := collectArguments(jsontext.NewDecoder(bytes.NewReader(arguments)), bindings, 0, found); err != nil {
		return nil, fmt.Errorf("%w: the arguments can't be read", ErrMismatch)
	}
	return found, nil
}

// collectArguments reads an object once, and stores the values of the bindings whose paths lead into this object. depth
// is the number of keys in the path from the arguments to the object.
func collectArguments(dec *jsontext.Decoder, bindings []Binding, depth int, found map[string]jsontext.Value) error {
	if dec.PeekKind() != '{' {
		return dec.SkipValue()
	}
	if _, err := dec.ReadToken(); err != nil {
		return err
	}
	for dec.PeekKind() == '"' {
		key, err := dec.ReadToken()
		if err != nil {
			return err
		}
		name, object := key.String(), dec.PeekKind() == '{'
		var deeper []Binding
		var here string
		for _, b := range bindings {
			switch {
			case b.Path[depth] != name:
			case len(b.Path) == depth+1:
				here = b.Header
			default:
				deeper = append(deeper, b)
			}
		}
		if here != "" && (object || dec.PeekKind() == '[') {
			found[here] = jsontext.Value("{}") // Binding.value refuses an object, so the call is refused
			here = ""
		}
		switch {
		case here != "":
			value, err := dec.ReadValue()
			if err != nil {
				return err
			}
			found[here] = value.Clone()
		case deeper != nil && object:
			err = collectArguments(dec, deeper, depth+1, found)
		default:
			err = dec.SkipValue()
		}
		if err != nil {
			return err
		}
	}
	_, err := dec.ReadToken()
	return err
}

// value returns an argument in the form of a header value. has is false if the argument is absent or null.
func (b Binding) value(argument jsontext.Value) (text string, has bool, err error) {
	switch argument.Kind() { //nolint:exhaustive // objects and arrays cannot be written in a header
	case '"':
		quoted, err := jsontext.AppendUnquote(nil, argument)
		return string(quoted), true, err
	case 't', 'f':
		return string(argument), true, nil
	case '0':
		if n, ok := integer(string(argument)); ok {
			return strconv.FormatInt(n, 10), true, nil
		}
	case 'n', 0:
		return "", false, nil
	}
	return "", false, fmt.Errorf("%w: the argument of %s is not a string, integer or boolean", ErrMismatch, b.Header)
}

// sameNumber reports whether a header contains the same integer as the argument, possibly in another notation.
func sameNumber(field, argument string) bool {
	n, ok := integer(field)
	return ok && strconv.FormatInt(n, 10) == argument
}

// integer parses an integer whose absolute value is at most maxSafe. It accepts every notation that is a valid JSON
// number.
func integer(text string) (int64, bool) {
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !jsontext.Value(text).IsValid() || f != math.Trunc(f) || math.Abs(f) > maxSafe {
		return 0, false
	}
	return int64(f), true
}
