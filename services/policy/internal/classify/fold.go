package classify

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// folded is a text in the form in which steering forms are compared: NFKC, lower case, marks of emphasis and quotation
// as blanks, one blank between words, "n't" as " not", and without hidden characters.
type folded struct {
	text string
	// at has, for each byte of text, its offset in the original; nil if it was not requested.
	at []int
}

// emphasis are characters that count as blanks.
const emphasis = "*_`\"'“”«»‘’„#>|-–—~()[]{}（）「」『』【】"

func fold(text string, places bool) folded {
	var out folded
	b := make([]byte, 0, len(text))
	put := func(s string, from int) {
		for i := range len(s) {
			if s[i] == ' ' && (len(b) == 0 || b[len(b)-1] == ' ') {
				continue
			}
			b = append(b, s[i])
			if places {
				out.at = append(out.at, from)
			}
		}
	}
	for at, r := range text {
		switch {
		case unicode.IsSpace(r):
			put(" ", at)
		case (r == '\'' || r == '’') && strings.HasSuffix(string(b[max(0, len(b)-1):]), "n") && strings.HasPrefix(strings.TrimLeft(text[at:], "'’"), "t"):
			b = b[:len(b)-1]
			if places {
				out.at = out.at[:len(out.at)-1]
			}
			put(" no", at) // the t follows
		case r < utf8.RuneSelf && r > ' ' && !strings.ContainsRune(emphasis, r):
			put(string(unicode.ToLower(r)), at)
		case strings.ContainsRune(emphasis, r):
			put(" ", at)
		case viewtext.Hides(r):
		default:
			put(strings.ToLower(norm.NFKC.String(string(r))), at)
		}
	}
	out.text = string(b)
	return out
}
