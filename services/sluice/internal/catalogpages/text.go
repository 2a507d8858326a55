package catalogpages

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// run is a part of a text. If it is Hidden, it is the escape of characters that would be invisible, or would change how
// others are shown.
type run struct {
	Text   string
	Hidden bool
}

// runs splits a text into visible parts and escapes. Line breaks stay only if lines is true; then a tab becomes four
// blanks.
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

// escaped returns the escape of the first character of a text, and its length in bytes. An invalid byte counts as a
// character.
func escaped(text string, r rune, broken bool) (string, int) {
	if broken {
		return fmt.Sprintf(`\x%02x`, text[0]), 1
	}
	return safetext.Escape(string(r)), utf8.RuneLen(r)
}

// hides reports whether a character is shown as an escape after another one.
func hides(r, before rune, lines bool) bool {
	switch {
	case r == '\n':
		return !lines
	case r == 0xfe0f && unicode.Is(unicode.So, before):
		return false // the selector makes the symbol before it an emoji
	default:
		return safetext.Hides(r)
	}
}

// hide appends an escape, to the last run if that is an escape.
func hide(out []run, escape string) []run {
	if n := len(out); n > 0 && out[n-1].Hidden {
		out[n-1].Text += escape
		return out
	}
	return append(out, run{Text: escape, Hidden: true})
}

// shown returns a text on one line, with escapes.
func shown(text string) string { return joined(runs(text, false)) }

// shownLines returns a text with escapes and its line breaks.
func shownLines(text string) string { return joined(runs(text, true)) }

func joined(parts []run) string {
	var out strings.Builder
	for _, p := range parts {
		out.WriteString(p.Text)
	}
	return out.String()
}

// cut returns the beginning of a text, of at most this many characters, and whether something was cut.
func cut(text string, most int) (string, bool) {
	for at := range text {
		if most == 0 {
			return text[:at], true
		}
		most--
	}
	return text, false
}

// short returns a text of at most this many characters, with a sign if it was cut. It cuts at the end of a word if
// possible.
func short(text string, most int) string {
	begin, more := cut(text, most)
	if !more {
		return text
	}
	if word := strings.LastIndexByte(begin, ' '); word > len(begin)*3/4 {
		begin = begin[:word]
	}
	return strings.TrimRightFunc(begin, unicode.IsSpace) + "…"
}

// maxSummary is how many characters of a description a list shows.
const maxSummary = 140

// summary returns the first sentence of a description, on one line.
func summary(description string) string {
	begin, _ := cut(description, 4*maxSummary) // white space may be removed
	line := strings.Join(strings.Fields(begin), " ")
	if sentence, _, more := strings.Cut(line, ". "); more {
		line = sentence + "."
	}
	return short(line, maxSummary)
}
