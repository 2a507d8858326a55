package classify

import (
	"fmt"
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// These constants are the weights of verbs at different positions. A single verb does not give enough confidence, but
// two verbs of the same category do.
const (
	weightName   = 0.6
	weightMiddle = 0.5
	weightText   = 0.65
	weightWeak   = 0.35
	weightAlso   = 0.35
)

// byVerbs adds evidence from the verbs in the tool's name and description.
func (c *finding) byVerbs() {
	name := c.verbsOfName()
	if len(name) == 0 {
		name = c.translatedName()
	}
	text := c.verbsOfText()
	if len(text) == 0 {
		text = c.translatedText()
	}
	if len(name) == 1 && len(text) == 1 && !text[0].weak && text[0].category == read && (name[0].category == write || name[0].category == execute) && !c.namesProgram() {
		name[0].weight /= 2 // the verb in the description is better evidence than a word in the name
	}
	if len(name) == 1 && len(text) == 1 {
		switch { // for example, a log that is viewed, or trades that are fetched
		case name[0].weak && !text[0].weak && text[0].category == read:
			name[0].weight /= 2
		case text[0].weak && !name[0].weak && name[0].category == read && text[0].text != text[0].base:
			text[0].weight /= 2
		}
	}
	if len(name) == 2 && len(text) == 1 && !text[0].weak && text[0].category == read { // for example, the status of a deployment
		name[0].weight /= 2
	}
	if len(name) == 1 && len(text) > 0 && name[0].base == text[0].base {
		if name[0].category != financial {
			name[0].sense = text[0].sense // the words after the verb show its sense only in the description
		}
	}
	for _, s := range name {
		c.addVerb("/name", "name", s)
	}
	if len(name) > 0 {
		c.inName = &name[0].foundVerb
	}
	for _, s := range text {
		c.addVerb("/description", "description", s)
	}
	if len(text) > 0 {
		c.inText = &text[0].foundVerb
	}
	if len(text) == 0 && len(name) > 0 && c.isUnknownLanguage() {
		first := c.text[0]
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(first.offset), Quote: first.raw, Category: execute, Weight: weightWeak,
			Meaning: "it is described in an unknown language",
		})
	}
	if len(name)+len(text) == 0 && len(c.text) > 0 {
		c.byUnknownVerb()
	}
}

// byUnknownVerb adds evidence for Execute. It is called if no known verb describes the tool's action.
func (c *finding) byUnknownVerb() {
	first, meaning := c.text[0], "no known verb says what it does"
	if len(c.text) > 1 && determiners[c.text[1].text] && !openerWords[first.text] {
		meaning = "it does something to an object, and the verb is not known"
	}
	c.add(&policyv1.Evidence{
		Path: "/description", Offset: int32(first.offset), Quote: first.raw, Category: execute, Weight: weightWeak, Meaning: meaning,
	})
}

var determiners = set("a an the all your this that these one each every any some its up off out on down back over away")

// weightedVerb is a verb with its weight as evidence.
type weightedVerb struct {
	foundVerb

	weight float64
}

// addVerb adds a verb as evidence. path is the location of the verb in the definition. what is the name of this
// location in explanations, for example "name".
func (c *finding) addVerb(path, what string, s weightedVerb) {
	meaning := fmt.Sprintf("the %s says that it will %s", what, s.base)
	if questionVerbs[s.base] {
		meaning = fmt.Sprintf("the %s asks whether something is true", what)
	}
	c.add(&policyv1.Evidence{Path: path, Offset: int32(s.offset), Quote: s.raw, Category: s.category, Weight: s.weight, Meaning: meaning})
}

// questionVerbs contains verbs that turn a name into a question, as in is_stopped.
var questionVerbs = set("is has can")

// stateNouns contains nouns that show that a tool reads if they are at the end of its name, for example in
// deploy_status. After a verb that changes something, such a noun can also be the changed thing, as in set_status.
var stateNouns = set("status info list search count stats health history metrics logs report")

