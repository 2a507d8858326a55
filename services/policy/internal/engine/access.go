package engine

import "slices"

// An Access summarizes which calls a caller can make to a server, over all methods, tools and arguments. The zero value
// means that every call is denied, and that rules may hide tools.
type Access struct {
	// If CouldAllow is false, [Set.Decide] denies all of the caller's calls to the server. The only exceptions are the
	// protocol's notifications, which the gateway must then drop. If CouldAllow is true, some calls may be allowed or may
	// require approval, but this is not certain.
	CouldAllow bool
	// HidesNone is true if no rule hides a tool of the server from the caller or from a principal in the delegation chain.
	HidesNone bool
	// CouldList is true unless [Set.Visible] certainly returns false for all tools of the server.
	CouldList bool
	// PromptsAlike is true if all decisions on the server's prompts are the same. This is the case if no rule that applies
	// to the caller or a principal in the delegation chain matches prompts by name. ResourcesAlike means the same for the
	// server's resources and their URIs.
	PromptsAlike, ResourcesAlike bool
}

// Access returns the access of the caller and the principals in its delegation chain to a server. CouldAllow and
// CouldList can be true although every call is denied. The reason is that Access compares an allowed pattern with one
// denied pattern at a time. It does not detect that several denied patterns together cover the allowed pattern. The
// running time depends only on the number of rules, and not on any value that a caller controls.
func (s *Set) Access(subject Subject, server string) Access {
	call := Call{Server: server, Tool: "any", Subject: subject, Facts: Facts{Status: Callable, anyTool: true}, listed: true}
	if refusal(&call) != "" {
		return Access{}
	}
	tools, methods := s.denialsFor(&subject, server, (*rule).toolPatterns), s.denialsFor(&subject, server, (*rule).methodPatterns)
	tools.skipsExact = true
	out := Access{HidesNone: !tools.hidesName}
	out.PromptsAlike, out.ResourcesAlike = s.namesAlike(&subject, server)
	opens := s.permitsNamedTool(tools, &call) || s.permitsPattern(tools, &call)
	out.CouldAllow = opens || methods.permitsEach(&subject)
	out.CouldList = opens || s.couldListDenied(&call)
	if s.enforced != nil && s.observesServer(server) {
		out.CouldAllow, out.CouldList, out.PromptsAlike, out.ResourcesAlike = true, true, true, true
	}
	return out
}

// couldListDenied reports whether a tool could be visible to the caller because a rule requires approval, or denies
// calls with a reason. It may return true although no tool is visible, because it does not detect that several hidden
// patterns together cover a pattern.
func (s *Set) couldListDenied(call *Call) bool {
	hiding := s.denialsFor(&call.Subject, call.Server, func(r *rule) patterns {
		if r.Action != ActionHide {
			return nil
		}
		return r.toolPatterns()
	})
	for _, r := range s.rules {
		speaks := r.Action == ActionDeny && r.Reason != "" || r.Action == ActionRequireApproval
		if !speaks || !r.documentServers.match(call.Server) || !r.servers.match(call.Server) || !matchesAnyPrincipal(r, &call.Subject) {
			continue
		}
		for _, g := range r.toolPatterns() {
			if !hiding.covers(&g) && (!g.exact || r.hasToolProperties || s.hasReason(call, g.prefix)) {
				return true
			}
		}
	}
	return false
}

// hasReason reports whether the decision on calls to the given tool comes from a rule that gives a reason.
func (s *Set) hasReason(call *Call, tool string) bool {
	of := *call
	of.Tool, of.evaluations = tool, nil
	var space [16]*rule
	v := s.mostPermissive(s.find(space[:0], &of), &of)
	d := v.decision(&of)
	return v.givesReason(&d)
}

// permitsEach reports whether [denials.permits] is true for the caller and for each principal in the delegation chain.
func (w *denials) permitsEach(subject *Subject) bool {
	for i := range subject.size() {
		if !w.permits(subject.at(i)) {
			return false
		}
	}
	return true
}

// denials contains the patterns for names that are denied to a caller on a server, and the rules that permit calls to
// this server. The names are either tool names or method names.
type denials struct {
	// names returns the patterns of a rule, either for tool names or for method names.
	names func(*rule) patterns
	// skipsExact is true if names without wildcards are ignored, because [Set.permitsNamedTool] checks them.
	skipsExact bool
	// allowing contains the rules that allow calls or require approval for them, and that match the caller or a principal
	// in the delegation chain.
	allowing []*rule
	// prefixes contains the prefixes of patterns that deny all names with this prefix. keys contains the result of
	// [glob.key] for each other denied pattern.
	prefixes map[string]bool
	keys     map[string]bool
	// shortest and longest are the lengths in bytes of the shortest and the longest denied prefix.
	shortest, longest int
	hidesName         bool
}

