package safetext

import (
	"io"
	"sync"
	"unicode"
	"unicode/utf8"
)

// Writer writes text with hidden characters escaped, so that untrusted text can't control a terminal even if it has not
// been escaped before. Line breaks and tabs are not changed, because columns and shell completions need them. Therefore
// callers must use [Line] to escape line breaks in untrusted text. JSON keeps its meaning, because a hidden character
// in JSON is always inside a string, and there the escape is equivalent. A Writer is safe for concurrent use.
type Writer struct {
	to io.Writer

	mu      sync.Mutex
	pending []byte // text to write next, or the beginning of a character between two writes
}

// NewWriter returns a Writer that writes to the given writer, which can be a terminal.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements [io.Writer].
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pending = append(w.pending, p...)
	whole := len(w.pending) - unfinished(w.pending)
	text := replace(string(w.pending[:whole]), controlsTerminal)
	w.pending = append(w.pending[:0], w.pending[whole:]...)
	if _, err := io.WriteString(w.to, text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// controlsTerminal reports whether a character can control a terminal. Printable characters, line breaks and tabs do
// not.
func controlsTerminal(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }

// unfinished returns the length in bytes of an incomplete character at the end of text.
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