// verbsOfName returns the relevant verbs in the name, most important first. The most important verb is usually the
// first word of a name (delete_file) or the last one (file_delete).
func (c *finding) verbsOfName() []weightedVerb {
	var found []weightedVerb
	last := len(c.name) - 1
	for i, w := range c.name {
		s, ok := verbs[w.text]
		if !ok || i == 0 && last > 1 && c.name[1].text == "get" { // in "trash_get_naming", trash is the tool's object
			continue
		}
		verb := foundVerb{word: w, base: w.text, sense: inContext(w.text, s, slices.Concat(c.name[i+1:], c.name[:i]))}
		weight := weightMiddle
		switch {
		case verb.weak:
			weight = weightWeak
		case i == 0, i == last:
			weight = weightName
		}
		found = append(found, weightedVerb{verb, weight})
	}
	if len(found) == 0 {
		return nil
	}
	first, end := found[0], found[len(found)-1]
	if first.offset == c.name[0].offset && !first.weak && end.offset != first.offset && stateNouns[end.text] && first.category != end.category {
		first.weight, end.weight = 0.45, 0.45
		return []weightedVerb{first, end}
	}
	if joined := c.joined(found); len(joined) > 1 {
		return joined
	}
	best := found[0]
	for _, one := range found[1:] {
		thing := possibleMovements[one.text] && best.weak && best.offset+len(best.raw)+1 == one.offset // in "place_order", order is not a verb
		if !thing && c.countsMore(one, best) {
			best = one
		}
	}
	return []weightedVerb{best}
}

// countsMore reports whether verb a in a name is more important than verb b.
func (c *finding) countsMore(a, b weightedVerb) bool {
	rank := func(w weightedVerb) int {
		switch w.offset {
		case c.name[0].offset:
			return 2
		case c.name[len(c.name)-1].offset:
			return 1
		default:
			return 0
		}
	}
	isNoun := func(w weightedVerb) bool { return runNouns[w.text] && rank(w) == 0 }
	switch {
	case isNoun(a) != isNoun(b):
		return isNoun(b)
	case a.weak != b.weak:
		return b.weak
	default:
		return rank(a) > rank(b)
	}
}

// runNouns contains words that are usually verbs, but that are nouns in the middle of a name, as in test_run_complete.
var runNouns = set("run build process call")

// namesProgram reports whether the name says that the tool runs a program, as in run_shell.
func (c *finding) namesProgram() bool {
	return len(c.name) > 1 && runVerbs[c.name[0].text] && programNouns[c.name[1].text]
}

var (
	runVerbs     = set("run execute exec eval invoke")
	programNouns = set("shell bash command commands script code sql program python javascript powershell")
)

// joined returns the verbs next to a conjunction in a name, as in search_and_replace and find_one_and_delete. It
// returns nil if no conjunction joins verbs.
func (c *finding) joined(found []weightedVerb) []weightedVerb {
	for _, w := range c.name {
		if w.text != "and" && w.text != "or" {
			continue
		}
		var out []weightedVerb
		for _, one := range found { // these are in the order of the name
			switch {
			case one.weak:
			case one.offset < w.offset:
				out = []weightedVerb{one}
			default:
				return append(out, one)
			}
		}
	}
	return nil
}

// textVerbs contains words that are usually nouns in names, and verbs at the beginning of descriptions.
var textVerbs = set("report monitor profile filter classify sample gather")

var conjunctionWords = set("and or then to by with")

// lightVerbs contains verbs whose object describes the action, as in "perform a search".
var lightVerbs = set("perform make do conduct carry execute run handle issue take process")

// verbsOfText returns the leading verb of the description, and the stricter verbs that conjunctions in the first
// sentence join to it.
func (c *finding) verbsOfText() []weightedVerb {
	words, base, s := c.begin()
	if len(words) == 0 {
		return nil
	}
	lead := weightedVerb{foundVerb{word: words[0], base: base, sense: inContext(base, s, words[1:])}, weightText}
	lead.weak = lead.weak && !textVerbs[base]
	if lightVerbs[base] {
		for i, w := range words[1:min(len(words), 5)] {
			if conjunctionWords[w.text] || strings.ContainsAny(w.after, ",:") { // another verb may follow
				break
			}
			ofThings := i+2 < len(words) && words[i+2].text == "of" // the word is a noun, as in "a list of commands"
			if done, s, ok := verbOfNoun(w.text); ok && (s.category != read || !ofThings) && !s.weak && !lightVerbs[done] && done != "query" && (s.category == read || s.category == destructive) {
				lead.foundVerb = foundVerb{word: w, base: done, sense: s}
				break
			}
		}
	}
	if lead.weak {
		lead.weight = weightWeak
	}
	out := []weightedVerb{lead}
	list := true // true while all words so far are verbs and conjunctions
	for i, w := range words[1:] {
		if i > 30 {
			break
		}
		before := words[i]
		_, _, isVerb := verbOf(w.text)
		list = list && (isVerb || conjunctionWords[w.text])
		conjunction := before.text == "and" || before.text == "or" || before.text == "then"
		if !conjunction && !strings.ContainsAny(w.after, ",/") {
			continue
		}
		base, s, ok := verbOf(w.text)
		if !ok || s.weak || !sameForm(lead.text, lead.base, w.text, base) {
			continue
		}
		s = inContext(base, s, words[i+2:])
		weight := weightAlso
		switch {
		case i < 3, list: // for example "Create or update", if both verbs are near the beginning
			weight = weightText
		case !conjunction, i+2 >= len(words), !determiners[words[i+2].text] && words[i+2].text != "it" && words[i+2].text != "them":
			continue // the word is a noun, as in "by date or commit message"
		case s.category >= destructive:
			weight = weightMiddle
		}
		if s.category > lead.category {
			out = append(out, weightedVerb{foundVerb{word: w, base: base, sense: s}, weight})
		}
	}
	return out
}

