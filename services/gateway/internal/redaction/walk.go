package redaction

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/internal/detect"
	"github.com/sluice-mesh/sluice/services/internal/valuepath"
)

// maxDepth is the maximum nesting depth of a value that is searched. A message has at most 512 levels, and a string in
// the message can contain JSON with as many levels.
const maxDepth = 520

var errDepth = errors.New("it is nested too deep")

// A walker searches one JSON value for values that must be replaced.
type walker struct {
	plan   *plan
	search *detect.Search
	part   part
	dec    *jsontext.Decoder
	// inString is true while the walker searches JSON that is the content of a string. stringDepth is the number of
	// strings that enclose that JSON.
	inString    bool
	stringDepth int
	// location contains the steps from the root to the current value.
	location []step
	edits    []jsonrpc.Edit
	found    map[string]int64
}

// A match is a path that might select a value below the current value. next is the index of the next step of the path.
type match struct{ path, next int }

// roots returns the matches at a root, where every path can begin.
func (w *walker) roots() []match {
	out := make([]match, len(w.plan.paths))
	for i := range out {
		out[i].path = i
	}
	return out
}

// matchesBelow returns the matches for a member or an element, and reports whether a path selects that member or
// element.
func (w *walker) matchesBelow(active []match, name string) (next []match, selected bool) {
	for _, m := range active {
		path := w.plan.paths[m.path]
		if token := path[m.next]; token != valuepath.Any && token != name {
			continue
		}
		if m.next+1 == len(path) {
			return nil, true
		}
		next = append(next, match{m.path, m.next + 1})
	}
	return next, false
}

// walk returns the edits that must be applied to a raw JSON value.
func (w *walker) walk(raw []byte) ([]jsonrpc.Edit, error) {
	w.dec = jsontext.NewDecoder(bytes.NewReader(raw))
	if err := w.value(w.roots(), ""); err != nil {
		return nil, err
	}
	return w.edits, nil
}

// value reads a value that no path selects. name is the key of the member with this value, or empty for an element of
// an array.
func (w *walker) value(active []match, name string) error {
	if len(w.location) > maxDepth {
		return errDepth
	}
	switch w.dec.PeekKind() { //nolint:exhaustive // all other kinds are scalars, or errors of ReadValue
	case jsontext.KindBeginObject:
		return w.object(active)
	case jsontext.KindBeginArray:
		return w.array(active)
	default:
		raw, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		return w.scalar(name, raw)
	}
}

