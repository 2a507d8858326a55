package classify

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

type word struct {
	// text is the word in lower case. offset is its position in the original text in bytes.
	text   string
	offset int
	// raw is the word as written in the original text.
	raw string
	// first is true if the word begins a sentence.
	first bool
	// after is the text between the previous word and this word.
	after string
}

// maxWords limits the number of words that are read from a text.
const maxWords = 400

// nameWords returns the words of a name. A new word begins at a capital letter next to a lower-case letter, and after a
// character that is neither a letter nor a digit.
func nameWords(name string) []word {
	return split(name, true)
}

// ownWords returns the words of a name without its prefixes. For example, it returns "delete" and "note" for
// "mcp__notes__delete_note" and for "NotesV1--DeleteNote". If only one word remains, ownWords also returns the words of
// the last prefix, because they name the object. For example, it returns "payments" and "create" for "payments.create".
func ownWords(name string) []word {
	from := 0   // start of the last part
	before := 0 // start of the part before the last
	for _, mark := range [...]string{"__", "--", "::", ".", "/", ":"} {
		for at := 0; ; {
			i := strings.Index(name[at:], mark)
			if i < 0 {
				break
			}
			at += i + len(mark)
			if at >= len(name) {
				break
			}
			if at > from {
				from, before = at, from
			} else if at < from && at > before {
				before = at
			}
		}
	}
	words := nameWords(name[from:])
	if len(words) == 1 && from > 0 {
		from = before
		words = nameWords(name[from:])
	}
	for i := range words {
		words[i].offset += from
	}
	return words
}

func textWords(text string) []word {
	return split(text, false)
}

func split(text string, camel bool) []word {
	var out []word
	begin, end := -1, 0 // start of the current word, or -1, and end of the previous word
	flush := func(at int) {
		if begin < 0 {
			return
		}
		between := text[end:begin]
		out = append(out, word{
			text: strings.ToLower(text[begin:at]), offset: begin, raw: text[begin:at], after: between,
			first: len(out) == 0 || strings.ContainsAny(between, ".!?\n") && strings.ContainsAny(between, " \n") && !isAbbreviation(out),
		})
		begin, end = -1, at
	}
	var before rune
	for at, r := range text {
		if len(out) == maxWords {
			return out
		}
		letter := unicode.IsLetter(r) || unicode.IsDigit(r) || !camel && (r == '\'' || r == '-' && begin >= 0 || r == '’')
		switch {
		case !letter:
			flush(at)
		case camel && begin >= 0 && unicode.IsUpper(r) && (unicode.IsLower(before) || nextIsLower(text[at:])):
			flush(at)
			begin = at
		case begin < 0:
			begin = at
		}
		before = r
	}
	flush(len(text))
	return out
}

// isAbbreviation reports whether the last words are "e.g" or "i.e". A dot after these words does not end a sentence.
func isAbbreviation(words []word) bool {
	if len(words) < 2 || words[len(words)-1].after != "." {
		return false
	}
	one, other := words[len(words)-2].text, words[len(words)-1].text
	return one == "e" && other == "g" || one == "i" && other == "e"
}

// nextIsLower reports whether the second letter of a text is in lower case. If it is, a capital first letter begins a
// word, such as the S in "HTTPServer".
func nextIsLower(text string) bool {
	_, n := utf8.DecodeRuneInString(text)
	r, _ := utf8.DecodeRuneInString(text[n:])
	return unicode.IsLower(r)
}

// verbOf returns the base form and the sense of a verb in any of its English forms.
func verbOf(text string) (base string, s sense, ok bool) {
	if s, ok := verbs[text]; ok {
		return text, s, true
	}
	if i := strings.LastIndexByte(text, '-'); i > 0 { // for example force-delete
		return verbOf(text[i+1:])
	}
	if stem, is := strings.CutPrefix(text, "un"); is && verbs[stem].category == write { // for example unskip
		return text, sense{category: write}, true
	}
	for _, form := range [...]struct{ end, instead string }{
		{"ies", "y"}, {"es", ""}, {"es", "e"}, {"s", ""},
		{"ied", "y"}, {"ed", ""}, {"ed", "e"}, {"ing", ""}, {"ing", "e"},
	} {
		stem, cut := strings.CutSuffix(text, form.end)
		if !cut || len(stem) < 2 {
			continue
		}
		if s, ok := verbs[stem+form.instead]; ok {
			return stem + form.instead, s, true
		}
		if n := len(stem); form.end != "s" && n > 3 && stem[n-1] == stem[n-2] { // for example stopped and stopping
			if s, ok := verbs[stem[:n-1]]; ok {
				return stem[:n-1], s, true
			}
		}
	}
	return "", sense{}, false
}

// verbOfNoun returns the verb for a noun that is derived from it, for example "delete" for "deletion".
func verbOfNoun(noun string) (base string, s sense, ok bool) {
	stem, is := strings.CutSuffix(strings.TrimSuffix(noun, "s"), "ion")
	if !is {
		return verbOf(noun)
	}
	for _, end := range [...]string{"", "e"} {
		if s, ok := verbs[stem+end]; ok {
			return stem + end, s, true
		}
	}
	return "", sense{}, false
}

// singular returns the singular of a noun, or the noun itself if it has no plural ending.
func singular(noun string) string {
	switch {
	case strings.HasSuffix(noun, "ies") && len(noun) > 4:
		return noun[:len(noun)-3] + "y"
	case strings.HasSuffix(noun, "ss"), strings.HasSuffix(noun, "us"), strings.HasSuffix(noun, "is"):
		return noun
	case strings.HasSuffix(noun, "xes"), strings.HasSuffix(noun, "ches"), strings.HasSuffix(noun, "shes"), strings.HasSuffix(noun, "sses"):
		return noun[:len(noun)-2]
	default:
		return strings.TrimSuffix(noun, "s")
	}
}
