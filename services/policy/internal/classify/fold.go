package classify

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// folded is a text that was normalized for the search for steering forms, which are patterns for texts that instruct
// the model. The text is in NFKC and in lower case, without hidden characters. Words are separated by one space.
// [emphasis] characters are replaced by spaces, and "n't" is replaced by " not".
type folded struct {
	text string
	// at contains the offset in the original text for each byte of the folded text. It is nil if the caller of fold did
	// not request offsets.
	at []int
}

// emphasis contains characters for emphasis, quotation marks, brackets and dashes.
const emphasis = "*_`\"'“”«»‘’„#>|-–—~()[]{}（）「」『』【】"

func fold(text string, offsets bool) folded {
	var out folded
	b := make([]byte, 0, len(text))
	put := func(s string, from int) {
		for i := range len(s) {
			if s[i] == ' ' && (len(b) == 0 || b[len(b)-1] == ' ') {
				continue
			}
			b = append(b, s[i])
			if offsets {
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
			if offsets {
				out.at = out.at[:len(out.at)-1]
			}
			put(" no", at) // the "t" that follows completes "not"
		case r < utf8.RuneSelf && r > ' ' && !strings.ContainsRune(emphasis, r):
			put(string(unicode.ToLower(r)), at)
		case strings.ContainsRune(emphasis, r):
			put(" ", at)
		case safetext.IsHidden(r):
		default:
			put(strings.ToLower(norm.NFKC.String(string(r))), at)
		}
	}
	out.text = string(b)
	return out
}
