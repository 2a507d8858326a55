package catalogpages

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// run is a part of a string. If Hidden is true, Text contains escapes for characters that are invisible or that change
// the display of other characters.
type run struct {
	Text   string
	Hidden bool
}

// runs splits a string into visible parts and escapes. If lines is true, line breaks stay and a tab becomes four
// spaces. Otherwise both become escapes.
func runs(text string, lines bool) []run {
	if lines {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\t", "    ")
	}
	var out []run
	begin, before := 0, rune(0)
	for at, r := range text {
		if broken := r == utf8.RuneError && !strings.HasPrefix(text[at:], "\ufffd"); broken || hides(r, before, lines) {
			if begin < at {
				out = append(out, run{Text: text[begin:at]})
			}
			escape, size := escaped(text[at:], r, broken)
			begin = at + size
			out = hide(out, escape)
		}
		before = r
	}
	if begin < len(text) {
		out = append(out, run{Text: text[begin:]})
	}
	return out
}

// escaped returns the escape for the first character of a string, and the character's length in bytes. If broken is
// true, the string begins with an invalid byte, which is escaped instead.
func escaped(text string, r rune, broken bool) (string, int) {
	if broken {
		return fmt.Sprintf(`\x%02x`, text[0]), 1
	}
	return safetext.Escape(string(r)), utf8.RuneLen(r)
}

// hides reports whether a character is shown as an escape. This can depend on the preceding character.
func hides(r, before rune, lines bool) bool {
	switch {
	case r == '\n':
		return !lines
	case r == 0xfe0f && unicode.Is(unicode.So, before):
		return false // U+FE0F after a symbol makes the symbol an emoji
	default:
		return safetext.IsHidden(r)
	}
}

// hide appends an escape to the last run if this run contains escapes. Otherwise it adds a new run.
func hide(out []run, escape string) []run {
	if n := len(out); n > 0 && out[n-1].Hidden {
		out[n-1].Text += escape
		return out
	}
	return append(out, run{Text: escape, Hidden: true})
}

// shown returns a string on one line, with escapes for hidden characters.
func shown(text string) string { return joined(runs(text, false)) }

// shownLines returns a string with its line breaks, and with escapes for hidden characters.
func shownLines(text string) string { return joined(runs(text, true)) }

func joined(parts []run) string {
	var out strings.Builder
	for _, p := range parts {
		out.WriteString(p.Text)
	}
	return out.String()
}

// cut returns at most limit characters from the beginning of a string. It also reports whether the string is longer.
func cut(text string, limit int) (string, bool) {
	for at := range text {
		if limit == 0 {
			return text[:at], true
		}
		limit--
	}
	return text, false
}

// short shortens a string to limit characters, at the end of a word if possible, and appends an ellipsis. It returns a
// string of at most limit characters unchanged.
func short(text string, limit int) string {
	begin, more := cut(text, limit)
	if !more {
		return text
	}
	if word := strings.LastIndexByte(begin, ' '); word > len(begin)*3/4 {
		begin = begin[:word]
	}
	return strings.TrimRightFunc(begin, unicode.IsSpace) + "…"
}

const maxSummary = 140

// summary returns the first sentence of a description, on one line.
func summary(description string) string {
	begin, _ := cut(description, 4*maxSummary) // four times as long, because white space is removed
	line := strings.Join(strings.Fields(begin), " ")
	if sentence, _, more := strings.Cut(line, ". "); more {
		line = sentence + "."
	}
	return short(line, maxSummary)
}
