package classify

import (
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// programs contains parameter names that usually mean that the tool runs the parameter's value as a program.
var programs = set(`bash sh shell exec powershell cmdline commandline command_line command cmd commands script shellcommand shell_command javascript js sql statement statements
	comando comandos commande befehl befehle kommando skript 命令 脚本 コマンド スクリプト 명령 명령어 команда скрипт`)

// sources contains parameter names that mean that the parameter contains a program. The tool runs the program unless
// the verbs have the category Read.
var sources = set("code expression function sourcecode source_code program")

// byParameters adds evidence from parameters that contain a program, at any depth of the schema. If the name and the
// description both say that the tool reads, such evidence only makes the classification uncertain.
func (c *finding) byParameters() {
	lead := c.leadCategory()
	for _, p := range slices.Concat(c.tool.Parameters, c.tool.Nested) {
		weight := c.programWeight(p, lead)
		if weight == 0 {
			continue
		}
		c.add(&policyv1.Evidence{
			Path: p.Path, InKey: true, Quote: p.Name, Category: execute, Weight: weight, Meaning: "callers pass what it runs",
		})
		return
	}
}

// certainPrograms contains parameter names that always mean that the parameter contains a program.
var certainPrograms = set(`bash sh shell exec powershell cmdline commandline command_line command cmd commands script shellcommand shell_command sql python_code pythoncode js_code jscode javascript_code bash_code shell_code
	shell_script python_script bash_script comando comandos commande befehl befehle kommando skript 命令 脚本 コマンド スクリプト 명령 명령어 команда скрипт`)

// programWeight returns the weight of a parameter as evidence that the tool runs a program. It returns 0 if the
// parameter probably contains no program.
func (c *finding) programWeight(p Parameter, lead mcpv1.Category) float64 {
	if len(p.Values) > 0 || len(p.Types) > 0 && !slices.Contains(p.Types, "string") && !slices.Contains(p.Types, "array") && !slices.Contains(p.Types, "object") {
		return 0
	}
	name := strings.ToLower(p.Name)
	if words := nameWords(p.Name); !programs[name] && len(words) > 1 && words[len(words)-1].text != "id" {
		name = words[len(words)-1].text // for example code for python_code, and command for bashCommand
		if name == "statement" || name == "statements" {
			name = ""
		}
	}
	described := len(p.Description) < maxRuns && describesProgram(p.Description)
	runs := len(p.Description) < maxRuns && saysItRuns(p.Description) != nil
	switch {
	case runs:
		return 0.6
	case !programs[name] && !sources[name] && (!described || !possiblePrograms[name]):
		return 0
	case lead == read && c.readsByNameAndText() && !isQuery(c.inName) && !isQuery(c.inText):
		if certainPrograms[name] || certainPrograms[strings.ToLower(p.Name)] || described {
			return 0.45
		}
		return 0
	case sources[name] && lead != execute && lead != unknown && !described: // a parameter named code is often a number
		return 0
	case (lead == write || lead == read) && !isQuery(c.inName) && !isQuery(c.inText): // the tool may only read or change the program
		return 0.3
	}
	return 0.6
}

// possiblePrograms contains parameter names that mean a program only if the parameter's description says so.
var possiblePrograms = set("query queries q input body text content expr filter pipeline args arguments payload source template")

// maxRuns is a length in bytes. Longer descriptions of parameters are not searched for [runnable] and [saysItRuns].
const maxRuns = 400

// runnable matches words for programs in a parameter's description.
var runnable = compiled(`(?i)\b(?:sql|cypher|shell|bash|powershell|terminal|javascript|typescript|python|js|lua|ruby|groovy|apex|graphql mutation)\b.{0,24}\b(?:query|queries|statements?|commands?|code|script|snippet|expressions?)\b|` +
	`\b(?:query|statements?|commands?|code|script|snippet|expressions?) (?:to|that will) (?:be )?(?:execut|run|evaluat)|\b(?:execut|run|evaluat)[a-z]* (?:as|in) (?:a |the )?(?:shell|sql|code|script|sandbox)|\b(?:raw|arbitrary) sql\b`)

// saysItRuns matches descriptions that say that the parameter's value is run.
var saysItRuns = matcher(`executed|run|evaluated`, `\b(?:shell|bash|powershell|python|javascript|typescript|js|lua|ruby|sql)\b.{0,24}\b(?:code|scripts?|functions?|commands?|statements?)\b.{0,24}\b(?:is|are|be|gets) (executed|run|evaluated)\b`)

func describesProgram(description string) bool { return runnable().MatchString(description) }

// isQuery reports whether the verb is "query". A query can change something although the verb has the category Read.
func isQuery(s *foundVerb) bool { return s != nil && s.base == "query" }

// readsByNameAndText reports whether the leading verbs of the name and the description both have the category Read.
func (c *finding) readsByNameAndText() bool {
	return c.inName != nil && c.inText != nil && c.inName.category == read && c.inText.category == read
}

// outputWords contains words in the names of parameters that specify where the tool writes. locationWords contains
// words in the names of parameters that specify a location, not necessarily for writing.
var outputWords = set("output out destination dest save target")

var locationWords = set("path file filename dir directory folder")

// storingVerbs contains verbs of tools that store their result if a parameter specifies a location.
var storingVerbs = set("take capture screenshot download export render generate record snapshot print convert extract")

// plainReads contains verbs of tools that usually read from the location in a parameter and do not write to it.
var plainReads = set("get read list find search")

// byOutputLocations adds evidence from a parameter that specifies where the tool stores its output.
func (c *finding) byOutputLocations() {
	if !slices.ContainsFunc([]*foundVerb{c.inName, c.inText}, func(s *foundVerb) bool { return s != nil && (storingVerbs[s.base] || storingVerbs[s.text]) }) {
		return
	}
	for _, p := range c.tool.Parameters {
		words := nameWords(p.Name)
		path := containsNear(words, len(words), locationWords)
		isOutput := containsNear(words, len(words), outputWords)
		if !path && !isOutput || !isOutput && c.inName != nil && plainReads[c.inName.base] {
			continue
		}
		weight := 0.3
		if p.Required {
			weight = 0.6
		}
		c.add(&policyv1.Evidence{
			Path: p.Path, InKey: true, Quote: p.Name, Category: write, Weight: weight,
			Meaning: "this argument says where its output is stored",
		})
		return
	}
}

// removalParameters contains the names of parameters that make a tool remove something in addition to its main action.
var removalParameters = set("delete remove purge wipe clear drop destroy reset prune")

// confirmParameters contains the names of parameters that confirm an action.
var confirmParameters = set("apply dryrun dry_run confirm commit yes")

// byRemovalParameters adds evidence from parameters in [removalParameters]. If the leading verb has the category Write,
// only boolean parameters count. If it has the category Read and the description mentions a removal, parameters in
// [confirmParameters] also count.
func (c *finding) byRemovalParameters() {
	lead := c.leadCategory()
	if lead > write {
		return
	}
	for _, p := range c.tool.Parameters {
		if !removalParameters[strings.ToLower(p.Name)] || lead == write && !slices.Contains(p.Types, "boolean") {
			continue
		}
		c.dependsOn = pointer(p.Name)
		c.add(&policyv1.Evidence{
			Path: p.Path, InKey: true, Quote: p.Name, Category: destructive, Weight: 0.6,
			Meaning: "with this argument, it removes something",
		})
		return
	}
	if lead == write {
		return
	}
	c.bySwitches()
	meant := slices.IndexFunc(c.tool.Parameters, func(p Parameter) bool { return confirmParameters[strings.ToLower(p.Name)] })
	removes := slices.IndexFunc(c.text, func(w word) bool {
		_, s, ok := verbOf(w.text)
		return ok && s.category == destructive && !s.weak && !c.isNegated(w.offset)
	})
	if meant >= 0 && removes >= 0 {
		c.dependsOn = pointer(c.tool.Parameters[meant].Name)
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(c.text[removes].offset), Quote: c.text[removes].raw, Category: destructive, Weight: 0.6,
			Meaning: "it removes something if an argument confirms it",
		})
	}
}

