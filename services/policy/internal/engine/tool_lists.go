package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// ToolLists contains the tools that the configured servers list. [ToolLists.Check] checks documents against these
// tools.
type ToolLists struct {
	// Tools contains the tools of each configured server. They are nil for a server whose tools have not been listed yet.
	Tools map[string][]ListedTool
	// Schema returns the schema of a tool. Schema may be nil if no schemas are known.
	Schema func(server, tool string) Schema
	// Unusable returns the reason why the accepted schema of a tool can't be used to check arguments. It returns "" if the
	// schema can be used or is unknown. Unusable may be nil if no schemas are known.
	Unusable func(server, tool string) string
}

// A ListedTool is a tool in a server's list. Category and Risk are empty if the tool has no classification.
type ListedTool struct {
	Name, Category, Risk string
	Tags                 []string
}

// A Schema contains a tool's arguments. The zero Schema means that the schema is unknown.
type Schema struct {
	// Arguments contains the arguments by name. It is nil if they are unknown.
	Arguments map[string]Argument
	// Closed is true if the tool accepts no other arguments.
	Closed bool
}

// An Argument is an argument in a tool's schema. Types contains its JSON Schema types. If Types is empty, all types are
// allowed.
type Argument struct {
	Types    []string
	Required bool
}

// A Finding is a result of [ToolLists.Check], such as a problem in a document.
type Finding struct {
	ParseError

	// Document is the index of the document, or -1 if the finding is not about a document.
	Document int
	// Check is the name of the check that made the finding. Names of checks never change.
	Check string
	// Info is true if the finding is only information.
	Info bool
}

// These constants limit the work of [ToolLists.Check].
const (
	// maxMatchedTools limits the number of tools whose schemas are compared with the conditions of a rule.
	maxMatchedTools = 200
	// maxToolChecks limits how many pairs of a rule and a tool are compared.
	maxToolChecks = 5_000_000
	// maxStrictTools limits the number of tools whose schemas are compiled.
	maxStrictTools = 500
)

// Check checks documents against the tool lists. It finds names that match no configured server or no listed tool,
// conditions that do not fit the schemas of the tools, and dangerous tools that no rule names. If some servers' tools
// have not been listed yet, a single finding says so. The documents must have no errors.
func (l *ToolLists) Check(documents []Document) []Finding {
	if len(l.Tools) == 0 {
		return nil
	}
	c := &listChecker{ToolLists: l, documents: documents, inventory: l.inventory(), left: maxToolChecks, unusable: make(map[string]string)}
	for i := range documents {
		c.compile(i)
		for _, fault := range c.inventory.Check(&documents[i]) {
			c.findings = append(c.findings, Finding{ParseError: fault, Document: i, Check: "names"})
		}
	}
	for _, r := range c.rules {
		c.checkConditions(r)
		c.checkStrict(r)
	}
	c.checkDangerous()
	c.reportUnlisted()
	return c.findings
}

func (l *ToolLists) inventory() Inventory {
	out := make(Inventory, len(l.Tools))
	for server, tools := range l.Tools {
		var names []string
		for i := range tools {
			names = append(names, tools[i].Name)
		}
		if tools != nil && names == nil {
			names = []string{}
		}
		out[server] = names
	}
	return out
}

// listChecker checks documents against tool lists.
type listChecker struct {
	*ToolLists

	documents []Document
	inventory Inventory
	rules     []overlapRule
	findings  []Finding
	left      int
	// unusable caches the results of [ToolLists.Unusable] by server and tool.
	unusable map[string]string
}

// compile adds the rules of the document with the given index to c.rules.
func (c *listChecker) compile(document int) {
	d := &c.documents[document]
	home := patterns(nil)
	if d.Server != "" {
		home = compilePatterns([]string{d.Server})
	}
	for i := range d.Rules {
		r := compileRule(d, &d.Rules[i], home)
		r.when, _ = condition.Compile(r.When)
		r.where, _ = condition.Compile(r.Grant.Where)
		c.rules = append(c.rules, overlapRule{r, document, i})
	}
}

func (c *listChecker) add(r *overlapRule, check, field, message, suggestion string) *Finding {
	c.findings = append(c.findings, Finding{
		ParseError: ParseError{Rule: r.index, Field: field, Message: message, Suggestion: suggestion, Warning: true}, Document: r.document, Check: check,
	})
	return &c.findings[len(c.findings)-1]
}

// A matchedTool is a tool with its server.
type matchedTool struct {
	server string
	*ListedTool
}

// String returns "server/tool".
func (m matchedTool) String() string { return m.server + "/" + m.Name }

func (m matchedTool) facts() Facts {
	return Facts{Status: Callable, Category: m.Category, Risk: m.Risk, Tags: m.Tags}
}

