package catalogpages

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// run is a part of a text. One that is Hidden is the escape of characters that would not
// show, or would change how others show.
type run struct {
	Text   string
	Hidden bool
}

// runs splits a text so that a page can show what it holds. Line breaks stay only where the
// text may have lines; then a tab is four blanks.
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

// escaped is how the character that a text begins with is written where it hides, and how
// many bytes of the text that is. A byte that is no character stands for itself.
func escaped(text string, r rune, broken bool) (string, int) {
	if broken {
		return fmt.Sprintf(`\x%02x`, text[0]), 1
	}
	return viewtext.Escape(string(r)), utf8.RuneLen(r)
}

// hides reports whether a character is shown as an escape after another one.
func hides(r, before rune, lines bool) bool {
	switch {
	case r == '\n':
		return !lines
	case r == 0xfe0f && unicode.Is(unicode.So, before):
		return false // the symbol before it is to look like an emoji, and does
	default:
		return viewtext.Hides(r)
	}
}

// hide appends an escape, to the run before it where that is one, too.
func hide(out []run, escape string) []run {
	if n := len(out); n > 0 && out[n-1].Hidden {
		out[n-1].Text += escape
		return out
	}
	return append(out, run{Text: escape, Hidden: true})
}

// shown is a text as one line that shows what it holds.
func shown(text string) string { return joined(runs(text, false)) }

// shownLines is a text that shows what it holds, with its line breaks.
func shownLines(text string) string { return joined(runs(text, true)) }

func joined(parts []run) string {
	var out strings.Builder
	for _, p := range parts {
		out.WriteString(p.Text)
	}
	return out.String()
}

// cut is the begin of a text, of at most so many characters, and whether that is not all.
func cut(text string, most int) (string, bool) {
	for at := range text {
		if most == 0 {
			return text[:at], true
		}
		most--
	}
	return text, false
}

// short is a text in at most so many characters and a sign that some are missing. Where it
// can it ends with a whole word.
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

// summary is how a description begins: its first sentence, in one line.
func summary(description string) string {
	begin, _ := cut(description, 4*maxSummary) // white space may go
	line := strings.Join(strings.Fields(begin), " ")
	if sentence, _, more := strings.Cut(line, ". "); more {
		line = sentence + "."
	}
	return short(line, maxSummary)
}