// bySwitches adds evidence from a parameter that makes a reading tool also remove something or move money. Such a
// parameter is a switch or an amount, for example delete_after_read, place_order or charge_amount.
func (c *finding) bySwitches() {
	if c.leadCategory() != read {
		return
	}
	for _, p := range c.tool.Parameters {
		category, ok := switchCategory(p)
		if !ok {
			continue
		}
		c.add(&policyv1.Evidence{
			Path: p.Path, InKey: true, Quote: p.Name, Category: category, Weight: weightAside, Meaning: "with this argument, it does more than read",
		})
		return
	}
}

// switchCategory returns the category of the action that a parameter switches on. It returns false if the parameter is
// not such a switch.
func switchCategory(p Parameter) (mcpv1.Category, bool) {
	words := nameWords(p.Name)
	if len(words) == 0 {
		return unknown, false
	}
	first, last := words[0].text, words[len(words)-1].text
	switch {
	case !slices.Contains(p.Types, "boolean"):
		return financial, chargeVerbs[first] && last == "amount"
	case removeVerbs[first], removesByText().MatchString(p.Description):
		return destructive, true
	case first == "place" && last == "order", payVerbs[first]:
		return financial, true
	}
	return unknown, false
}

var (
	removeVerbs = set("delete erase purge wipe destroy")
	chargeVerbs = set("charge pay refund withdraw transfer")
	payVerbs    = set("buy sell pay purchase refund")
)

