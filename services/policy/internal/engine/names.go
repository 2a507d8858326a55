package engine

import (
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// These are the methods whose params contain the name of a prompt or the URI of a resource. RefPrompt and RefResource
// are the types of references in completion requests (MCP 2025-11-25, Completion, Reference Types).
const (
	methodGetPrompt   = "prompts/get"
	methodRead        = "resources/read"
	methodSubscribe   = "resources/subscribe"
	methodUnsubscribe = "resources/unsubscribe"
	methodComplete    = "completion/complete"

	// RefPrompt and RefResource say whether a completion request is about a prompt or a resource.
	RefPrompt   = "ref/prompt"
	RefResource = "ref/resource"
)

// promptMethods contains the methods that a rule with Match.Prompt can match. uriMethods contains the methods that a
// rule with Match.URI can match.
var (
	promptMethods = []string{methodGetPrompt, methodComplete}
	uriMethods    = []string{methodRead, methodSubscribe, methodUnsubscribe, methodComplete}
)

// approvableMethods contains the methods that can require approval. Each call with such a method names a tool, a prompt
// or a resource. Unlike subscriptions, these calls have no effect after their response.
var approvableMethods = []string{MethodToolsCall, methodGetPrompt, methodRead}

// allApprovable reports whether m can match only methods that can require approval.
func (m *Match) allApprovable() bool {
	patterns := compilePatterns(m.methods())
	if !m.hasNames() {
		return !slices.ContainsFunc(patterns, func(g glob) bool { return !g.exact || !slices.Contains(approvableMethods, g.prefix) })
	}
	named := Match{Prompt: m.Prompt, URI: m.URI}
	return !slices.ContainsFunc(named.methods(), func(method string) bool { return patterns.match(method) && !slices.Contains(approvableMethods, method) })
}

// nameKind says whether a call names a prompt or a resource.
type nameKind uint8

const (
	// namesNone means that the call names neither a prompt nor a resource.
	namesNone nameKind = iota
	namesPrompt
	namesResource
	// namesUnknown means a completion request that does not say whether it is about a prompt or a resource.
	namesUnknown
)

func (c *Call) nameKind() nameKind {
	switch c.Method {
	case methodGetPrompt:
		return namesPrompt
	case methodRead, methodSubscribe, methodUnsubscribe:
		return namesResource
	case methodComplete:
		switch c.Ref {
		case RefPrompt:
			return namesPrompt
		case RefResource:
			return namesResource
		}
		return namesUnknown
	}
	return namesNone
}

// uriReadings contains the ways in which servers could interpret the URI in a call.
type uriReadings struct {
	// notPlain is the reason why the URI is not plain. It is nil if the URI is plain.
	notPlain error
	// folded contains all interpretations of the URI in lower case. It is empty if the URI is not plain.
	folded []string
}

// uri returns the possible interpretations of the call's URI. They are computed only once for each call.
func (c *Call) uri() *uriReadings {
	if c.uriCache != nil {
		return c.uriCache
	}
	c.uriCache = new(uriReadings)
	check, texts := locator.CheckResource, []string{c.Tool}
	if start, _, template := strings.Cut(c.Tool, "{"); template && c.Method == methodComplete {
		check, texts = locator.CheckTemplate, []string{c.Tool, start}
	}
	if c.uriCache.notPlain = check(c.Tool); c.uriCache.notPlain != nil {
		return c.uriCache
	}
	for _, text := range texts {
		for _, reading := range locator.Readings(text) {
			c.uriCache.folded = append(c.uriCache.folded, strings.ToLower(reading))
		}
	}
	return c.uriCache
}

// hasNames reports whether m has Prompt or URI.
func (m *Match) hasNames() bool { return len(m.Prompt)+len(m.URI) > 0 }

// matchesName reports whether the rule matches the prompt or URI in a call. The call's method must not be
// [MethodToolsCall]. [Match] describes how URIs are compared.
func (r *rule) matchesName(call *Call) bool {
	if len(r.prompts)+len(r.uris) == 0 {
		return true
	}
	switch call.nameKind() {
	case namesPrompt:
		return len(r.prompts) > 0 && (call.anyName || r.prompts.match(call.Tool))
	case namesResource:
		return len(r.uris) > 0 && (call.anyName || r.matchesURI(call))
	case namesUnknown:
		return r.Action != ActionAllow || call.anyName
	case namesNone:
	}
	return false
}

func (r *rule) matchesURI(call *Call) bool {
	if r.Action == ActionAllow {
		return r.matchesExactURI(call)
	}
	read := call.uri()
	return read.notPlain != nil || slices.ContainsFunc(read.folded, r.foldedURIs.match)
}

// matchesExactURI reports whether the call's URI is plain and one of the rule's patterns matches it literally.
func (r *rule) matchesExactURI(call *Call) bool {
	return call.uri().notPlain == nil && r.uris.match(call.Tool)
}

// isAdmitted reports whether one of the rules admits the call for the principal with index i. A rule with ActionAllow
// admits all calls that it matches. A rule with ActionRequireApproval and patterns for URIs admits only calls for which
// [rule.matchesExactURI] is true. All given rules must match the call.
func isAdmitted(rules []*rule, call *Call, i int) bool {
	return slices.ContainsFunc(rules, func(r *rule) bool {
		admits := r.Action == ActionRequireApproval && (len(r.uris) == 0 || r.matchesExactURI(call))
		return (admits || r.Action == ActionAllow) && call.applies(r, i)
	})
}

// foldPatterns returns the patterns in lower case.
func foldPatterns(ps patterns) patterns {
	out := slices.Clone(ps)
	for i := range out {
		out[i].prefix = strings.ToLower(out[i].prefix)
		out[i].rest = slices.Clone(out[i].rest)
		for j, c := range out[i].rest {
			if 'A' <= c && c <= 'Z' {
				out[i].rest[j] = c + 'a' - 'A'
			}
		}
	}
	return out
}

// An EntryKind is the kind of name in an entry of a list or in a notification.
type EntryKind uint8

const (
	// EntryPrompt is the name of a prompt. It is decided like a prompts/get request.
	EntryPrompt EntryKind = iota
	// EntryResource is the URI of a resource. It is decided like a resources/read request.
	EntryResource
	// EntryTemplate is a URI template, which can produce many URIs.
	EntryTemplate
	// EntryUpdate is the URI of a changed resource. It is decided like a resources/subscribe request.
	EntryUpdate
)

// ShowsEntry reports whether a caller may see an entry in a server's list, or may receive the notification about it.
// The caller may if a call with this name or URI is allowed or requires approval. A template is visible unless the text
// before its first expression shows that all its URIs are denied. A stop does not hide entries in lists, but it
// prevents notifications.
func (s *Set) ShowsEntry(subject Subject, server string, what EntryKind, name string, facts Facts) bool {
	call := Call{Server: server, Tool: name, Subject: subject, Facts: facts, listed: true}
	switch what {
	case EntryPrompt:
		call.Method = methodGetPrompt
	case EntryUpdate:
		call.Method = methodSubscribe
	case EntryResource:
		call.Method = methodRead
	case EntryTemplate:
		call.Method = methodRead
		if start, _, template := strings.Cut(name, "{"); template {
			return s.couldAllow(&call, start)
		}
	}
	if code, _ := facts.Status.refusal(""); code != "" || refusal(&call) != "" {
		return false
	}
	if _, _, stopped := s.stops.find(&call); stopped && what == EntryUpdate {
		return false
	}
	if s.opens(&call) {
		return true
	}
	var space [16]*rule
	return s.mostPermissive(s.find(space[:0], &call), &call).decision(&call).Effect != Deny
}

// CouldAllow reports whether a call with the given method could be allowed or require approval. It may return true
// although all calls are denied. The method must not be [MethodToolsCall]. Stops affect the result only for
// notifications that contain data, because the gateway requests no further decision on such notifications.
func (s *Set) CouldAllow(subject Subject, server, method string, facts Facts) bool {
	call := Call{Method: method, Server: server, Subject: subject, Facts: facts}
	return s.couldAllow(&call, "") && !s.stopsNotification(&call)
}

// couldAllow implements CouldAllow for calls whose name or URI starts with the given text.
func (s *Set) couldAllow(call *Call, beginning string) bool {
	if code, _ := call.Facts.Status.refusal(call.Server); code != "" || refusal(call) != "" {
		return false
	}
	if s.opens(call) {
		return true
	}
	for i := range call.Subject.size() {
		p, opened := call.Subject.at(i), slices.Contains(mcpmethod.Notifications(), call.Method)
		for _, r := range s.others {
			if !r.documentServers.match(call.Server) || !r.servers.match(call.Server) || !r.methods.match(call.Method) || !r.matchesPrincipal(p) {
				continue
			}
			switch r.Action {
			case ActionAllow, ActionRequireApproval:
				opened = opened || r.mayAdmit(beginning)
			case ActionDeny, ActionHide:
				if r.when == nil && r.deniesAll(call.Method, beginning) {
					return false
				}
			case ActionNone:
			}
		}
		if !opened {
			return false
		}
	}
	return true
}

// mayAdmit reports whether a rule that permits calls could admit a URI that starts with the given text.
func (r *rule) mayAdmit(beginning string) bool {
	return len(r.uris) == 0 || slices.ContainsFunc(r.uris, func(g glob) bool {
		return strings.HasPrefix(g.prefix, beginning) || !g.exact && strings.HasPrefix(beginning, g.prefix)
	})
}

// deniesAll reports whether a rule that denies calls matches all calls with the given method whose name or URI starts
// with the given text.
func (r *rule) deniesAll(method, beginning string) bool {
	switch {
	case len(r.prompts)+len(r.uris) == 0:
		return true
	case method == methodComplete: // the completion may be about a prompt or a resource
		return false
	case !slices.Contains((&Match{Prompt: r.Match.Prompt, URI: r.Match.URI}).methods(), method): // the rule has no patterns for the names of this method
		return false
	}
	all := func(g glob) bool { return g.isPrefix() && strings.HasPrefix(strings.ToLower(beginning), g.prefix) }
	return slices.ContainsFunc(r.prompts, all) || slices.ContainsFunc(r.foldedURIs, all)
}

// namesAlike reports whether the rules for a server treat all prompts alike, and whether they treat all resources
// alike. Prompts are treated alike if no rule that applies to the caller or its delegation chain distinguishes prompts
// by name. The same applies to resources and their URIs.
func (s *Set) namesAlike(subject *Subject, server string) (prompts, resources bool) {
	prompts, resources = true, true
	for _, r := range s.others {
		distinguishes := r.Match.hasNames() || r.when != nil
		if r.Action == ActionNone || !distinguishes || !r.documentServers.match(server) || !r.servers.match(server) || !matchesAnyPrincipal(r, subject) {
			continue
		}
		prompts, resources = prompts && len(r.prompts) == 0 && r.when == nil, resources && len(r.uris) == 0 && r.when == nil
	}
	return prompts, resources
}