// matching returns at most maxMatchedTools of the tools that a rule matches, ordered by server.
func (c *listChecker) matching(r *rule) (out []matchedTool) {
	if !r.matchesTools {
		return nil
	}
	for _, server := range slices.Sorted(maps.Keys(c.Tools)) {
		if !r.documentServers.match(server) || !r.servers.match(server) {
			continue
		}
		for i := range c.Tools[server] {
			m := matchedTool{server, &c.Tools[server][i]}
			facts := m.facts()
			if c.left--; c.left < 0 || len(out) == maxMatchedTools {
				return out
			}
			if r.tools.match(m.Name) && r.matchesProperties(&facts) {
				out = append(out, m)
			}
		}
	}
	return out
}

// checkConditions checks the conditions in a rule against the tools that the rule matches.
func (c *listChecker) checkConditions(r overlapRule) {
	if r.Otherwise || r.when == nil && r.where == nil { // already checked in the rule before it
		return
	}
	tools := c.matching(r.rule)
	if r.when != nil {
		open := slices.DeleteFunc(slices.Clone(tools), func(m matchedTool) bool { return m.evaluate(r.when) != condition.Unknown })
		isFalse := func(m matchedTool) bool { return m.evaluate(r.when) == condition.False }
		if len(tools) > 0 && len(open) == 0 && !slices.ContainsFunc(tools, func(m matchedTool) bool { return !isFalse(m) }) {
			c.add(&r, "conditions", "when", "is false for every tool that the rule matches, whatever the arguments are", "remove the rule, or correct the condition")
		}
		c.checkReads(&r, "when", r.when, open)
	}
	if r.where != nil {
		c.checkReads(&r, "grant.where", r.where, tools)
	}
}

// evaluate evaluates a condition for calls to the tool by any caller and with any arguments.
func (m matchedTool) evaluate(when *condition.Condition) condition.Result {
	in := condition.Input{
		Server: m.server, Tool: m.Name, Method: MethodToolsCall, Unknown: condition.VariableArgs | condition.VariableCaller | condition.VariableNow,
		Class: condition.Class{Category: m.Category, Risk: m.Risk, Tags: m.Tags},
	}
	if m.Category == "" {
		in.Unknown |= condition.VariableTool
	}
	result, _ := when.Evaluate(&in) // a failure is ignored here, because checkReads reports its cause
	return result
}

// checkReads adds findings if a condition reads arguments in a way that does not fit the schemas of the given tools.
func (c *listChecker) checkReads(r *overlapRule, field string, when *condition.Condition, tools []matchedTool) {
	if c.Schema == nil {
		return
	}
	reads := when.Reads()
	if len(reads) == 0 {
		return
	}
	schemas := make([]Schema, len(tools))
	for i, m := range tools {
		schemas[i] = c.Schema(m.server, m.Name)
	}
	for i := range reads {
		use := readCheck{read: &reads[i]}
		for j, m := range tools {
			use.compare(m, &schemas[j])
		}
		use.report(c, r, field)
	}
}

// readCheck collects the tools whose schemas do not fit the way in which a condition reads one argument.
type readCheck struct {
	read *condition.ArgumentRead
	// known counts the tools that have the argument. names contains the arguments of the tools that do not have it.
	known int
	names []string
	// without contains the tools that do not have the argument. optional contains the tools whose calls can omit it.
	without, optional []string
	// types contains the types of the argument if it is optional.
	types []string
	// mistyped contains the tools whose argument has none of the types that the condition accepts.
	mistyped []string
	use      string
}

func (u *readCheck) compare(m matchedTool, s *Schema) {
	argument, has := s.Arguments[u.read.Name]
	switch {
	case s.Arguments == nil || !has && !s.Closed:
		return
	case !has:
		u.without = append(u.without, m.String())
		u.names = slices.AppendSeq(u.names, maps.Keys(s.Arguments))
		return
	}
	u.known++
	if !argument.Required {
		u.optional = append(u.optional, m.String())
		u.types = argument.Types
	}
	for _, use := range u.read.Uses {
		fits := func(name string) bool { return slices.Contains(use.Types, name) }
		if len(argument.Types) > 0 && !slices.ContainsFunc(argument.Types, fits) {
			u.mistyped = append(u.mistyped, fmt.Sprintf("%s (%s)", m, strings.Join(argument.Types, " or ")))
			u.use = use.Text
			break
		}
	}
}

func (u *readCheck) report(c *listChecker, r *overlapRule, field string) {
	name := argumentText(u.read.Name)
	if len(u.without) > 0 && (!u.read.Guarded || u.known == 0) {
		slices.Sort(u.names)
		suggestion := "correct the name, or let the rule match only tools that have it"
		if best, ok := strictyaml.Closest(u.read.Name, slices.Compact(u.names)); ok {
			suggestion = "did you mean " + argumentText(best) + "?"
		}
		effect := "so the condition fails for each of their calls"
		if u.read.Guarded {
			effect = "so the condition never sees a value"
		}
		c.add(r, "arguments", field, fmt.Sprintf("reads %s, which the accepted schema of %s does not have, %s", name, firstNames(u.without), effect), suggestion)
	}
	if len(u.mistyped) > 0 {
		c.add(r, "arguments", field, fmt.Sprintf("%s does not fit the type in the accepted schema of %s", u.use, firstNames(u.mistyped)),
			"compare it with a value of that type")
	}
	if len(u.optional) > 0 && !u.read.Guarded {
		f := c.add(r, "optional-arguments", field, fmt.Sprintf("reads %s, which not every call of %s has: the condition fails for the others", name, firstNames(u.optional)),
			"write "+guardText(u.read.Name, u.types))
		f.Warning = false
	}
}

