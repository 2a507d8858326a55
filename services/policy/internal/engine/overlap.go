package engine

import (
	"fmt"
	"slices"
)

// maxOverlapChecks limits the number of pairs of rules that [CheckOverlaps] compares.
const maxOverlapChecks = 2_000_000

// An OverlapWarning is a warning about a rule in one of several documents.
type OverlapWarning struct {
	ParseError

	// Document is the index of the document.
	Document int
}

// CheckOverlaps returns warnings about rules that have no effect because of a different rule. It also returns a warning
// for each `otherwise` that denies calls, if rules in other documents allow these calls. The documents must have no
// errors. Rules and documents with observe mode are not checked, even if observe mode has ended. If there are very many
// rules, CheckOverlaps checks only some of them.
func CheckOverlaps(documents []Document) []OverlapWarning {
	c := newOverlapChecker(documents)
	var out []OverlapWarning
	for _, r := range c.rules {
		warning, found := c.shadowed(r)
		if !found {
			warning, found = c.defeating(r)
		}
		if found {
			warning.Rule, warning.Warning = r.index, true
			out = append(out, OverlapWarning{ParseError: warning, Document: r.document})
		}
	}
	return out
}

// An overlapRule is a rule and its position in the documents.
type overlapRule struct {
	*rule

	document, index int
}

// overlapChecker compares the rules in documents with each other.
type overlapChecker struct {
	rules []overlapRule
	// deciding contains the rules without a condition that refuse calls or require approval.
	deciding []overlapRule
	// allowing contains the rules that can allow calls or require approval.
	allowing []overlapRule
	left     int // pairs of rules that may still be compared
}

func newOverlapChecker(documents []Document) *overlapChecker {
	c := &overlapChecker{left: maxOverlapChecks}
	for i := range documents {
		d := &documents[i]
		var home patterns
		if d.Server != "" {
			home = compilePatterns([]string{d.Server})
		}
		for j := range d.Rules {
			if d.isObserved(j) {
				continue
			}
			r := overlapRule{compileRule(d, &d.Rules[j], home), i, j}
			c.rules = append(c.rules, r)
			if r.When == "" && r.Action >= ActionRequireApproval {
				c.deciding = append(c.deciding, r)
			}
			if r.Action == ActionAllow || r.Action == ActionRequireApproval {
				c.allowing = append(c.allowing, r)
			}
		}
	}
	return c
}

// shadowed returns a warning if r has no effect because a rule with a stricter action matches all calls that r matches.
func (c *overlapChecker) shadowed(r overlapRule) (ParseError, bool) {
	if r.Otherwise { // already checked for the preceding rule, which matches the same calls
		return ParseError{}, false
	}
	by := c.shadowing(r)
	if by == nil {
		return ParseError{}, false
	}
	what := map[Action]string{ActionRequireApproval: "requires approval for", ActionDeny: "denies", ActionHide: "hides"}[by.Action]
	return ParseError{
		Message:    fmt.Sprintf("has no effect: %s %s every call that this rule matches", by.ref, what),
		Suggestion: fmt.Sprintf("remove this rule, or let %s match fewer calls", by.ref),
	}, true
}

// shadowing returns the first rule because of which r has no effect, or nil if there is none.
func (c *overlapChecker) shadowing(r overlapRule) *overlapRule {
	for i := range c.deciding {
		if c.left == 0 {
			return nil
		}
		c.left--
		o := &c.deciding[i]
		if o.Action > r.Action && (o.Action >= ActionDeny || r.Action == ActionAllow && len(r.limits) == 0 && len(r.NeedsScope) == 0) && o.covers(r.rule) {
			return o
		}
	}
	return nil
}

// covers reports whether r matches every call that o matches. It may return false although r matches all these calls.
func (r *rule) covers(o *rule) bool {
	if r.Match.hasNames() || o.Match.hasNames() || o.matchesTools && !r.matchesTools || o.matchesMethods && !r.matchesMethods {
		return false
	}
	servers := func(ps patterns) bool { return ps.contains(o.documentServers) || ps.contains(o.servers) }
	return r.tools.contains(o.tools) && r.methods.contains(o.methods) && servers(r.documentServers) && servers(r.servers) &&
		r.agents.contains(o.agents) && r.names.contains(o.names) && r.groups.contains(o.groups) && r.tenants.contains(o.tenants) &&
		r.coversProperties(&o.Match)
}

// coversProperties reports whether every tool with the properties in m also has the properties that r requires.
func (r *rule) coversProperties(m *Match) bool {
	for _, pair := range [][2][]string{{r.Match.Category, m.Category}, {r.Match.Risk, m.Risk}, {r.Match.Tags, m.Tags}} {
		other := func(value string) bool { return !slices.Contains(pair[0], value) }
		if len(pair[0]) > 0 && (len(pair[1]) == 0 || slices.ContainsFunc(pair[1], other)) {
			return false
		}
	}
	for name, value := range r.Match.Annotations {
		if has, known := m.Annotations[name]; !known || has != value {
			return false
		}
	}
	return true
}

// defeating returns a warning if r is a rule with Otherwise that denies calls that rules in other documents allow.
// Among these rules, it considers only rules that name the tool.
func (c *overlapChecker) defeating(r overlapRule) (ParseError, bool) {
	if !r.Otherwise || r.Action < ActionDeny {
		return ParseError{}, false
	}
	var defeated []string
	for _, o := range c.allowing {
		if c.left == 0 {
			break
		}
		c.left--
		if o.document == r.document || o.When == r.When && !o.Otherwise || !o.namesTools() || !o.meets(r.rule) {
			continue
		}
		defeated = append(defeated, o.ref.String())
	}
	if len(defeated) == 0 {
		return ParseError{}, false
	}
	return ParseError{
		Message:    "denies calls that rules of other documents allow: " + firstNames(defeated),
		Suggestion: "write otherwise with a reason and no action if those rules should decide on these calls",
	}, true
}

// namesTools reports whether a rule restricts the tools that it matches by their names.
func (r *rule) namesTools() bool {
	return len(r.tools) > 0 && !slices.ContainsFunc(r.tools, func(g glob) bool { return g.isPrefix() && g.prefix == "" })
}

// meets reports whether there could be a tool call that both r and o match.
func (r *rule) meets(o *rule) bool {
	if !r.matchesTools || !o.matchesTools {
		return false
	}
	for _, one := range []patterns{r.documentServers, r.servers} {
		if !one.intersects(o.documentServers) || !one.intersects(o.servers) {
			return false
		}
	}
	apart := func(a, b []string) bool {
		return len(a) > 0 && len(b) > 0 && !slices.ContainsFunc(a, func(value string) bool { return slices.Contains(b, value) })
	}
	return r.tools.intersects(o.tools) && r.agents.intersects(o.agents) && r.names.intersects(o.names) && r.tenants.intersects(o.tenants) &&
		!apart(r.Match.Category, o.Match.Category) && !apart(r.Match.Risk, o.Match.Risk)
}
