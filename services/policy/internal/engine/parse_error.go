package engine

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
)

// A ParseError is a problem in a document. It is an error or a warning.
type ParseError struct {
	// Rule is the index in Document.Rules of the rule that has the problem. It is -1 if the document itself has the
	// problem.
	Rule int
	// Field is the path of the key that has the problem, for example `match.tool[0]`. It is empty if the problem is in the
	// rule or the document as a whole.
	Field string
	// Message describes the problem.
	Message string
	// Suggestion says how to fix the problem. It may be empty.
	Suggestion string
	// Warning is true if the document can be used despite the problem.
	Warning bool
}

// Check returns all problems in the document, in the order of its rules. The document can be compiled if all problems
// are warnings.
func (d *Document) Check() []ParseError {
	c := &checker{rule: -1}
	if d.Name == "" {
		c.add("name", "is required", "")
	} else {
		c.checkName("name", d.Name)
	}
	if d.Server != "" {
		c.checkPattern("server", d.Server, serverGrammar)
	}
	if d.Default > DefaultDeny {
		c.add("default", d.Default.String()+" is unknown", "")
	}
	seen := make(map[string]bool)
	for i := range d.Rules {
		r := &d.Rules[i]
		c.rule = i
		if r.label() != "" && seen[r.label()] {
			c.add("name", fmt.Sprintf("another rule has the name %q", r.label()), "give each rule a different name")
		}
		seen[r.label()] = true
		c.checkRule(r)
	}
	c.checkAllowedAnyway(d)
	c.warnOpenMethods(d)
	return c.problems
}

// correctSpelling returns the correct spelling of a method in a pattern if only the case is wrong, and otherwise "".
// The parameter prefix is the part of the pattern before the first wildcard. If prefix differs from a protocol method
// only in case, the result is this method. If only the part of prefix up to the last slash does, the result is the
// correct spelling of this part. The gateway refuses requests with a method in the wrong case, so a pattern in the
// wrong case never matches.
func correctSpelling(prefix string) string {
	upToSlash := func(s string) string { return s[:strings.LastIndexByte(s, '/')+1] }
	families := make([]string, 0, len(mcpmethod.All()))
	for _, method := range mcpmethod.All() {
		if strings.EqualFold(prefix, method) && prefix != method {
			return method
		}
		families = append(families, upToSlash(method))
	}
	start := upToSlash(prefix)
	if i := slices.IndexFunc(families, func(f string) bool { return strings.EqualFold(start, f) }); i >= 0 && start != families[i] {
		return families[i]
	}
	return ""
}

// warnOpenMethods warns about a rule that refuses all tools to some callers but does not refuse other methods. It warns
// only if a rule in the document allows other methods, and no rule refuses all methods to the same callers.
func (c *checker) warnOpenMethods(d *Document) {
	if !slices.ContainsFunc(d.Rules, func(r Rule) bool {
		_, methods := r.Match.scope()
		return methods && (r.Action == ActionAllow || r.Action == ActionRequireApproval)
	}) {
		return
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		twin := func(o Rule) bool {
			return o.refusesAll() && o.sameButMethod(r) && slices.Contains(o.Match.Method, "*")
		}
		if len(r.Match.Method) > 0 || !r.refusesAll() || slices.ContainsFunc(d.Rules, twin) {
			continue
		}
		c.problems = append(c.problems, ParseError{
			Rule: i, Field: "match", Warning: true,
			Message:    "concerns only tools/call: other methods that this document allows remain allowed",
			Suggestion: `add method: "*" if it should concern all methods`,
		})
	}
}

// refusesAll reports whether a rule refuses all tools, restricted only by servers and callers.
func (r *Rule) refusesAll() bool {
	every := r.When == "" && (len(r.Match.Tool) == 0 || slices.ContainsFunc(compilePatterns(r.Match.Tool), func(g glob) bool { return g.isPrefix() && g.prefix == "" }))
	return r.Tool == "" && every && !r.Match.hasProperties() && !r.Match.hasNames() && (r.Action == ActionDeny || r.Action == ActionHide)
}

// sameButMethod reports whether two rules match the same servers and callers. The methods may differ.
func (r *Rule) sameButMethod(o *Rule) bool {
	return slices.Equal(r.Match.Server, o.Match.Server) && slices.Equal(r.Match.Agent, o.Match.Agent) && slices.Equal(r.Match.Principal, o.Match.Principal) &&
		slices.Equal(r.Match.Groups, o.Match.Groups) && slices.Equal(r.Match.Tenant, o.Match.Tenant)
}