// argumentText returns the expression that reads an argument.
func argumentText(name string) string {
	if isIdentifier(name) {
		return "args." + name
	}
	return fmt.Sprintf("args[%q]", name)
}

// guardText returns an expression that reads an argument and does not fail if the argument is missing.
func guardText(name string, types []string) string {
	value := map[string]string{"boolean": "false", "string": `""`, "integer": "0", "number": "0"}
	if len(types) == 1 && value[types[0]] != "" && isIdentifier(name) {
		return fmt.Sprintf("args.?%s.orValue(%s)", name, value[types[0]])
	}
	if isIdentifier(name) {
		return fmt.Sprintf("has(args.%s) && …", name)
	}
	return fmt.Sprintf("%q in args && …", name)
}

func isIdentifier(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// isDangerous reports whether a wrong call to the tool can do serious harm.
func (m matchedTool) isDangerous() bool {
	return m.Category == "destructive" || m.Category == "financial" || m.Risk == "critical"
}

// checkDangerous adds a warning about dangerous tools that are allowed only by a default or by a rule for all tools.
func (c *listChecker) checkDangerous() {
	broad := make(map[overlapKey][]string)
	for server, tools := range c.Tools {
		for i := range tools {
			if m := (matchedTool{server, &tools[i]}); m.isDangerous() {
				if key, found := c.onlyBroadly(m); found {
					broad[key] = append(broad[key], m.String())
				}
			}
		}
	}
	for key, tools := range broad {
		slices.Sort(tools)
		f := ParseError{
			Rule: key.rule, Field: "default", Warning: true, Suggestion: "name the tools in a rule: allow them there, or write action: require_approval",
			Message: "allows dangerous tools that no rule names: " + firstNames(tools),
		}
		if key.rule >= 0 {
			f.Field = ""
		}
		c.findings = append(c.findings, Finding{ParseError: f, Document: key.document, Check: "dangerous-tools"})
	}
}

// An overlapKey identifies a rule in a document, or the default of the document if rule is -1.
type overlapKey struct{ document, rule int }

// onlyBroadly reports whether a tool is allowed to every caller only by a default or by a rule for all tools, and
// returns this default or rule. The result is false if another rule matches the tool by its name or properties, or has
// a stricter action.
func (c *listChecker) onlyBroadly(m matchedTool) (by overlapKey, found bool) {
	facts := m.facts()
	strictest := DefaultNone
	for _, r := range c.rules {
		if c.left--; c.left < 0 {
			return by, false
		}
		if c.documents[r.document].isObserved(r.index) || !r.matchesTools || !r.documentServers.match(m.server) || !r.servers.match(m.server) || !r.tools.match(m.Name) || !r.matchesProperties(&facts) {
			continue
		}
		switch {
		case r.namesTools() || r.hasToolProperties || r.Action >= ActionRequireApproval:
			return by, false
		case r.Action == ActionAllow && !found:
			by, found = overlapKey{r.document, r.index}, true
		}
	}
	for i := range c.documents {
		d := &c.documents[i]
		if !d.ObserveUntil.IsZero() || d.Server != "" && !compilePatterns([]string{d.Server}).match(m.server) || found && by.rule >= 0 {
			continue
		}
		if strictest = max(strictest, d.Default); d.Default == DefaultAllow && !found {
			by, found = overlapKey{i, -1}, true
		}
	}
	return by, found && (by.rule >= 0 || strictest == DefaultAllow)
}

// reportUnlisted adds one finding about the servers whose tools have not been listed yet. It considers only servers to
// which rules with tool names or conditions apply.
func (c *listChecker) reportUnlisted() {
	var names []string
	for _, server := range slices.Sorted(maps.Keys(c.Tools)) {
		concerned := func(r overlapRule) bool {
			return (r.namesTools() || r.when != nil) && r.matchesTools && r.documentServers.match(server) && r.servers.match(server)
		}
		if c.Tools[server] == nil && slices.ContainsFunc(c.rules, concerned) {
			names = append(names, server)
		}
	}
	if len(names) > 0 {
		c.findings = append(c.findings, Finding{
			ParseError: ParseError{Rule: -1, Warning: true, Message: "not listed yet: " + firstNames(names) + "; the names and arguments of their tools were not checked"},
			Document:   -1, Check: "not-listed", Info: true,
		})
	}
}