// begin returns the words of the first sentence starting at its first verb, and the base form and sense of this verb. A
// heading or words in [openerWords] can precede the verb, as in "Notes - list all notes".
func (c *finding) begin() (words []word, base string, _ sense) {
	sentence := c.sentence()
	for i, w := range sentence[:min(len(sentence), maxHeading)] {
		if i > 0 && !strings.ContainsAny(w.after, ":|]\n") && !strings.Contains(w.after, " - ") && !strings.ContainsAny(w.after, "—–") {
			continue
		}
		rest := sentence[i:]
		from := slices.IndexFunc(rest, func(w word) bool { return !openerWords[w.text] && !openerWords[strings.TrimSuffix(w.text, "s")] })
		if len(rest) > 1 && enablers[rest[0].text] && !openerWords[rest[1].text] { // "Enable monitoring", not "Enable you to"
			from = 0
		}
		if from < 0 || from > maxHeading {
			continue
		}
		if from > 0 && articles[rest[from-1].text] { // in "The set of …", set is a noun
			continue
		}
		if strings.HasSuffix(rest[from].text, "ed") && verbs[rest[from].text] == (sense{}) { // in "Deleted items", deleted describes the items
			continue
		}
		if len(rest) > from+1 && rest[from+1].text == "not" { // for example in "Do not call this directly"
			continue
		}
		if base, s, ok := verbOf(rest[from].text); ok && !inIdentifier(rest, from) {
			return rest[from:], base, s
		}
	}
	return nil, "", sense{}
}

// enablers contains words in [openerWords]. Such a word is the verb of a description unless another opener word follows
// it, as in "enables you to".
var enablers = set("enable allow enables allows")

var articles = set("the a an this your its their")

// maxHeading limits the number of words in a heading before the verb of a description. It also limits the number of
// words between the heading and the verb.
const maxHeading = 14

// sameForm reports whether both verbs are in their base form, or neither is. Verbs that a conjunction joins have the
// same form.
func sameForm(one, oneBase, other, otherBase string) bool {
	return (one == oneBase) == (other == otherBase)
}

// sentence returns the first sentence of the description, including the heading before it.
func (c *finding) sentence() []word {
	for i, w := range c.text {
		if i > 0 && w.first {
			if i < 3 { // the words so far are a heading
				continue
			}
			return c.text[:i]
		}
	}
	return c.text
}

// containsNear reports whether one of the first words in a list is in the set any. within is the number of words that
// are checked.
func containsNear(words []word, within int, any map[string]bool) bool {
	return slices.ContainsFunc(words[:min(len(words), within)], func(w word) bool { return any[w.text] || any[singular(w.text)] })
}

var (
	settled   = set("dispute request finding issue comment thread alert conflict incident ticket discussion claim case error review")
	pictures  = set("screenshot snapshot picture screen photo heap memory")
	questions = set("search report analysis scan check audit lint diagnostic lookup comparison")
	relations = set(`label tag member user users assignee reaction permission role watcher participant attendee collaborator
		relation link association follower subscriber favorite star bookmark relationship dependency contact reviewer agent item`)
	grantWords = set("tag label skill access permission member role")
	parts      = set("project task subtask story epic issue card song track contact page channel")
	marks      = set("tag label reaction assignee watcher favorite star bookmark")
	moments    = set("snapshot backup checkpoint image")
	sites      = set("live website site deploy deployment production pipeline app application")
	guides     = set("guidance guideline documentation instruction practice checklist reference overview information insight detail tutorial explanation list")
	spans      = set("session recording trace timer trajectory conversation transaction tracking profiling thread screencast video log")
	stores     = set("database db system crm account server registry storage disk filesystem inventory directory")
	dropped    = set("file files onto target drag element option dropdown checkbox coordinate dialog")
	batteries  = set("vehicle car battery ev scooter device phone robot charging")
	stages     = set("lead quote estimate opportunity draft prospect")
	terminals  = set("terminal shell console pane stdin tty pty repl")
	cells      = set("cell range column row document sheet table")
	disks      = set("disk drive card volume partition")
	keys       = set("key token credential certificate password secret")
	pages      = set("url link website page browser app application tab simulator emulator")
	sessions   = set("auth oauth authentication authorization login signin sso")
	calls      = set("stack graph tree hierarchy log history")
	spending   = set("spending spend allowance allowances")
	fromIt     = set("from")
	onScreen   = set("element option dropdown checkbox coordinate dialog")
	code       = set("javascript script expression function code js snippet")
)

