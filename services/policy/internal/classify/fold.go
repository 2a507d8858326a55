package classify

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// folded is a text in the form that steering forms (patterns for texts that instruct the model) match: in NFKC and
// lower case, without hidden characters, with one space between words, with spaces in place of [emphasis] characters,
// and with " not" in place of "n't".
type folded struct {
	text string
	// at contains, for each byte of the folded text, its offset in the original text. It is nil if the caller of fold
	// did not request offsets.
	at []int
}

// emphasis contains emphasis marks and quotation marks, which are treated as spaces.
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
			put(" no", at) // the t follows
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