// label returns the name of the rule in a [RuleRef].
func (r *Rule) label() string {
	label := r.Name
	if r.Tool != "" {
		label = "tools." + r.Tool
	}
	if r.Otherwise && label != "" {
		label += otherwiseSuffix
	}
	return label
}

// otherwiseSuffix is appended to the name of a rule with Otherwise.
const otherwiseSuffix = ".otherwise"

// A checker collects the problems in one document.
type checker struct {
	rule     int // index of the rule that is being checked, or -1
	problems []ParseError
}

func (c *checker) add(field, message, suggestion string) {
	c.problems = append(c.problems, ParseError{Rule: c.rule, Field: field, Message: message, Suggestion: suggestion})
}

func (c *checker) checkRule(r *Rule) {
	switch {
	case r.Tool != "" && r.Name != "":
		c.add("name", "an entry under tools has no name", "")
	case r.Tool != "" && !validTool(r.Tool):
		c.addToolName(r.Tool)
	case r.Tool == "" && r.Name == "":
		c.add("name", "is required", "name the rule: decisions and limits refer to it")
	case r.Tool == "" && strings.HasPrefix(r.Name, "tools."):
		c.add("name", `starts with "tools.", which names the entries under tools`, "choose another name")
	case r.Tool == "" && strings.HasSuffix(r.Name, otherwiseSuffix):
		c.add("name", `ends with ".otherwise", which names the other half of a rule with a condition`, "choose another name")
	case r.Tool == "":
		c.checkName("name", r.Name)
	}
	if r.Tool != "" && !r.Match.empty() {
		c.add("match", "an entry under tools matches only its tool", "use rules")
	}
	c.checkMatch(&r.Match)
	c.checkNames(r)
	c.checkProperties(&r.Match)
	if r.Action > ActionHide {
		c.add("action", r.Action.String()+" is unknown", "")
	}
	c.checkEffect(r)
	c.checkWhen(r)
	c.checkReason(r.Reason)
	c.checkLimits(r.Limits)
	c.checkApproval(r)
	c.checkForward(r)
	c.checkRedactions(r)
	c.checkRecord(r)
	c.checkScopes(r)
	if r.Idempotent && r.Action != ActionAllow && r.Action != ActionRequireApproval {
		c.add("idempotent", "has no effect without action: allow or require_approval", "")
	}
}

