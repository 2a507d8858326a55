package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// A Mention is a name in documents, or an example of the names that a pattern in documents matches.
type Mention struct {
	Name string
	// Pattern is the pattern for which Name is an example. It is empty if Name itself is in the documents.
	Pattern string
}

// AnyOther is the Pattern of a Mention that is an example of the names that are not in the documents.
const AnyOther = "*"

// MentionedServers returns the servers that documents name, and an example of the other servers.
func MentionedServers(documents []Document) []Mention {
	m := newMentions("any-other-server")
	for i := range documents {
		m.addPatterns(documents[i].Server)
		for j := range documents[i].Rules {
			m.addPatterns(documents[i].Rules[j].Match.Server...)
		}
	}
	return slices.DeleteFunc(m.all, func(name Mention) bool { return !validServer(name.Name) })
}

// A MentionedCall is a kind of call in documents. It has no arguments, no server and no caller.
type MentionedCall struct {
	Method, Ref string
	Mention
}

// MentionedCalls returns the calls to a server that documents mention. These are tool calls and calls with other
// methods, with the names of prompts and the URIs of resources in the documents. For each method, it also returns an
// example of the names that are not in the documents.
func MentionedCalls(documents []Document, server string) []MentionedCall {
	tools, prompts, uris, methods := newMentions("any-other-tool"), newMentions("any-other-prompt"), newMentions("any-other:uri"), newMentions("any-other/method")
	for _, r := range rulesAbout(documents, server) {
		if r.Tool != "" {
			tools.add(Mention{Name: r.Tool})
		}
		tools.addPatterns(r.Match.Tool...)
		prompts.addPatterns(r.Match.Prompt...)
		uris.addPatterns(r.Match.URI...)
		methods.addPatterns(r.Match.Method...)
	}
	for _, method := range append(mcpmethod.All(), "notifications/any-other") {
		methods.add(Mention{Name: method})
	}
	var out []MentionedCall
	for _, name := range tools.all {
		if validTool(name.Name) {
			out = append(out, MentionedCall{Mention: name})
		}
	}
	for _, method := range methods.all {
		if !needsRule(method.Name) {
			continue
		}
		if method.Name != methodComplete {
			out = append(out, namedCalls(Call{Method: method.Name}, prompts.all, uris.all)...)
			continue
		}
		for _, ref := range []string{RefPrompt, RefResource} {
			out = append(out, namedCalls(Call{Method: method.Name, Ref: ref}, prompts.all, uris.all)...)
		}
	}
	return out
}

// needsRule reports whether messages with this method need a decision by the policy service. It returns false for
// tools/call.
func needsRule(method string) bool {
	return method != MethodToolsCall && !slices.Contains(mcpmethod.WithoutRule(), method)
}

// namedCalls returns one call for each prompt name or URI that a call with the given method can contain. If the method
// uses neither, namedCalls returns one call without a name.
func namedCalls(call Call, prompts, uris []Mention) []MentionedCall {
	names := []Mention{{}}
	switch call.nameKind() {
	case namesPrompt:
		names = prompts
	case namesResource:
		names = uris
	case namesNone, namesUnknown:
	}
	out := make([]MentionedCall, len(names))
	for i, name := range names {
		out[i] = MentionedCall{Method: call.Method, Ref: call.Ref, Mention: name}
	}
	return out
}

// rulesAbout returns the rules that apply to a server.
func rulesAbout(documents []Document, server string) (out []*Rule) {
	for i := range documents {
		d := &documents[i]
		if !homeOf(d).match(server) {
			continue
		}
		for j := range d.Rules {
			if compilePatterns(d.Rules[j].Match.Server).match(server) {
				out = append(out, &d.Rules[j])
			}
		}
	}
	return out
}

// maxCombined is the number of callers at which MentionedCallers stops adding callers that several rules match.
const maxCombined = 100

