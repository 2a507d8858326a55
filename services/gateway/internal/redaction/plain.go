package redaction

import (
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// maxRounds limits how often a text is searched. After replacements, the text is searched again, because some values
// can be found only after the text next to them has been replaced.
const maxRounds = 4

// plain replaces everything that the detectors find in a text, and returns the new text. name is the key of the member
// whose value is the text, or empty.
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

// replaced returns how many values were replaced so far.
func (w *walker) replaced() (n int64) {
	for _, one := range w.found {
		n += one
	}
	return n
}

// replacement returns the text that replaces a value. The detectors find nothing in it.
func replacement(name string) string { return "[redacted: " + name + "]" }

// quoted returns the text as a JSON string.
func quoted(text string) []byte {
	out, err := jsontext.AppendQuote(nil, text)
	if err != nil { // the text is not UTF-8
		return []byte(`"[redacted]"`)
	}
	return out
}

// mayBeJSON reports whether a text may begin with a JSON object or array.
func mayBeJSON(text string) bool {
	text = strings.TrimLeft(text, space)
	if rest, isArray := strings.CutPrefix(text, "["); isArray {
		rest = strings.TrimLeft(rest, space)
		return rest != "" && strings.IndexByte(`{["-0123456789tfn`, rest[0]) >= 0
	}
	return strings.HasPrefix(text, "{")
}

// isLikeJSON reports whether a text begins like a JSON object, or like a JSON array of objects, arrays or strings.
func isLikeJSON(text string) bool {
	rest, isArray := strings.CutPrefix(strings.TrimLeft(text, space), "[")
	rest = strings.TrimLeft(rest, space)
	return !isArray || rest != "" && strings.IndexByte(`{["`, rest[0]) >= 0
}

// space contains the whitespace characters of JSON.
const space = " \t\r\n"
