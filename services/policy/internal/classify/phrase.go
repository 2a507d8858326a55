package classify

import (
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// phrase is a sequence of words that is evidence for a category.
type phrase struct {
	text     string
	category mcpv1.Category
	weight   float64
	meaning  string
	// of contains categories. The phrase counts only if the leading verb has one of these categories.
	of []mcpv1.Category
}

// phrases are searched for in a tool's whole description. Negated phrases, as in "does not overwrite", do not count.
var phrases = []phrase{
	{"cannot be undone", destructive, 0.75, "what it does can't be taken back", changes},
	{"can't be undone", destructive, 0.75, "what it does can't be taken back", changes},
	{"can not be undone", destructive, 0.75, "what it does can't be taken back", changes},
	{"not be reversed", destructive, 0.75, "what it does can't be taken back", changes},
	{"cannot be reversed", destructive, 0.75, "what it does can't be taken back", changes},
	{"irreversible", destructive, 0.75, "what it does can't be taken back", changes},
	{"irreversibly", destructive, 0.75, "what it does can't be taken back", changes},
	{"permanently", destructive, 0.75, "what it does is permanent", changes},
	{"unrecoverable", destructive, 0.75, "what is lost can't be recovered", changes},
	{"data loss", destructive, 0.6, "it can lose data", updates},
	{"destructive", destructive, 0.6, "it is called destructive", updates},
	{"cannot be recovered", destructive, 0.75, "what it does can't be taken back", changes},
	{"cannot be restored", destructive, 0.75, "what it does can't be taken back", changes},
	{"will be lost", destructive, 0.6, "it can lose data", updates},
	{"overwritten", destructive, 0.6, "it replaces what was there", updates},
	{"overwrite", destructive, 0.6, "it replaces what was there", updates},
	{"overwrites", destructive, 0.6, "it replaces what was there", updates},
	{"overwriting", destructive, 0.6, "it replaces what was there", updates},
	{"existing file will be replaced", destructive, 0.6, "it replaces what was there", updates},
	{"real trades", financial, 0.8, "it trades with real money", changes},
	{"real money", financial, 0.8, "it trades with real money", changes},
	{"real funds", financial, 0.8, "it trades with real money", changes},
	{"refunds money", financial, 0.7, "it gives money back", changes},
	{"arbitrary code", execute, 0.7, "it runs code that the caller writes", all},
	{"arbitrary javascript", execute, 0.7, "it runs code that the caller writes", all},
	{"shell command", execute, 0.6, "it runs a command", writes},
	{"terminal command", execute, 0.6, "it runs a command", writes},
}

var (
	all     = []mcpv1.Category{unknown, read, write, execute, destructive, financial}
	writes  = []mcpv1.Category{unknown, write, execute}
	updates = []mcpv1.Category{unknown, write, destructive, financial}
	changes = []mcpv1.Category{unknown, write, execute, destructive, financial}
)

// negations contains words that negate the next four words.
var negations = set("not no never non without won't doesn't don't cannot can't isn't avoid avoids prevent prevents unless instead rather refuse refuses refused fails reject")

// byPhrases adds evidence from phrases in the description.
func (c *finding) byPhrases() {
	lower := lowered(c.tool.Description)
	lead := c.leadCategory()
	seen := make(map[string]bool)
	for _, p := range phrases {
		at, ok := c.findPhrase(lower, p.text)
		if !ok || seen[p.meaning] || !slices.Contains(p.of, lead) {
			continue
		}
		seen[p.meaning] = true
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(at), Quote: c.tool.Description[at : at+len(p.text)], Category: p.category, Weight: p.weight, Meaning: p.meaning,
		})
	}
}

// byRetractions reduces the weight of evidence that the description contradicts, for example with "can be restored". It
// must be called after all evidence except annotations has been added.
func (c *finding) byRetractions() {
	lower := lowered(c.tool.Description)
	c.reversible(lower, c.leadCategory())
	c.readsInOtherLanguages()
	c.onlyReads(lower, c.leadCategory())
}

// findPhrase returns the offset of the first occurrence of a phrase in lower, which is the description in lower case.
// Occurrences that are negated or part of a longer word do not count. findPhrase returns false if no occurrence counts.
func (c *finding) findPhrase(lower, text string) (int, bool) {
	for from := 0; ; {
		i := strings.Index(lower[from:], text)
		if i < 0 {
			return 0, false
		}
		at := from + i
		from = at + len(text)
		if at > 0 && isLetter(lower[at-1]) || from < len(lower) && isLetter(lower[from]) || !strings.HasPrefix(text, "can") && !strings.HasPrefix(text, "not ") && c.isNegated(at) {
			continue
		}
		if strings.HasPrefix(text, "irreversib") && (strings.HasSuffix(lower[:at], "may be ") || strings.HasSuffix(lower[:at], "might be ")) {
			continue // some servers use this phrase in every description
		}
		return at, true
	}
}

// lowered converts the ASCII letters in a text to lower case. Converting other letters could change their length in
// bytes.
func lowered(text string) string {
	out := []byte(text)
	for i, b := range out {
		if 'A' <= b && b <= 'Z' {
			out[i] = b + 'a' - 'A'
		}
	}
	return string(out)
}

func isLetter(b byte) bool { return 'a' <= b && b <= 'z' || b >= 0x80 }

