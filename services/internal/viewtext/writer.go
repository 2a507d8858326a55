package viewtext

import (
	"io"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Writer passes on what it is given, with escapes for what hides: whatever was
// forgotten before, nothing that a stranger wrote steers the terminal behind it. Line
// breaks and tabs pass, for columns and completions are made of them, so a stranger's
// own have to go before, by [Line]. What JSON writes stays the same JSON: there such a
// character stands in a string, and an escape means it. It is safe for concurrent use.
type Writer struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // what is written next; between writes the begin of a character
}

// NewWriter returns a writer to a terminal, or to what may be shown on one.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements io.Writer.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, p...)
	whole := len(w.rest) - unfinished(w.rest)
	text := replace(string(w.rest[:whole]), steers)
	w.rest = append(w.rest[:0], w.rest[whole:]...)
	if _, err := io.WriteString(w.to, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// steers reports whether a character is none that a terminal just shows, nor one that
// parts what it shows.
func steers(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// unfinished is how many bytes at the end of a text begin a character.
func unfinished(text []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if begin := text[len(text)-n:]; utf8.RuneStart(begin[0]) {
			if utf8.FullRune(begin) {
				return 0
			}
			return n
		}
	}
	return 0
}