// MentionedCallers returns examples of callers. The first example is a caller that no document mentions. At most limit
// further examples follow.
//
// The next examples are callers that the rules in documents match, and callers that have a string from a condition that
// reads the caller. If these are more than limit, MentionedCallers omits some of them and returns false as the second
// result. The last examples are callers that several rules match, for example with the principal of one rule and the
// agent of another. They are added only up to the limit, and only while there are at most 100 examples. They do not
// affect the second result.
func MentionedCallers(documents []Document, limit int) (out []Subject, complete bool) {
	seen := make(map[string]bool)
	complete = true
	add := func(s Subject) (added bool) {
		key := fmt.Sprintf("%q", []any{s.Caller, s.Chain})
		if seen[key] {
			return false
		}
		seen[key] = true
		if complete = len(out) <= limit; complete {
			out = append(out, s)
		}
		return complete
	}
	add(Subject{Caller: anyCaller()})
	var matched []Principal // the callers that rules match, without those that come from conditions
	for i := range documents {
		for j := range documents[i].Rules {
			r := &documents[i].Rules[j]
			examples := matchedCallers(&r.Match)
			for _, p := range append(examples, r.callersWithJWT(examples)...) {
				if add(Subject{Caller: p}) {
					matched = append(matched, p)
				}
			}
			for _, s := range callersInCondition(r.When) {
				add(s)
			}
		}
	}
	for i := 0; i < len(matched) && len(out) <= min(limit, maxCombined); i++ { // the list grows during the loop
		for j := range i {
			if p, ok := combined(&matched[i], &matched[j]); ok && len(out) <= min(limit, maxCombined) && add(Subject{Caller: p}) {
				matched = append(matched, p)
			}
		}
	}
	return out, complete
}

// combined returns a caller that has the properties of both a and b. A property with the value from [anyCaller] counts
// as absent. combined returns false if a and b have different tenants, subjects or agents.
func combined(a, b *Principal) (out Principal, ok bool) {
	other := anyCaller()
	ok = true
	either := func(x, y, unset string) string {
		if x == unset {
			return y
		}
		ok = ok && (y == unset || x == y)
		return x
	}
	union := func(x, y []string) []string { return distinct(slices.Concat(x, y)) }
	return Principal{
		Tenant: either(a.Tenant, b.Tenant, other.Tenant), Name: either(a.Name, b.Name, other.Name), Agent: either(a.Agent, b.Agent, other.Agent),
		Groups: union(a.Groups, b.Groups), Issuer: either(a.Issuer, b.Issuer, ""), Scopes: union(a.Scopes, b.Scopes),
	}, ok
}

func anyCaller() Principal {
	return Principal{Tenant: "default", Name: "any-other-caller", Agent: "any-other-agent"}
}

// matchedCallers returns examples of the callers that a rule matches.
func matchedCallers(m *Match) (out []Principal) {
	for i := range max(len(m.Agent), len(m.Principal), len(m.Groups), len(m.Tenant)) {
		p := anyCaller()
		set := func(value *string, patterns []string) {
			if len(patterns) > 0 {
				*value = exampleOf(patterns[min(i, len(patterns)-1)]).Name
			}
		}
		set(&p.Agent, m.Agent)
		set(&p.Name, m.Principal)
		set(&p.Tenant, m.Tenant)
		if len(m.Groups) > 0 {
			p.Groups = []string{exampleOf(m.Groups[min(i, len(m.Groups)-1)]).Name}
		}
		out = append(out, p)
	}
	return out
}

// callersWithJWT returns examples of callers with a JWT, if the rule requires scopes. For each given caller, it returns
// an example without scopes and an example with the required scopes.
func (r *Rule) callersWithJWT(matched []Principal) (out []Principal) {
	if len(r.NeedsScope) == 0 {
		return nil
	}
	if len(matched) == 0 {
		matched = []Principal{anyCaller()}
	}
	for _, p := range matched {
		p.Issuer = "any-issuer"
		out = append(out, p)
		p.Scopes = r.NeedsScope
		out = append(out, p)
	}
	return out
}