// addToolName adds a problem for an invalid tool name.
func (c *checker) addToolName(name string) {
	if strings.ContainsAny(name, `*?\`) {
		c.add("", "a name under tools is not a pattern", "use rules, with match: {tool: …}")
		return
	}
	c.add("", "is not a tool's name", "tools have names of 1 to 128 letters, digits and _ . / -")
}

func (c *checker) checkName(field, name string) {
	ok := len(name) <= MaxNameBytes
	for i := range len(name) {
		ok = ok && toolByte(name[i]) && name[i] != '/' && (i > 0 || !strings.ContainsRune("_.-", rune(name[i])))
	}
	if !ok {
		c.add(field, "is not a name",
			"use 1 to 128 letters, digits and _ . - and start with a letter or a digit")
	}
}

func (c *checker) checkMatch(m *Match) {
	for _, key := range append(m.keys(), matchKey{"method", m.Method, methodGrammar}, matchKey{"prompt", m.Prompt, grammar{}}, matchKey{"uri", m.URI, uriGrammar}) {
		seen := make(map[string]bool)
		for i, pattern := range key.patterns {
			field := fmt.Sprintf("match.%s[%d]", key.name, i)
			if seen[pattern] {
				c.add(field, "is listed twice", "keep one of them")
			}
			seen[pattern] = true
			c.checkPattern(field, pattern, key.grammar)
		}
	}
	tools, methods := m.scope()
	both := m.hasNames() && (len(m.Prompt) > 0 && len(m.URI) > 0 || len(m.Tool) > 0 || m.hasProperties()) // checkNames adds a problem for this
	switch {
	case tools || methods || both:
	case m.hasNames():
		c.add("match.method", "can never match: none of these methods has a prompt or URI that the rule requires", "remove match.method, or use "+strings.Join((&Match{Prompt: m.Prompt, URI: m.URI}).methods(), ", "))
	default:
		c.add("match.method", "can never match: the rule has keys about a tool, and only tools/call has a tool", "remove match.method, or the keys about the tool")
	}
	for i, pattern := range m.Method {
		field := fmt.Sprintf("match.method[%d]", i)
		g, message, _ := compileGlob(pattern)
		switch known := correctSpelling(g.prefix); {
		case message != "": // checkPattern has added this problem
		case known != "":
			c.add(field, "is not how a method is spelled", "write "+known)
		case g.exact && slices.Contains(mcpmethod.WithoutRule(), g.prefix):
			c.add(field, "names a method that always passes or is always refused, whatever the rules are", "remove it")
		}
	}
}

func (c *checker) checkPattern(field, text string, fits grammar) {
	g, message, suggestion := compileGlob(text)
	if message != "" {
		c.add(field, message, suggestion)
		return
	}
	if fits.allows == nil {
		return
	}
	if r, found := g.stray(fits.allows); found {
		c.add(field, fmt.Sprintf("can never match: %q is in no %s", r, fits.what), fits.help)
	}
}

func (c *checker) checkReason(reason string) {
	switch {
	case len(reason) > MaxReasonBytes:
		c.add("reason", fmt.Sprintf("is longer than %d bytes", MaxReasonBytes), "")
	case !utf8.ValidString(reason) || strings.ContainsFunc(reason, unprintable):
		c.add("reason", "contains an unprintable character", "remove it")
	}
}

// unprintable reports whether a character is forbidden in a reason. Unprintable characters could hide a part of the
// text. Line breaks are allowed.
func unprintable(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }

func (c *checker) checkLimits(limits []RateLimit) {
	if len(limits) > MaxRuleLimits {
		c.add("rate_limit", fmt.Sprintf("has more than %d limits", MaxRuleLimits), "")
		return
	}
	for i, l := range limits {
		field := fmt.Sprintf("rate_limit[%d]", i)
		if l.Max < 1 || l.Max > MaxLimit {
			c.add(field+".max", fmt.Sprintf("%d is not between 1 and %d", l.Max, MaxLimit), "")
		}
		if l.Window < MinWindow || l.Window > MaxWindow {
			c.add(field+".window", "is not between 1ms and 366 days", "")
		}
		if len(l.Per) == 0 {
			c.add(field+".per", "is empty", "name what the limit is counted by")
		}
		for j, d := range l.Per {
			if d == 0 || d > PerOwner {
				c.add(fmt.Sprintf("%s.per[%d]", field, j), d.String()+" is unknown", "")
			}
			if slices.Contains(l.Per[:j], d) {
				c.add(fmt.Sprintf("%s.per[%d]", field, j), d.String()+" is listed twice", "keep one of them")
			}
		}
		same := func(o RateLimit) bool { return o.Window == l.Window && slices.Equal(o.per(), l.per()) }
		if slices.ContainsFunc(limits[:i], same) {
			c.add(field, "another limit of this rule has the same window and the same per", "keep the smaller")
		}
	}
}

// A grammar says which characters a name may contain. The zero grammar allows all characters.
type grammar struct {
	allows     func(byte) bool
	what, help string
}

var (
	toolGrammar   = grammar{toolByte, "tool's name", "tools have names of letters, digits and _ . / -"}
	methodGrammar = grammar{methodByte, "method's name", "methods have names of letters, digits and _ . / $ -"}
	uriGrammar    = grammar{uriByte, "plain URI", "URIs are ASCII; percent-encode other characters, and leave out # and what follows it"}
	serverGrammar = grammar{serverByte, "server's name", "servers have names of lower-case letters, digits and -"}
	tenantGrammar = grammar{serverByte, "tenant's name", "tenants have names of lower-case letters, digits and -"}
)

type matchKey struct {
	name     string
	patterns []string
	grammar  grammar
}

func (m *Match) keys() []matchKey {
	return []matchKey{
		{"tool", m.Tool, toolGrammar},
		{"server", m.Server, serverGrammar},
		{"agent", m.Agent, grammar{}},
		{"principal", m.Principal, grammar{}},
		{"groups", m.Groups, grammar{}},
		{"tenant", m.Tenant, tenantGrammar},
	}
}

func (m *Match) empty() bool {
	return len(m.Method) == 0 && !m.hasProperties() && !m.hasNames() && !slices.ContainsFunc(m.keys(), func(k matchKey) bool { return len(k.patterns) > 0 })
}
