package classify

import (
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// These constants are the weights of verbs in the clauses after the first one.
const (
	weightClause = 0.4
	weightAside  = 0.45
)

// byLaterClauses adds evidence from the clauses after the first one. They can say that the tool does more than its
// leading verb says, as in "Select an address. Sets the address of the cart."
func (c *finding) byLaterClauses() {
	lead := c.leadCategory()
	if e := c.laterVerb(lead); e != nil {
		c.add(e)
	}
	if lead != read {
		return
	}
	if e := c.aside(); e != nil {
		c.add(e)
	}
	if e := c.foreignAside(); e != nil {
		c.add(e)
	}
}

// laterVerb finds a later clause that begins with a verb in the third person, because such a clause describes an action
// of the tool. It returns the verb as evidence if its category is stricter than that of the leading verb. Otherwise it
// returns nil.
func (c *finding) laterVerb(lead mcpv1.Category) *policyv1.Evidence {
	if lead == unknown {
		return nil
	}
	weight := weightClause
	if c.leadIsWeak() {
		weight = weightName
	}
	for i, w := range c.text {
		if i == 0 || !w.first && !strings.Contains(w.after, ":") || !strings.HasSuffix(w.text, "s") {
			continue
		}
		base, s, ok := verbOf(w.text)
		if !ok || s.weak || w.text == base || s.category <= lead || inIdentifier(c.text, i) || i+1 >= len(c.text) || !determiners[c.text[i+1].text] {
			continue
		}
		return &policyv1.Evidence{
			Path: "/description", Offset: int32(w.offset), Quote: w.raw, Category: s.category, Weight: weight, Meaning: "a later clause says that it will " + base,
		}
	}
	return nil
}

// leadIsWeak reports whether all leading verbs of the name and the description are weak or absent.
func (c *finding) leadIsWeak() bool {
	return !slices.ContainsFunc([]*foundVerb{c.inName, c.inText}, func(s *foundVerb) bool { return s != nil && !s.weak })
}

// asides matches clauses that say that a tool does more than read.
var asides = []struct {
	clause   func(string) []int
	category mcpv1.Category
}{
	{matcher(`deletes |erases |purges |wipes |removes |overwrites |destroys |truncates `, `\b(?:it|this|tool|also|then|and|afterwards?)\s+(?:also\s+|then\s+|permanently\s+)*((?:delet|eras|purg|wip|remov|overwrit|destroy|truncat)e?s)\s+(?:the|all|any|every|each|old|other|files?|records?|data|them|it|messages?)\b`), destructive},
	{matcher(`after|then`, `\b(?:afterwards?|then|after that)\b[^.]{0,60}\b(?:is|are|be)\s+(?:permanently\s+)?(deleted|erased|purged|wiped|destroyed|removed)\b`), destructive},
	{matcher(`pays |buys |purchases |sells |transfers `, `\b(?:it|this|tool|also|then|and|afterwards?)\s+(?:also\s+|then\s+)*(pays|buys|purchases|sells|transfers)\s+(?:it|them|the|all|a|an|for)\b`), financial},
	{matcher(`automatically`, `\b(paid automatically|automatically pays|pays automatically)\b`), financial},
	{matcher(`be undone|irreversible`, `\b(cannot be undone|can't be undone|irreversible)\b`), destructive},
}

// matcher returns a function that searches a text for a regular expression. The function returns the offsets of the
// matched group, or nil. The triggers are separated by |. Every matching text contains at least one trigger, so texts
// without triggers are not searched.
func matcher(triggers, expression string) func(string) []int {
	form := compiled("(?i)" + expression)
	any := strings.Split(triggers, "|")
	return func(text string) []int {
		if lower := strings.ToLower(text); !slices.ContainsFunc(any, func(trigger string) bool { return strings.Contains(lower, trigger) }) {
			return nil
		}
		found := form().FindStringSubmatchIndex(text)
		for i := 2; i < len(found); i += 2 {
			if found[i] >= 0 {
				return found[i : i+2]
			}
		}
		return nil
	}
}

// aside returns evidence for the first expression in [asides] that matches the description, or nil.
func (c *finding) aside() *policyv1.Evidence {
	text := c.tool.Description[:min(len(c.tool.Description), maxAside)]
	for _, one := range asides {
		at := one.clause(text)
		if at == nil || c.isNegated(at[0]) {
			continue
		}
		return &policyv1.Evidence{
			Path: "/description", Offset: int32(at[0]), Quote: c.tool.Description[at[0]:at[1]], Category: one.category, Weight: weightAside,
			Meaning: "a later clause says that it does more than read",
		}
	}
	return nil
}

// maxAside is the number of bytes of a description that are searched for clauses.
const maxAside = 4 << 10

// sequels contains words in other languages that mean "then" or "afterwards".
var sequels = []string{
	"luego ", "despues ", "después ", "a continuación ", "depois ", "em seguida ", "ensuite ", "puis ", "danach ", "anschließend ", "dann ", "poi ", "затем ", "потом ",
	"然后", "随后", "接着", "然後", "その後", "続いて", "그 후", "그런 다음",
}

// foreignAside returns evidence from a clause in another language, or nil. The clause must begin with a word in
// [sequels], and say that the tool removes something or moves money.
func (c *finding) foreignAside() *policyv1.Evidence {
	text := c.tool.Description[:min(len(c.tool.Description), maxSentence)]
	for _, sequel := range sequels {
		at := strings.Index(text, sequel)
		if at < 0 || c.isEnglish() {
			continue
		}
		from := at + len(sequel)
		clause := text[from:]
		if end := strings.IndexAny(clause, ".。\n;；"); end >= 0 {
			clause = clause[:end]
		}
		if verb, ok := strictest(clause); ok && verb.category >= destructive {
			return &policyv1.Evidence{
				Path: "/description", Offset: int32(from + verb.offset), Quote: verb.raw, Category: verb.category, Weight: weightAside,
				Meaning: "a later clause says that it will " + verb.base,
			}
		}
	}
	return nil
}

// strictest returns the verb with the strictest category in a clause. It considers only verbs in other languages.
func strictest(clause string) (best foundVerb, ok bool) {
	found := inIdeograms(clause)
	for _, w := range textWords(clause) {
		if english, known := translateWord(w.text); known {
			found = append(found, foundVerb{word: w, base: english, sense: verbs[english]})
		}
	}
	for _, one := range found {
		if !ok || one.category > best.category {
			best, ok = one, true
		}
	}
	return best, ok
}
