package redaction

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxRounds is the maximum number of searches of one text. After a replacement the text is searched again, because a
// part of it may be found only without what was next to it.
const maxRounds = 4

// plain returns a text in which everything that the detectors find is replaced. name is the name of the member with the
// text, or empty.
func (w *walker) plain(name, text string) (string, error) {
	if w.plan.set.IsEmpty() {
		return text, nil
	}
	for range maxRounds {
		hits, err := w.search.FindMember(name, text)
		if err != nil || len(hits) == 0 {
			return text, err
		}
		if w.replaced() > maxReplacements {
			return "", errMany
		}
		var b strings.Builder
		last := 0
		for _, h := range hits {
			b.WriteString(text[last:h.Start])
			b.WriteString(replacement(h.Detector))
			last = h.End
			w.found[h.Detector]++
		}
		b.WriteString(text[last:])
		text = b.String()
	}
	return replacement(Whole), nil
}

// replaced returns the number of replacements so far.
func (w *walker) replaced() (n int64) {
	for _, one := range w.found {
		n += one
	}
	return n
}

// replacement returns the text that replaces a value. No detector finds it.
func replacement(name string) string { return "[redacted: " + name + "]" }

// quoted returns a text as a JSON string.
func quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // the text is not UTF-8
		return []byte(`"[redacted]"`)
	}
	return out
}

// mayBeJSON reports whether a text begins like an object or an array.
func mayBeJSON(text string) bool {
	text = strings.TrimLeft(text, space)
	if rest, isArray := strings.CutPrefix(text, "["); isArray {
		rest = strings.TrimLeft(rest, space)
		return rest != "" && strings.IndexByte(`{["-0123456789tfn`, rest[0]) >= 0
	}
	return strings.HasPrefix(text, "{")
}

// isLikeJSON reports whether a text begins like an object, or like an array of objects, arrays or strings.
func isLikeJSON(text string) bool {
	rest, isArray := strings.CutPrefix(strings.TrimLeft(text, space), "[")
	rest = strings.TrimLeft(rest, space)
	return !isArray || rest != "" && strings.IndexByte(`{["`, rest[0]) >= 0
}

// space contains the white space of JSON.
const space = " \t\r\n"
