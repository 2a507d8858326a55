package classify

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// endings contains the verb endings for each mark in [translations]. It does not contain endings of participles
// ("eliminado", "gelöscht"), because participles describe things.
var endings = map[byte][]string{
	'a': {"a", "ar", "are", "e", "en", "an", "ando", "acion", "acao", "azione", "ion", "i", "ir", "er", "ere", "ire"},
	'f': {"e", "er", "ez", "ent", "ant", "ation", "s", "t", "re"},
	'd': {"t", "et", "en", "e", "n", "ung", "st"},
}

// A foreignVerb is a verb in another language.
type foreignVerb struct{ form, english string }

type foreignVerbs struct {
	// latin maps verb forms in Latin letters to English verbs.
	latin map[string]string
	// split contains the verbs that consist of two parts, by their first part.
	split map[string][]foreignVerb
	// stems contains the beginnings of words in Cyrillic letters. ideograms contains verbs in languages that are written
	// without spaces. Both are sorted by descending length.
	stems, ideograms []foreignVerb
}

// foreignForms returns the verbs in all translations. They are computed on the first call, because only some processes
// classify tools.
var foreignForms = sync.OnceValue(func() *foreignVerbs {
	all := &foreignVerbs{latin: make(map[string]string), split: make(map[string][]foreignVerb)}
	mildest := func(a, b string) int { // if two verbs share a form, the stricter verb is added last and replaces the other
		return cmp.Or(cmp.Compare(verbs[a].category, verbs[b].category), cmp.Compare(a, b))
	}
	for _, english := range slices.SortedFunc(maps.Keys(translations), mildest) {
		if verbs[english] == (sense{}) {
			panic("classify: the verb " + english + " is translated and not known")
		}
		for word := range strings.FieldsSeq(translations[english]) {
			all.add(english, word)
		}
	}
	longest := func(a, b foreignVerb) int {
		return cmp.Or(cmp.Compare(len(b.form), len(a.form)), cmp.Compare(verbs[b.english].category, verbs[a.english].category), cmp.Compare(a.form, b.form))
	}
	slices.SortFunc(all.stems, longest)
	slices.SortFunc(all.ideograms, longest)
	return all
})

// add adds all verb forms for a word in [translations].
func (f *foreignVerbs) add(english, word string) {
	first, rest, split := strings.Cut(word, "/")
	switch s := scriptOf([]rune(word)[0]); {
	case s == cyrillic && !split:
		f.stems = append(f.stems, foreignVerb{first, english})
	case s == eastAsian:
		f.ideograms = append(f.ideograms, foreignVerb{word, english})
	case split && len(rest) == 1 && endings[rest[0]] != nil:
		for _, end := range endings[rest[0]] {
			f.latin[first+end] = english
		}
	case split:
		f.split[first] = append(f.split[first], foreignVerb{rest, english})
	default:
		f.latin[word] = english
	}
}

// plain returns a word without diacritics.
func plain(word string) string {
	for i := range len(word) {
		if word[i] >= 0x80 {
			return strings.Map(func(r rune) rune {
				switch {
				case unicode.Is(unicode.Mn, r):
					return -1
				case r == 'ß':
					return 's'
				case r == 'ı': // the Turkish i without a dot
					return 'i'
				}
				return r
			}, norm.NFD.String(word))
		}
	}
	return word
}

// participles contains the endings of Russian participles, which describe things and not actions.
var participles = []string{"енный", "енных", "енные", "ённый", "ённых", "ённые", "анный", "анных", "анные", "енное", "енной", "ённой"}

// translateWord returns the English verb for a word in another language. It returns false if the word is not a known
// verb.
func translateWord(word string) (string, bool) {
	r := []rune(word)
	if len(r) == 0 {
		return "", false
	}
	switch scriptOf(r[0]) { //nolint:exhaustive // no verbs in other scripts are known
	case latin:
		if english, ok := foreignForms().latin[norm.NFC.String(word)]; ok {
			return english, ok
		}
		english, ok := foreignForms().latin[plain(word)]
		return english, ok
	case cyrillic:
		if slices.ContainsFunc(participles, func(end string) bool { return strings.HasSuffix(word, end) }) {
			return "", false
		}
		for _, stem := range foreignForms().stems {
			if strings.HasPrefix(word, stem.form) {
				return stem.english, true
			}
		}
	}
	return "", false
}

// englishWords contains words that are common in English texts and rare in other languages.
var englishWords = set("the of and to with for from this is are or your by if it")

// isEnglish reports whether the beginning of the description is in English. If it is, the description is not searched
// for verbs in other languages.
func (c *finding) isEnglish() bool {
	for i, w := range c.text[:min(len(c.text), maxEnglish)] {
		if englishWords[w.text] && !inIdentifier(c.text, i) {
			return true
		}
	}
	return false
}