// callersInCondition returns callers for which the result of a condition could be different than for other callers.
func callersInCondition(when string) (out []Subject) {
	c, err := condition.Compile(when)
	if err != nil || c.Variables()&condition.VariableCaller == 0 {
		return out
	}
	for _, text := range c.Literals() {
		if text == "" {
			continue
		}
		subject, agent, group, tenant := anyCaller(), anyCaller(), anyCaller(), anyCaller()
		subject.Name, agent.Agent, group.Groups, tenant.Tenant = text, text, []string{text}, text
		examples := []Principal{subject, agent, group, tenant}
		if strings.Contains(when, "issuer") || strings.Contains(when, "client") || strings.Contains(when, "scopes") {
			issuer, client, scope := anyCaller(), anyCaller(), anyCaller()
			issuer.Issuer, client.Client, scope.Scopes = text, text, []string{text}
			examples = append(examples, issuer, client, scope)
		}
		for _, p := range examples {
			out = append(out, Subject{Caller: p})
			if strings.Contains(when, "caller.chain") {
				out = append(out, Subject{Caller: anyCaller(), Chain: []Principal{p}})
			}
		}
	}
	return out
}

// mentions collects distinct names.
type mentions struct {
	all  []Mention
	seen map[string]bool
}

// newMentions returns mentions with an example of the names that are not in the documents. If this example is empty,
// the result contains no example.
func newMentions(other string) *mentions {
	m := &mentions{seen: make(map[string]bool)}
	if other != "" {
		m.add(Mention{Name: other, Pattern: AnyOther})
	}
	return m
}

func (m *mentions) add(name Mention) {
	if !m.seen[name.Name] {
		m.seen[name.Name] = true
		m.all = append(m.all, name)
	}
}

func (m *mentions) addPatterns(patterns ...string) {
	for _, pattern := range patterns {
		if name := exampleOf(pattern); name.Name != "" {
			m.add(name)
		}
	}
}

// exampleOf returns an example of the names that a valid pattern matches.
func exampleOf(pattern string) Mention {
	g, _, _ := compileGlob(pattern)
	if g.exact {
		return Mention{Name: g.prefix}
	}
	var name strings.Builder
	name.WriteString(g.prefix)
	for _, r := range g.rest {
		switch r {
		case anyRun:
			name.WriteString("any")
		case anyOne:
			name.WriteString("x")
		default:
			name.WriteRune(r)
		}
	}
	return Mention{Name: name.String(), Pattern: pattern}
}

// PossibleClasses returns possible facts about a callable tool that is not in the catalog. The first facts have no
// classification. If the documents distinguish tools by classification, facts with each category and risk and facts
// with each tag in the documents follow. If the documents have more than maxTags tags, PossibleClasses ignores the
// remaining tags and returns false.
func PossibleClasses(documents []Document, server string, maxTags int) (out []Facts, complete bool) {
	out = []Facts{{Status: Callable}}
	distinguished := slices.ContainsFunc(documents, func(d Document) bool { return d.Default == DefaultByRisk })
	tags := newMentions("")
	for _, r := range rulesAbout(documents, server) {
		c, err := condition.Compile(r.When)
		distinguished = distinguished || r.Match.hasProperties() || err == nil && c.Variables()&condition.VariableTool != 0
		tags.addPatterns(r.Match.Tags...)
	}
	if !distinguished {
		return out, true
	}
	for _, category := range Categories() {
		for _, risk := range Risks() {
			out = append(out, Facts{Status: Callable, Category: category, Risk: risk, Sure: true})
		}
	}
	for _, tag := range tags.all[:min(len(tags.all), maxTags)] {
		out = append(out, Facts{Status: Callable, Category: "write", Risk: "medium", Tags: []string{tag.Name}, Sure: true})
	}
	return out, len(tags.all) <= maxTags
}