func (w *walker) object(active []match) error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	names := 0
	for w.dec.PeekKind() != jsontext.KindEndObject {
		raw, err := w.dec.ReadValue()
		if err != nil {
			return err
		}
		name, at := jsonrpc.Unquote(raw), w.spanOf(raw)
		if err := w.name(name, at, &names); err != nil {
			return err
		}
		below, selected := w.matchesBelow(active, name)
		if err := w.element(below, step{name: name}, selected); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

func (w *walker) array(active []match) error {
	if _, err := w.dec.ReadToken(); err != nil {
		return err
	}
	for i := 0; w.dec.PeekKind() != jsontext.KindEndArray; i++ {
		below, selected := w.matchesBelow(active, strconv.Itoa(i))
		if err := w.element(below, item, selected); err != nil {
			return err
		}
	}
	_, err := w.dec.ReadToken()
	return err
}

// element reads the value of a member, or an element of an array. at is the step to that value.
func (w *walker) element(active []match, at step, selected bool) error {
	w.location = append(w.location, at)
	defer func() { w.location = w.location[:len(w.location)-1] }()
	isKept := w.keptForm()
	if kind := w.dec.PeekKind(); !selected && (isKept == nil || kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray) {
		if w.isRoot() {
			active = append(active, w.roots()...)
		}
		return w.value(active, at.name)
	}
	raw, err := w.dec.ReadValue()
	switch {
	case err != nil:
		return err
	case isKept != nil && isKept(raw):
		return nil
	case selected:
		return w.replace(w.spanOf(raw), w.selectedText(raw), ByPath)
	}
	return w.scalar(at.name, raw)
}

// spanOf returns the span of the value that the decoder has just read. raw contains the bytes of that value.
func (w *walker) spanOf(raw []byte) jsonrpc.Span {
	end := int(w.dec.InputOffset())
	return jsonrpc.Span{Start: end - len(raw), End: end}
}

// replace adds an edit and counts it under the given name.
func (w *walker) replace(at jsonrpc.Span, with []byte, name string) error {
	if len(w.edits) == maxReplacements {
		return errMany
	}
	w.edits = append(w.edits, jsonrpc.Edit{Span: at, With: with})
	if name != "" {
		w.found[name]++
	}
	return nil
}

// name replaces what the detectors find in the key of a member. n counts the replaced keys of the object. name adds
// this number to every replaced key after the first, because keys must be unique.
func (w *walker) name(name string, at jsonrpc.Span, n *int) error {
	out, err := w.plain("", name)
	if err != nil || out == name {
		return err
	}
	if *n++; *n > 1 {
		out += " " + strconv.Itoa(*n)
	}
	return w.replace(at, quoted(out), "")
}

// scalar replaces what the detectors find in the scalar that the decoder has just read. name has the same meaning as
// for [walker.value].
func (w *walker) scalar(name string, raw jsontext.Value) error {
	at := w.spanOf(raw)
	switch raw.Kind() { //nolint:exhaustive // the other scalars contain no text
	case jsontext.KindString:
		text := jsonrpc.Unquote(raw)
		if w.isBase64() && mayBeBase64(text) {
			return nil
		}
		out, err := w.string(name, text)
		if err != nil || out == text {
			return err
		}
		return w.replace(at, quoted(out), "")
	case jsontext.KindNumber:
		number := wholeNumber(string(raw))
		if len(number) < minNumber {
			return nil
		}
		out, err := w.plain("", number)
		if err != nil || out == number {
			return err
		}
		return w.replace(at, quoted(out), "")
	default:
		return nil
	}
}

// minNumber is the length of the shortest number that a detector can find. maxNumber limits which numbers wholeNumber
// rewrites. It is the maximum length of the mantissa, and the maximum absolute value of the exponent.
const minNumber, maxNumber = 12, 64

// wholeNumber returns a whole number without fraction and exponent. It is needed because some programs write whole
// numbers as 1234.0 or 1.234e3. It returns all other numbers unchanged.
func wholeNumber(raw string) string {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(raw), "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	shift, err := strconv.Atoi(cmp.Or(exponent, "0"))
	if err != nil || shift < -maxNumber || shift > maxNumber || len(mantissa) > maxNumber || shift < 0 && len(whole) <= -shift {
		return raw
	}
	digits := whole + fraction + strings.Repeat("0", max(0, shift-len(fraction)))
	if end := len(whole) + shift; strings.Trim(digits[end:], "0") == "" {
		return digits[:end]
	}
	return raw
}

// maxTexts limits how many levels of strings nested in strings are read as JSON.
const maxTexts = 4

// string applies the redactions to the content of a string and returns the new content. If the content is JSON, it is
// searched first as JSON and then as plain text.
func (w *walker) string(name, text string) (string, error) {
	if mayBeJSON(text) {
		inner := walker{plan: w.plan, search: w.search, inString: true, stringDepth: w.stringDepth + 1, found: make(map[string]int64)}
		out, err := inner.content(text)
		switch {
		case isFatal(err):
			return "", err
		case err == nil:
			text = out
			for by, n := range inner.found {
				w.found[by] += n
			}
		case errors.Is(err, errTexts) && len(w.plan.paths) > 0:
			w.found[ByPath]++
			return "[redacted: a text that begins like JSON inside too many other texts, in which paths can't be found]", nil
		case name == "text" && !w.inString && isLikeJSON(text) && len(w.plan.paths) > 0:
			w.found[ByPath]++
			return "[redacted: a text that begins like JSON and is not valid JSON, in which paths can't be found]", nil
		}
	}
	return w.plain(name, text)
}

// content applies the redactions to the JSON in a string and returns the new content. It returns an error if the
// content is not JSON.
func (w *walker) content(text string) (string, error) {
	if w.stringDepth > maxTexts {
		return "", errTexts
	}
	edits, err := w.walk([]byte(text))
	if err != nil {
		return "", err
	}
	if _, err := w.dec.ReadToken(); !errors.Is(err, io.EOF) { // a text with more than one value is not JSON
		return "", errors.Join(errMoreValues, err)
	}
	out, err := jsonrpc.ApplyEdits([]byte(text), edits...)
	return string(out), err
}

var (
	errMoreValues = errors.New("the text has more than one value")
	errTexts      = errors.New("too many strings contain the text")
)

// isFatal reports whether an error means that the whole message can't be searched. All other errors mean only that a
// string does not contain JSON.
func isFatal(err error) bool {
	return errors.Is(err, detect.ErrTooLarge) || errors.Is(err, errMany) || errors.Is(err, errDepth)
}