// inIdentifier reports whether the word at index i is part of an identifier, like "is" in "is_group".
func inIdentifier(words []word, i int) bool {
	return i > 0 && words[i].after == "_" || i+1 < len(words) && words[i+1].after == "_"
}

// maxEnglish limits the number of words in a description that are checked for English words.
const maxEnglish = 40

// isUnknownLanguage reports whether no verbs are known for the description's language. It assumes this if the
// description is mostly in a script without known verbs. It also assumes this for a text of at least four words in
// Latin letters without any frequent English word.
func (c *finding) isUnknownLanguage() bool {
	var letters [scripts]int
	count(&letters, c.tool.Description)
	known := letters[latin] + letters[cyrillic] + letters[eastAsian]
	mostlyLatin := letters[latin] > letters[cyrillic]+letters[eastAsian]
	return letters[anyOther]+letters[greek] > known || len(c.text) >= 4 && mostlyLatin && !containsNear(c.text, len(c.text), frequentEnglishWords)
}

// frequentEnglishWords contains words that are very frequent in English. An English text of four or more words is
// assumed to contain one of them.
var frequentEnglishWords = set(`the of and to with for from this is are or your by if it a an in on at as be not all no you can will that when which use its
	using into via per only new more id`)

// translatedName returns the verb in the tool's name if the name is in another language, or nil if it contains no such
// verb. If the first word of the name is not a verb, translatedName returns the last verb.
func (c *finding) translatedName() []weightedVerb {
	var found []weightedVerb
	speaksEnglish := c.isEnglish()
	for i, w := range c.name {
		english, ok := "", false
		if !speaksEnglish {
			english, ok = translateWord(w.text)
		}
		if !ok {
			if inside := inIdeograms(w.raw[:min(len(w.raw), maxSentence)]); len(inside) > 0 {
				english, ok = inside[0].base, true
			}
		}
		if !ok {
			continue
		}
		one := weightedVerb{foundVerb{word: w, base: english, sense: verbs[english]}, weightMiddle}
		if i == 0 || i == len(c.name)-1 {
			one.weight = weightName
		}
		if i == 0 {
			return []weightedVerb{one}
		}
		found = append(found, one)
	}
	return found[max(0, len(found)-1):]
}

// translatedText returns the verbs at the beginning of a description in another language. The first element is the
// leading verb.
func (c *finding) translatedText() []weightedVerb {
	if found := c.inSentence(); len(found) > 0 {
		return found
	}
	if c.isEnglish() {
		return nil
	}
	sentence := c.sentence()
	lead := -1
	var out []weightedVerb
	for i, w := range sentence {
		english, ok := c.meaning(sentence, i)
		if !ok {
			continue
		}
		one := weightedVerb{foundVerb{word: w, base: english, sense: verbs[english]}, weightText}
		switch {
		case moneyNouns[plain(w.text)] && lead >= 0 && i <= lead+2 && out[0].category != read: // the verb already stands for the payment, as in "Crea un pago"
		case lead < 0 && one.category == read && i > 0 && isObject(sentence, i):
			continue
		case lead < 0 && i < maxLead, lead < 0 && i == len(sentence)-1:
			lead = i
		case lead < 0 || one.category <= out[0].category || !followsConjunction(sentence, i):
			continue
		case one.category >= destructive:
			one.weight = weightMiddle
		case i > lead+3:
			one.weight = weightAlso
		}
		out = append(out, one)
	}
	return out
}

// followsConjunction reports whether the word before the word at index i is a conjunction. It does not treat the "e" in
// "un(e) facture" as a conjunction.
func followsConjunction(sentence []word, i int) bool {
	return conjunctions[sentence[i-1].text] && strings.TrimSpace(sentence[i-1].after+sentence[i].after) == ""
}

// isObject reports whether a word that looks like a verb is probably a noun. After an article or a conjunction, it is
// probably the object of an unknown verb, as "cuenta" in "Congela una cuenta".
func isObject(sentence []word, i int) bool {
	before := plain(sentence[i-1].text)
	return foreignArticles[before] || conjunctions[before] || verbsAndNouns[plain(sentence[i].text)]
}

// foreignArticles contains articles and possessive determiners in other languages.
var foreignArticles = set(`un una uno unos unas el la los las le les une des du de um uma os as il lo gli ein eine einen einem einer eines der die das den dem
	su sus tu mi seu sua son sa ses votre ihr ihre sein seine`)

// verbsAndNouns contains words such as those for "account" and "list". At the beginning of a description, they are
// verbs of the category Read. Elsewhere, they are nouns.
var verbsAndNouns = set("cuenta conta compte lista liste consulta busca ricerca recherche suche")