// A context changes the sense of certain verbs, depending on the words after the verb. The first within words after the
// verb are checked. One of them must be in the set words. If the set unless is not nil, one of them must also be
// "from", and none of them may be in unless.
type context struct {
	verbs         map[string]bool
	within        int
	words, unless map[string]bool
	sense         sense
}

// contexts contains all contexts in the order in which they are tried. The first match applies.
var contexts = []context{
	{set("resolve"), 3, settled, nil, sense{category: write}},
	{set("take capture"), 4, pictures, nil, sense{category: read}},
	{set("run execute perform"), 3, questions, nil, sense{read, true}},
	{set("drop"), 4, dropped, nil, sense{category: execute}},
	{set("evaluate"), 4, code, nil, sense{category: execute}},
	{set("start begin"), 3, sessions, nil, sense{read, true}},
	{set("call"), 1, calls, nil, sense{read, true}},
	{set("approve"), 12, spending, nil, sense{category: financial}},
	{set("start begin stop end"), 4, spans, nil, sense{category: write}},
	{set("format"), 3, disks, nil, sense{category: destructive}},
	{set("format"), 4, cells, nil, sense{category: write}},
	{set("charge"), 6, batteries, nil, sense{category: execute}},
	{set("convert"), 3, stages, nil, sense{category: write}},
	{set("send write type paste"), 6, terminals, nil, sense{category: execute}},
	{set("generate"), 4, keys, nil, sense{category: write}},
	{set("open"), 3, pages, nil, sense{category: execute}},
	{set("select handle"), 4, onScreen, nil, sense{category: execute}},
	{set("remove"), 3, relations, stores, sense{category: write}},
	{set("remove"), 3, marks, nil, sense{category: write}},
	{set("remove"), 3, parts, stores, sense{category: write}},
	{set("restore"), 12, moments, nil, sense{category: destructive}},
	{set("publish promote"), 12, sites, nil, sense{category: execute}},
	{set("provide"), 12, guides, nil, sense{category: read}},
}

// inContext returns the sense of a verb, based on the words after it. It returns s if none of the [contexts] matches.
func inContext(base string, s sense, next []word) sense {
	for _, c := range contexts {
		if c.verbs[base] && containsNear(next, c.within, c.words) && !containsNear(next, 10, c.unless) && (c.unless == nil || containsNear(next, 8, fromIt)) {
			return c.sense
		}
	}
	return s
}

// workNouns contains nouns for work that starts when it is created, such as a deployment.
var workNouns = set("run job execution deployment build migration rollout")

// startVerbs contains verbs that create work and thereby start it.
var startVerbs = set("create add submit schedule make queue")

// byStartedWork adds evidence for Execute if the tool starts work by creating it, as in create_deployment.
func (c *finding) byStartedWork() {
	if c.leadCategory() != write || !startVerbs[verbText(c.inName)] && !startVerbs[verbText(c.inText)] {
		return
	}
	if at := c.object(); workNouns[singular(at.text)] {
		c.add(&policyv1.Evidence{Path: "/name", Offset: int32(at.offset), Quote: at.raw, Category: execute, Weight: 0.6, Meaning: "it creates or changes work that runs"})
	}
}

var (
	httpMethods = set("GET POST PUT PATCH DELETE HEAD OPTIONS TRACE CONNECT")
	keepVerbs   = set("create add update set edit modify save register insert define")
)

// leadCategory returns the strictest category of the leading verbs in the name and the description. Weak verbs count
// only if there is no other leading verb. leadCategory returns unknown if there is no leading verb.
func (c *finding) leadCategory() mcpv1.Category {
	out := unknown
	for _, s := range []*foundVerb{c.inName, c.inText} {
		if s != nil && !s.weak {
			out = max(out, s.category)
		}
	}
	if out == unknown {
		for _, s := range []*foundVerb{c.inName, c.inText} {
			if s != nil {
				out = max(out, s.category)
			}
		}
	}
	return out
}
