package engine

import (
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/mcpmethod"
	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// The methods whose params name a prompt or a resource, and the kinds of completions (MCP 2025-11-25, Completion,
// Reference Types).
const (
	methodGetPrompt   = "prompts/get"
	methodRead        = "resources/read"
	methodSubscribe   = "resources/subscribe"
	methodUnsubscribe = "resources/unsubscribe"
	methodComplete    = "completion/complete"

	// RefPrompt and RefResource are the kinds of completions.
	RefPrompt   = "ref/prompt"
	RefResource = "ref/resource"
)

// promptMethods and uriMethods are the methods that a rule with a prompt, or with a uri, can concern.
var (
	promptMethods = []string{methodGetPrompt, methodComplete}
	uriMethods    = []string{methodRead, methodSubscribe, methodUnsubscribe, methodComplete}
)

// askable are the methods that can require approval: requests that run once and name what they concern.
var askable = []string{MethodToolsCall, methodGetPrompt, methodRead}

// asksWell reports whether every method that the match concerns can require approval.
func (m *Match) asksWell() bool {
	patterns := compilePatterns(m.methods())
	if !m.named() {
		return !slices.ContainsFunc(patterns, func(g glob) bool { return !g.exact || !slices.Contains(askable, g.prefix) })
	}
	named := Match{Prompt: m.Prompt, URI: m.URI}
	return !slices.ContainsFunc(named.methods(), func(method string) bool { return patterns.match(method) && !slices.Contains(askable, method) })
}

// naming is the kind of thing that a call names.
type naming uint8

const (
	// namesNone means that the call names neither a prompt nor a resource.
	namesNone naming = iota
	namesPrompt
	namesResource
	// namesUnknown means a completion that does not state its kind.
	namesUnknown
)

func (c *Call) naming() naming {
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

// readings are the URIs that readers could take the URI of a call for.
type readings struct {
	// plain says why the URI is not plain; nil if it is plain.
	plain error
	// folded are the readings of a plain URI, in lower case.
	folded []string
}

// uri returns the readings of the call's URI, computed once.
func (c *Call) uri() *readings {
	if c.read != nil {
		return c.read
	}
	c.read = new(readings)
	check, texts := locator.CheckResource, []string{c.Tool}
	if start, _, template := strings.Cut(c.Tool, "{"); template && c.Method == methodComplete {
		check, texts = locator.CheckTemplate, []string{c.Tool, start}
	}
	if c.read.plain = check(c.Tool); c.read.plain != nil {
		return c.read
	}
	for _, text := range texts {
		for _, reading := range locator.Readings(text) {
			c.read.folded = append(c.read.folded, strings.ToLower(reading))
		}
	}
	return c.read
}

// named reports whether the rule distinguishes prompts or resources.
func (m *Match) named() bool { return len(m.Prompt)+len(m.URI) > 0 }

// aboutName reports whether a call of a method other than [MethodToolsCall] names what the rule requires. Each server
// reads URIs in its own way. A rule that allows therefore matches only plain URIs exactly as written; any other rule
// also matches what a reader could take for a URI that it names, and every URI that is not plain.
func (r *rule) aboutName(call *Call) bool {
	if len(r.prompts)+len(r.uris) == 0 {
		return true
	}
	switch call.naming() {
	case namesPrompt:
		return len(r.prompts) > 0 && r.prompts.match(call.Tool)
	case namesResource:
		return len(r.uris) > 0 && r.matchesURI(call)
	case namesUnknown:
		return r.Action != ActionAllow
	case namesNone:
	}
	return false
}

func (r *rule) matchesURI(call *Call) bool {
	if r.Action == ActionAllow {
		return r.matchesWritten(call)
	}
	read := call.uri()
	return read.plain != nil || slices.ContainsFunc(read.folded, r.foldedURIs.match)
}

// matchesWritten reports whether the URI of a call is plain and matches the rule exactly as written.
func (r *rule) matchesWritten(call *Call) bool {
	return call.uri().plain == nil && r.uris.match(call.Tool)
}

// isOpened reports whether one of the rules, which match the call, allows it to a principal, or requires approval for
// a URI that it names as written. A rule that requires approval does not open what could merely be taken for such a
// URI; it only adds approval if another rule allows it.
func isOpened(rules []*rule, call *Call, p *Principal) bool {
	return slices.ContainsFunc(rules, func(r *rule) bool {
		asks := r.Action == ActionRequireApproval && (len(r.uris) == 0 || r.matchesWritten(call))
		return (asks || r.Action == ActionAllow) && r.concerns(p)
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

// A Listed is the kind of entry that a list or a notification contains.
type Listed uint8

// The kinds of entries.
const (
	// ListedPrompt is the name of a prompt, decided as prompts/get.
	ListedPrompt Listed = iota
	// ListedResource is the URI of a resource, decided as resources/read.
	ListedResource
	// ListedTemplate is a template of URIs.
	ListedTemplate
	// ListedUpdate is the URI of a changed resource, decided as resources/subscribe.
	ListedUpdate
)

// Shows reports whether a subject may see an entry of a server's list, or be notified of it: whether a call that names
// it is allowed or requires approval. A template is shown unless the part before its first expression shows that every
// URI of it is denied.
func (s *Set) Shows(subject Subject, server string, what Listed, name string, facts Facts) bool {
	call := Call{Server: server, Tool: name, Subject: subject, Facts: facts}
	switch what {
	case ListedPrompt:
		call.Method = methodGetPrompt
	case ListedUpdate:
		call.Method = methodSubscribe
	case ListedResource:
		call.Method = methodRead
	case ListedTemplate:
		call.Method = methodRead
		if start, _, template := strings.Cut(name, "{"); template {
			return s.could(&call, start)
		}
	}
	if code, _ := facts.Standing.refusal(""); code != "" || refusal(&call) != "" {
		return false
	}
	var space [16]*rule
	return s.judge(s.find(space[:0], &call), &call).decision(&call).Effect != Deny
}

// Could reports whether some call of a method could be allowed or wait for approval, whatever the call names. It errs
// towards true. The method must not be [MethodToolsCall].
func (s *Set) Could(subject Subject, server, method string, facts Facts) bool {
	return s.could(&Call{Method: method, Server: server, Subject: subject, Facts: facts}, "")
}

// could reports whether a call that names something with the start could be allowed or wait for approval.
func (s *Set) could(call *Call, start string) bool {
	if code, _ := call.Facts.Standing.refusal(call.Server); code != "" || refusal(call) != "" {
		return false
	}
	for i := range call.Subject.size() {
		p, opened := call.Subject.at(i), slices.Contains(mcpmethod.Notifications(), call.Method)
		for _, r := range s.others {
			if !r.home.match(call.Server) || !r.servers.match(call.Server) || !r.methods.match(call.Method) || !r.concerns(p) {
				continue
			}
			switch r.Action {
			case ActionAllow, ActionRequireApproval:
				opened = opened || r.opens(start)
			case ActionDeny, ActionHide:
				if r.closes(call.Method, start) {
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

// opens reports whether a rule that allows, or requires approval, may open something with the start.
func (r *rule) opens(start string) bool {
	return len(r.uris) == 0 || slices.ContainsFunc(r.uris, func(g glob) bool {
		return strings.HasPrefix(g.prefix, start) || !g.exact && strings.HasPrefix(start, g.prefix)
	})
}

// closes reports whether a rule that denies concerns everything with the start that a call of the method may name.
func (r *rule) closes(method, start string) bool {
	switch {
	case len(r.prompts)+len(r.uris) == 0:
		return true
	case method == methodComplete: // which may be for a prompt or a resource
		return false
	case !slices.Contains((&Match{Prompt: r.Match.Prompt, URI: r.Match.URI}).methods(), method): // which does not name such a thing
		return false
	}
	all := func(g glob) bool { return g.open() && strings.HasPrefix(strings.ToLower(start), g.prefix) }
	return slices.ContainsFunc(r.prompts, all) || slices.ContainsFunc(r.foldedURIs, all)
}

// alike reports whether no rule distinguishes prompts, and whether none distinguishes resources, of a server for a
// subject.
func (s *Set) alike(subject *Subject, server string) (prompts, resources bool) {
	prompts, resources = true, true
	for _, r := range s.others {
		if r.Action == ActionNone || !r.Match.named() || !r.home.match(server) || !r.servers.match(server) || !concernsAny(r, subject) {
			continue
		}
		prompts, resources = prompts && len(r.prompts) == 0, resources && len(r.uris) == 0
	}
	return prompts, resources
}