// removesByText matches a parameter's description that says that something is permanently removed.
var removesByText = compiled(`(?i)^(?:permanently (?:removes?|deletes?)|(?:erase|delete|purge|wipe|destroy|empt(?:y|ie))s?) (?:the|all|any|every|each|old|its)\b|^permanently (?:remove|delete)s?\b`)

// byHints adds evidence from annotations. Annotations can always make the classification stricter. They can make it
// less strict only if the server is trusted.
func (c *finding) byHints() {
	readOnly, hasReadOnly := c.tool.Hints["readOnlyHint"]
	ruins, hasRuins := c.tool.Hints["destructiveHint"]
	add := func(name, quote, meaning string, e *policyv1.Evidence) {
		e.Path, e.Quote, e.Meaning = "/annotations/"+name, quote, meaning
		c.add(e)
	}
	support := c.support()
	switch {
	case hasReadOnly && readOnly && c.trusted:
		c.reduceWeights(func(of mcpv1.Category) bool { return of != read })
		add("readOnlyHint", "true", "a trusted server says that it changes nothing", &policyv1.Evidence{Category: read, Weight: 0.9})
	case hasReadOnly && !readOnly && support[read] > 0 && support[read] < 0.6:
		category := write
		if runsIfItChanges[verbText(c.inName)] || runsIfItChanges[verbText(c.inText)] {
			category = execute
		}
		add("readOnlyHint", "false", "the server says that it changes something", &policyv1.Evidence{Category: category, Weight: 0.5})
	}
	if hasRuins && ruins && hasReadOnly && !readOnly && support[destructive] == 0 && c.leadCategory() == read {
		add("destructiveHint", "true", "the server says that it may destroy something", &policyv1.Evidence{Category: destructive, Weight: weightAside})
	}
	if hasRuins && ruins && !readOnly && support[destructive] > 0 {
		add("destructiveHint", "true", "the server says that it may destroy something", &policyv1.Evidence{Category: destructive, Weight: 0.4})
	}
	if hasRuins && !ruins && c.trusted && support[destructive] > 0 {
		c.reduceWeights(func(of mcpv1.Category) bool { return of == destructive })
		add("destructiveHint", "false", "a trusted server says that it only adds", &policyv1.Evidence{Category: write, Weight: 0.7})
	}
}

// runsIfItChanges contains verbs of tools that run something if their annotations say that they are not read-only.
var runsIfItChanges = set("test benchmark simulate")

// parameterPairs contains pairs of parameters that a tool does not need if it only reads. Examples are a content and a
// location, a message and a recipient, or an amount and a payee.
var parameterPairs = []struct {
	one, other map[string]bool
	category   mcpv1.Category
	meaning    string
}{
	{set("content contents filecontent new_content newcontent file_content data"), set("path file_path filepath filename file_name"), write, "callers pass what is stored, and where"},
	{set("body message subject"), set("to recipient recipients cc bcc"), write, "callers pass what is sent, and to whom"},
	{set("amount amount_cents lamports value_wei"), set("to recipient payee iban to_account destination_account recipient_account to_address"), financial, "callers pass how much is paid, and to whom"},
}

// byParameterPairs adds evidence from the pairs in [parameterPairs], if the leading verbs have the category Read.
func (c *finding) byParameterPairs() {
	if c.leadCategory() != read {
		return
	}
	all := slices.Concat(c.tool.Parameters, c.tool.Nested)
	named := func(names map[string]bool) int {
		return slices.IndexFunc(all, func(p Parameter) bool { return names[strings.ToLower(p.Name)] && len(p.Values) == 0 })
	}
	for _, h := range parameterPairs {
		if at := named(h.one); at >= 0 && named(h.other) >= 0 {
			c.add(&policyv1.Evidence{Path: all[at].Path, InKey: true, Quote: all[at].Name, Category: h.category, Weight: 0.45, Meaning: h.meaning})
		}
	}
}

// byUnreadParts adds evidence if parts of the definition were not read because of the limits. The parameters in these
// parts could have any effect.
func (c *finding) byUnreadParts() {
	if cut := c.tool.Cut; cut.Path != "" {
		c.add(&policyv1.Evidence{
			Path: cut.Path, InKey: true, Quote: cut.Name, Category: execute, Weight: 0.45, Meaning: "the schema is too large to be looked at completely: this is the first part that was not looked at",
		})
	}
	if len(c.text) == maxWords {
		last := c.text[maxWords-1]
		c.add(&policyv1.Evidence{
			Path: "/description", Offset: int32(last.offset), Quote: last.raw, Weight: 0.1, Meaning: "the description after this word was not looked at for verbs",
		})
	}
}
