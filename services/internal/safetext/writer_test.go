package safetext_test

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// Case X7. The output is written in pieces that are divided at any position. It can't control a terminal, and JSON
// keeps its meaning.
func FuzzWriter(f *testing.F) {
	for _, seed := range []string{"x", "\x1b[2J\r\n\t", "\u009b2J", "\xc2", "é\u202e\U000e0001", "\x9b2J", `{"a":"\u001b"}`} {
		f.Add(seed, 1)
		f.Add(seed, 3)
	}
	f.Fuzz(func(t *testing.T, text string, piece int) {
		if piece < 1 {
			t.Skip("no piece is that long")
		}
		steers := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
		write := func(text string) string {
			var out strings.Builder
			w := safetext.NewWriter(&out)
			for rest := text; rest != ""; {
				n := min(piece, len(rest))
				if got, err := io.WriteString(w, rest[:n]); got != n || err != nil {
					t.Fatalf("%d of %d bytes were written: %v", got, n, err)
				}
				rest = rest[n:]
			}
			return out.String()
		}
		if got := write(text); strings.ContainsFunc(got, steers) {
			t.Errorf("%q became %q", text, got)
		}
		if line := safetext.Line(text); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q became the line %q", text, line)
		}
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		var before, after string
		if err := errors.Join(json.Unmarshal(raw, &before), json.Unmarshal([]byte(write(string(raw))), &after)); err != nil || before != after {
			t.Errorf("%q reads as %q: %v", before, after, err)
		}
	})
}

func TestLines_KeepsLineBreaks(t *testing.T) {
	t.Parallel()
	if got, want := safetext.Lines("a\tb\n\x1b[m\r\nc\xff"), "a    b\n\\u001b[m\\u000d\nc\ufffd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestVisibleLines_EscapesInvisibleCharacters(t *testing.T) {
	t.Parallel()
	if got, want := safetext.VisibleLines("a\tb\u2800\n\x1b[2K\r\\n\u202e\u3164\n"), "a    b\\u2800\n\\u001b[2K\\u000d\\n\\u202e\\u3164\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