// maxLead is the number of words at the beginning of a description in another language that are searched for the
// leading verb. The verb need not be the first word, as in "Esta herramienta permite".
const maxLead = 6

var conjunctions = set("y e o u et ou und oder ed и или")

// meaning returns the English verb for the word at index i of a sentence. It also finds German and French verbs whose
// second part is later in the sentence.
func (c *finding) meaning(sentence []word, i int) (string, bool) {
	rest := sentence[i+1:]
	for _, verb := range foreignForms().split[plain(sentence[i].text)] {
		if slices.ContainsFunc(rest, func(w word) bool { return plain(w.text) == verb.form }) {
			return verb.english, true
		}
	}
	if moneyNouns[plain(sentence[i].text)] {
		return "remit", true
	}
	return translateWord(sentence[i].text)
}

// moneyNouns contains words for payments and refunds in Spanish, Portuguese, Italian, French and German.
var moneyNouns = set(`reembolso reembolsos rimborso rimborsi remboursement remboursements pago pagos pagamento pagamentos pagamenti paiement paiements
	zahlung zahlungen ruckzahlung ruckerstattung rueckerstattung erstattung uberweisung ueberweisung transferencia transferencias transferencia
	bonifico virement virements`)

// inSentence returns the verbs in the first sentence of a description in Chinese, Japanese or Korean. The first element
// is the leading verb, which is the first verb in Chinese and the last verb in Japanese and Korean.
func (c *finding) inSentence() []weightedVerb {
	text := c.tool.Description[:min(len(c.tool.Description), maxSentence)]
	if end := strings.IndexAny(text, "。\n"); end >= 0 && strings.ContainsFunc(text[:end], func(r rune) bool { return scriptOf(r) == eastAsian }) {
		text = text[:end]
	}
	if end := strings.Index(text, ". "); end >= 0 && strings.ContainsFunc(text[:end], func(r rune) bool { return unicode.Is(unicode.Hangul, r) }) {
		text = text[:end]
	}
	found := inIdeograms(text)
	if len(found) == 0 {
		return nil
	}
	lead := 0
	if strings.ContainsFunc(text, func(r rune) bool { return unicode.In(r, unicode.Hiragana, unicode.Hangul) }) {
		lead = len(found) - 1
	}
	out := []weightedVerb{{found[lead], weightText}}
	for i, one := range found {
		if i == lead || one.category <= out[0].category {
			continue
		}
		before, after := max(0, i-1), i
		if i < lead {
			before, after = i, i+1
		}
		switch between := text[found[before].offset+len(found[before].raw) : found[after].offset]; {
		case (before == lead || after == lead) && len(between) <= maxObject && out[0].category != read: // a verb and its object, as in "makes a refund"
			out = append(out, weightedVerb{one, weightText})
		case joinsIdeograms(between) && one.category >= destructive:
			out = append(out, weightedVerb{one, weightMiddle})
		case joinsIdeograms(between):
			out = append(out, weightedVerb{one, weightAlso})
		}
	}
	return out
}

// maxObject is the maximum distance in bytes between a verb and its object. This is the length of two ideograms.
const maxObject = 6

// maxSentence limits how many bytes of a description are searched for verbs in languages that are written without
// spaces.
const maxSentence = 1200

// joinsIdeograms reports whether the text between two verbs is short and contains a conjunction.
func joinsIdeograms(between string) bool {
	return len(between) <= 24 && (strings.ContainsAny(between, "和或并、/及與且") || strings.Contains(between, "または") || strings.Contains(between, "하거나") ||
		strings.Contains(between, "또는") || strings.Contains(between, "하고"))
}

// inIdeograms returns the verbs in a text in a language that is written without spaces, in the order of the text.
func inIdeograms(text string) []foundVerb {
	var out []foundVerb
	forms := foreignForms().ideograms
	for at := 0; at < len(text); {
		if text[at] < utf8.RuneSelf {
			at++
			continue
		}
		i := slices.IndexFunc(forms, func(f foreignVerb) bool { return strings.HasPrefix(text[at:], f.form) })
		if i < 0 {
			at = nextRune(text, at)
			continue
		}
		f := forms[i]
		at += len(f.form)
		if hasAnyPrefix(text[at:], "的", "された", "済み", "した", "された", "된", "한 ", "者", "人") {
			continue // the form is a participle, which describes a thing
		}
		out = append(out, foundVerb{word: word{text: f.form, raw: f.form, offset: at - len(f.form)}, base: f.english, sense: verbs[f.english]})
	}
	return out
}

func nextRune(text string, at int) int {
	_, size := utf8.DecodeRuneInString(text[at:])
	return at + size
}

func hasAnyPrefix(text string, any ...string) bool {
	return slices.ContainsFunc(any, func(begin string) bool { return strings.HasPrefix(text, begin) })
}
