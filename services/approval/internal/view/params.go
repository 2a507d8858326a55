package view

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// redacted replaces a value that policy rules redact in views for approvers.
const redacted = `"[redacted]"`

// renderParams returns params as indented JSON without invisible characters. It redacts the values at the given JSON
// Pointers. It does not reformat numbers.
func renderParams(params string, hidden []string) (string, error) {
	if params == "" {
		return "{}", nil
	}
	dec := jsontext.NewDecoder(bytes.NewBufferString(params))
	var out bytes.Buffer
	enc := jsontext.NewEncoder(&out, jsontext.WithIndent("  "), jsontext.PreserveRawStrings(true))
	for {
		err := copyToken(enc, dec, hidden)
		if errors.Is(err, io.EOF) {
			return strings.TrimSuffix(out.String(), "\n"), nil
		}
		if err != nil {
			return "", fmt.Errorf("render params: %w", err)
		}
	}
}

func copyToken(enc *jsontext.Encoder, dec *jsontext.Decoder, hidden []string) error {
	kind, n := dec.StackIndex(dec.StackDepth())
	isValue := kind != '{' || n%2 == 1
	next := dec.PeekKind()
	if isValue && next != ']' && next != '}' && isHidden(hidden, dec, kind, n) {
		if err := dec.SkipValue(); err != nil {
			return err
		}
		return enc.WriteValue(jsontext.Value(redacted))
	}
	if next == '0' { // write the number as in the input
		raw, err := dec.ReadValue()
		if err != nil {
			return err
		}
		return enc.WriteValue(raw)
	}
	token, err := dec.ReadToken()
	if err != nil {
		return err
	}
	if token.Kind() == '"' {
		return enc.WriteValue(jsontext.Value(safetext.Quote(token.String())))
	}
	return enc.WriteToken(token)
}

// isHidden reports whether the next value must be replaced. It builds the value's JSON Pointer only if one of the
// hidden pointers has the same depth, because it is expensive to build pointers with long keys at great depth.
func isHidden(hidden []string, dec *jsontext.Decoder, kind jsontext.Kind, n int64) bool {
	depth := dec.StackDepth()
	return slices.ContainsFunc(hidden, func(at string) bool { return strings.Count(at, "/") == depth }) &&
		slices.Contains(hidden, pointer(dec, kind, n))
}

func pointer(dec *jsontext.Decoder, kind jsontext.Kind, n int64) string {
	at := string(dec.StackPointer())
	if kind == '[' { // StackPointer returns the previous element, or the array if there is no previous element
		if n > 0 {
			at = at[:strings.LastIndexByte(at, '/')]
		}
		return fmt.Sprintf("%s/%d", at, n)
	}
	return at
}

const (
	maxChanges = 100
	// maxPointerBytes is the maximum total length, in bytes, of the JSON Pointers of all values. Without this limit, the
	// comparison of a small call with long keys at great depth would be expensive.
	maxPointerBytes = 4 << 20
	// maxValue is the maximum length, in bytes, of a value in a difference.
	maxValue = 1024
)

// errTooLarge means that the JSON Pointers of the values are too long in total to compare the params.
var errTooLarge = errors.New("the params have too many or too long paths to compare")

// diffParams returns the first maxChanges differences between the params of two calls, sorted by JSON Pointer. Its
// second result is the number of all differences.
func diffParams(before, after string, hidden []string) ([]*approvalv1.ArgumentChange, int32, error) {
	was, err1 := leaves(before, hidden)
	is, err2 := leaves(after, hidden)
	if err := errors.Join(err1, err2); err != nil {
		return nil, 0, err
	}
	var places []string
	for at, value := range was {
		if is[at] != value {
			places = append(places, at)
		}
	}
	for at := range is {
		if _, ok := was[at]; !ok {
			places = append(places, at)
		}
	}
	slices.Sort(places)
	var out []*approvalv1.ArgumentChange
	for _, at := range places[:min(len(places), maxChanges)] {
		c := &approvalv1.ArgumentChange{Path: safetext.Escape(at)}
		var cut1, cut2 bool
		c.Before, cut1 = truncate(was[at])
		c.After, cut2 = truncate(is[at])
		c.Cut = cut1 || cut2
		out = append(out, c)
	}
	return out, int32(min(len(places), 1<<30)), nil
}

// leaves returns the scalars and the empty objects and arrays in params, by JSON Pointer.
func leaves(params string, hidden []string) (map[string]string, error) {
	text, err := renderParams(params, hidden)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	dec := jsontext.NewDecoder(bytes.NewBufferString(text))
	places := 0
	for {
		kind, n := dec.StackIndex(dec.StackDepth())
		next := dec.PeekKind()
		at := pointer(dec, kind, n)
		if places += len(at); places > maxPointerBytes {
			return nil, errTooLarge
		}
		token, err := dec.ReadToken()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			return nil, err
		case kind == '{' && n%2 == 0 && next != '}': // next is the name of a member
		case next == '}' || next == ']':
		case next == '{' || next == '[':
			if end := dec.PeekKind(); end == '}' || end == ']' {
				out[at] = string(rune(next)) + string(rune(end))
			}
		case next == '"':
			out[at] = safetext.Quote(token.String())
		default:
			out[at] = token.String()
		}
	}
}

// truncate shortens a value that is longer than maxValue. It cuts the value at a character boundary. It reports whether
// it shortened the value.
func truncate(value string) (string, bool) {
	if len(value) <= maxValue {
		return value, false
	}
	return strings.ToValidUTF8(value[:maxValue], ""), true
}