// denialsFor collects the rules for a server that match the caller or a principal in the delegation chain. The
// parameter names is a function that returns the patterns to collect from a rule.
func (s *Set) denialsFor(subject *Subject, server string, names func(*rule) patterns) *denials {
	w := &denials{names: names, prefixes: make(map[string]bool), keys: make(map[string]bool)}
	for _, r := range s.rules {
		if r.Action == ActionNone || len(names(r)) == 0 || !r.documentServers.match(server) || !r.servers.match(server) || !matchesAnyPrincipal(r, subject) {
			continue
		}
		if r.Action == ActionAllow || r.Action == ActionRequireApproval {
			w.allowing = append(w.allowing, r)
			continue
		}
		w.hidesName = w.hidesName || r.Action == ActionHide
		if r.hasToolProperties || r.Match.hasNames() || r.when != nil { // the rule denies only some calls with these names
			continue
		}
		for _, g := range names(r) {
			w.deny(&g)
		}
	}
	return w
}

// toolPatterns returns the patterns for the tools that a rule matches. If the rule does not restrict the tools, it
// returns a single pattern that matches all tools. If the rule does not match tools/call, it returns nil.
func (r *rule) toolPatterns() patterns {
	switch {
	case !r.matchesTools:
		return nil
	case len(r.tools) == 0:
		return patterns{matchAll()}
	}
	return r.tools
}

// methodPatterns returns the patterns for the methods that a rule matches, without tools/call.
func (r *rule) methodPatterns() patterns {
	if !r.matchesMethods {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.methods), func(g glob) bool { return g.exact && g.prefix == MethodToolsCall })
}

func matchAll() glob { return glob{rest: []rune{anyRun}} }

func (w *denials) deny(g *glob) {
	if !g.isPrefix() {
		w.keys[g.key()] = true
		return
	}
	if len(w.prefixes) == 0 {
		w.shortest = len(g.prefix)
	}
	w.prefixes[g.prefix] = true
	w.shortest, w.longest = min(w.shortest, len(g.prefix)), max(w.longest, len(g.prefix))
}

// covers reports whether a single denied pattern matches every name that g matches.
func (w *denials) covers(g *glob) bool {
	if w.keys[g.key()] {
		return true
	}
	if len(w.prefixes) == 0 {
		return false
	}
	for n := w.shortest; n <= min(w.longest, len(g.prefix)); n++ {
		if w.prefixes[g.prefix[:n]] {
			return true
		}
	}
	return false
}

// isPrefix reports whether g matches exactly the strings that start with g.prefix.
func (g *glob) isPrefix() bool {
	for _, r := range g.rest {
		if r != anyRun {
			return false
		}
	}
	return !g.exact
}

// key returns a string that identifies the pattern. Two globs have the same key if and only if they are equal.
func (g *glob) key() string { return g.prefix + "\x00" + string(encodeWildcards(g.rest)) }

// encodeWildcards replaces the wildcards in the rest of a pattern with control characters. The result is unambiguous
// because patterns contain no control characters.
func encodeWildcards(rest []rune) []rune {
	out := make([]rune, len(rest))
	for i, r := range rest {
		switch r {
		case anyRun:
			out[i] = 1
		case anyOne:
			out[i] = 2
		default:
			out[i] = r
		}
	}
	return out
}

// permitsNamedTool reports whether calls to at least one tool may be permitted. It makes a decision for each tool that
// is named without wildcards in w.allowing.
func (s *Set) permitsNamedTool(w *denials, call *Call) bool {
	for _, r := range w.allowing {
		for _, g := range r.tools {
			if !g.exact || w.covers(&g) {
				continue
			}
			call.Tool, call.evaluations = g.prefix, nil
			var space [16]*rule
			rules := s.find(space[:0], call)
			v := s.mostPermissive(rules, call)
			// If the conflicting rules depend on tool properties, they might match different tools and not conflict.
			apart := v.conflict[0] != nil && slices.ContainsFunc(rules, func(r *rule) bool { return r.hasToolProperties })
			if apart || v.decision(call).Effect != Deny {
				return true
			}
		}
	}
	return false
}

// permitsPattern reports whether the caller and each principal in the delegation chain may use some name because of a
// default or a pattern. A default or pattern does not count if a single denied pattern covers all its names.
// permitsPattern does not check whether all these principals may use the same names.
func (s *Set) permitsPattern(w *denials, call *Call) bool {
	all := matchAll()
	byDefault := s.fallbacks.find(call.Server).permits() && !w.covers(&all)
	for i := range call.Subject.size() {
		if !byDefault && !w.permits(call.Subject.at(i)) {
			return false
		}
	}
	return true
}

// permits reports whether a rule in w.allowing that matches the principal has a pattern that no single denied pattern
// covers.
func (w *denials) permits(p *Principal) bool {
	for _, r := range w.allowing {
		if !r.matchesPrincipal(p) {
			continue
		}
		for _, g := range w.names(r) {
			if (!g.exact || !w.skipsExact) && !w.covers(&g) {
				return true
			}
		}
	}
	return false
}