// isNegated reports whether one of the four words before an offset in the description is in [negations].
func (c *finding) isNegated(at int) bool {
	for i, w := range slices.Backward(c.text) {
		if w.offset >= at {
			continue
		}
		for j := i; j >= max(0, i-3); j-- {
			if negations[c.text[j].text] || strings.HasPrefix(c.text[j].text, "non-") {
				return true
			}
			if c.text[j].first {
				break
			}
		}
		return strings.HasSuffix(strings.TrimRight(c.tool.Description[:at], " "), "non-")
	}
	return strings.HasSuffix(c.tool.Description[:at], "non-")
}

// reduceWeights reduces the weight of the evidence for each category for which the function which returns true. It is
// called if stronger evidence contradicts the evidence for these categories.
func (c *finding) reduceWeights(which func(of mcpv1.Category) bool) {
	for _, e := range c.evidence {
		if which(e.GetCategory()) {
			e.Weight /= 5
		}
	}
}

// restorePhrases contains phrases that say that removed things can be restored.
var restorePhrases = []string{
	"to trash", "to the trash", "into the trash", "to the recycle bin", "to recycle bin", "soft delete", "soft-delete", "soft deletes", "soft-deletes",
	"can be restored", "can be recovered", "can be undone", "in trash",
}

// reversible checks whether the description says that removed things can be restored. If so, it replaces evidence for
// Destructive with evidence for Write.
func (c *finding) reversible(lower string, lead mcpv1.Category) {
	if _, removed := c.findPhrase(lower, "permanently"); lead != destructive || removed {
		return
	}
	for _, text := range restorePhrases {
		at, ok := c.findPhrase(lower, text)
		if !ok {
			continue
		}
		c.reduceWeights(func(of mcpv1.Category) bool { return of == destructive })
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(at), Quote: c.tool.Description[at : at+len(text)], Category: write, Weight: 0.7,
			Meaning: "what it removes can be brought back",
		})
		return
	}
}

// readOnlyPhrases contains phrases that say that a query changes nothing.
var readOnlyPhrases = []string{"read-only", "read only", "readonly", "select queries", "select query", "select statements"}

// readOnlyLanguages contains query languages in which queries can't change anything.
var readOnlyLanguages = set("soql sosl promql logql jql nrql")

// onlyReads replaces evidence for Execute with evidence for Read. It does so if the tool has a parameter for a query,
// and the description says that queries can't change anything.
func (c *finding) onlyReads(lower string, lead mcpv1.Category) {
	if lead != execute && lead != read && lead != unknown {
		return
	}
	if slices.ContainsFunc(c.text, func(w word) bool { return changeWords[w.text] && !c.isNegated(w.offset) }) {
		return // the description also mentions queries that change something
	}
	hasQuery := false
	for _, p := range c.tool.Parameters {
		hasQuery = hasQuery || queryWords[strings.ToLower(p.Name)]
	}
	found := readOnlyPhrases
	if c.inText != nil {
		behind := c.wordsAfter(c.inText)
		if i := slices.IndexFunc(behind[:min(len(behind), 2)], func(w word) bool { return readOnlyLanguages[w.text] }); i >= 0 {
			found = append(slices.Clip(found), behind[i].text)
		}
	}
	for _, text := range found {
		at, ok := c.findPhrase(lower, text)
		if !ok || !hasQuery {
			continue
		}
		c.reduceWeights(func(of mcpv1.Category) bool { return of == execute })
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(at), Quote: c.tool.Description[at : at+len(text)], Category: read, Weight: 0.8,
			Meaning: "it says that its queries can't change anything",
		})
		return
	}
}

// readOnlyForeign matches words for "read-only" in other languages.
var readOnlyForeign = matcher(`只读|唯讀|専用|전용|lectura|leitura|lettura|lecture|чтени|schreibgeschützt|lesend`, `(只读|唯讀|読み取り専用|読取専用|읽기 전용|s[oó]lo lectura|(?:somente|apenas) leitura|sola lettura|lecture seule|только для чтения|только чтение|schreibgeschützt|nur lesend)`)

// readsInOtherLanguages adds evidence for Read if the name says that the tool reads, and the description says in
// another language that the tool only reads. It also reduces the weight of evidence for Write and Execute from the
// description or from a parameter for a query.
func (c *finding) readsInOtherLanguages() {
	if c.inName == nil || c.inName.weak || c.inName.category != read || c.isEnglish() {
		return
	}
	at := readOnlyForeign(c.tool.Description[:min(len(c.tool.Description), maxSentence)])
	if at == nil {
		return
	}
	for _, e := range c.evidence {
		query := strings.HasPrefix(e.GetPath(), rootPath) && queryParameters[strings.ToLower(e.GetQuote())]
		if (e.GetPath() == "/description" || query) && (e.GetCategory() == write || e.GetCategory() == execute) {
			e.Weight /= 5
		}
	}
	c.add(&policyv1.Evidence{
		Path: "/description", Offset: int32(at[0]), Quote: c.tool.Description[at[0]:at[1]], Category: read, Weight: 0.5, Meaning: "it says that it only reads",
	})
}

// queryParameters contains the names of parameters for queries in languages that can read and change things.
var queryParameters = set("sql query statement q")

// changeWords contains words for queries that change something.
var changeWords = set("insert inserts update updates delete deletes modify modifies ddl alter")

var queryWords = set("sql query statement aggregation pipeline q expression")
