package classify

import (
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

// A script is a group of Unicode scripts that occur together in texts.
type script uint8

const (
	noScript script = iota
	latin
	cyrillic
	greek
	eastAsian
	anyOther
	scripts
)

func scriptOf(r rune) script {
	switch {
	case r < utf8.RuneSelf:
		if 'a' <= r|0x20 && r|0x20 <= 'z' {
			return latin
		}
		return noScript
	case !unicode.IsLetter(r):
		return noScript
	case unicode.In(r, unicode.Latin):
		return latin
	case unicode.In(r, unicode.Cyrillic):
		return cyrillic
	case unicode.In(r, unicode.Greek):
		return greek
	case unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Hangul, unicode.Bopomofo):
		return eastAsian
	}
	return anyOther
}

// These constants define when a passage in a different script than the rest of the text is suspicious.
const (
	// minPassage is the minimum number of letters in a passage. For a passage of ideograms, the minimum is minIdeogram.
	minPassage  = 16
	minIdeogram = 8
	// maxShare is the maximum share of the text's letters that are in the passage's script. If the share is larger, the
	// text is probably bilingual.
	maxShare = 0.35
	// ideogram is the number of letters that one ideogram counts as when the share is computed.
	ideogram = 3
)

// count adds the number of letters in each script of a text to letters.
func count(letters *[scripts]int, text string) {
	for _, r := range text {
		switch s := scriptOf(r); s { //nolint:exhaustive // letters of all other scripts count as one
		case noScript:
		case eastAsian:
			letters[s] += ideogram
		default:
			letters[s]++
		}
	}
}

// isRare reports whether the share of letters in the script s is at most maxShare.
func isRare(letters *[scripts]int, s script) bool {
	all := 0
	for _, some := range letters {
		all += some
	}
	return float64(letters[s]) <= maxShare*float64(all)
}

// hasHiddenText reports whether the definition contains text that people do not see or can't read. This is an invisible
// character, a word that mixes Latin letters with similar letters of another script, or a passage in a rare script. A
// script is rare in a text if few of the text's letters are in it. If there are no steering forms (patterns for texts
// that instruct the model) for a script, the share is computed over all letters in the definition instead.
func (c *finding) hasHiddenText() bool {
	found := false
	var whole [scripts]int
	for _, text := range c.tool.Texts {
		at := safetext.Invisible(text.Value)
		if at >= 0 && !found {
			found = true
			c.quote(text, at, lastOf(text.Value, at), "this character is invisible, or changes how other characters are displayed")
		}
		if !text.InKey {
			count(&whole, text.Value)
		}
	}
	for _, text := range c.tool.Texts {
		var own [scripts]int
		count(&own, text.Value)
		from, to, meaning := findForeignText(text.Value, func(s script) bool {
			if s == anyOther {
				return isRare(&whole, s)
			}
			return isRare(&own, s)
		})
		if meaning != "" {
			c.quote(text, from, to, meaning)
			return true
		}
	}
	return found
}

// findForeignText finds a word with letters of two similar scripts, or a passage in a rare script. It returns the start
// and end of the word or passage, and a meaning that explains it as evidence. The meaning is empty if nothing was
// found.
func findForeignText(text string, rare func(script) bool) (from, to int, meaning string) {
	var word, passage struct {
		from, letters int
		in            [scripts]bool
		of            script
	}
	for at, r := range text + " " {
		s := scriptOf(r)
		if s == noScript && !unicode.IsMark(r) {
			if word.in[latin] && (word.in[cyrillic] || word.in[greek]) && word.letters > 3 {
				return word.from, at, "this word mixes letters of scripts that look alike"
			}
			word.letters, word.in = 0, [scripts]bool{}
		}
		if s != noScript {
			if word.letters == 0 {
				word.from = at
			}
			word.letters++
			word.in[s] = true
		}
		switch {
		case s == noScript && !isQuote(r): // spaces and punctuation do not end a passage
		case s == noScript || s == latin || s != passage.of:
			passage.letters, passage.of, passage.from = 0, s, at
			if s > latin {
				passage.letters = 1
			}
		default:
			passage.letters++
		}
		least := minPassage
		if passage.of == eastAsian {
			least = minIdeogram
		}
		if passage.letters >= least && rare(passage.of) {
			return passage.from, min(at+utf8.RuneLen(r), len(text)), "the script of this passage differs from that of the rest"
		}
	}
	return 0, 0, ""
}

// isQuote reports whether r is a quotation mark or a bracket. Such a character ends a passage, because it can enclose
// an example in another script.
func isQuote(r rune) bool {
	switch r {
	case '"', '\'', '`', '“', '”', '«', '»', '„', '(', ')', '（', '）', '「', '」', '‘', '’', '[', ']':
		return true
	}
	return false
}
