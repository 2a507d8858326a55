package engine

import "slices"

// An Access summarizes what a caller may do on a server, over all methods, tools and arguments. The zero value means
// that every call is denied, and that tools may be hidden.
type Access struct {
	// CouldAllow reports whether some call could be allowed or require approval. If it is false, [Set.Decide] denies
	// every call by the caller on the server except the protocol's notifications, which the gateway must then drop.
	// Even if it is true, every call may be denied.
	CouldAllow bool
	// HidesNone is true if no rule hides any of the server's tools from the caller or a principal in the delegation
	// chain.
	HidesNone bool
	// CouldList reports whether a tool of the server could be visible to the caller; see [Set.Visible].
	CouldList bool
	// PromptsAlike is true if all prompts of the server are treated alike, because no rule that applies to the caller
	// or a principal in the delegation chain distinguishes them by name. ResourcesAlike has the same meaning for the
	// server's resources and their URIs.
	PromptsAlike, ResourcesAlike bool
}

// Access returns what the caller and the principals in its delegation chain may do on a server. CouldAllow and
// CouldList may be true although every call is denied, because an allowed pattern is ignored only if a single denied
// pattern covers it. The running time depends only on the number of rules, and not on anything that a caller controls.
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

// couldListDenied reports whether a tool could be visible to the caller although calls to it are denied, because the
// denial has a reason. It may return true although no tool is visible, because a pattern is ignored only if a single
// hidden pattern covers it.
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

// hasReason reports whether the decision on a call of the given tool contains a message.
func (s *Set) hasReason(call *Call, tool string) bool {
	of := *call
	of.Tool, of.evaluations = tool, nil
	var space [16]*rule
	v := s.mostPermissive(s.find(space[:0], &of), &of)
	d := v.decision(&of)
	return v.givesReason(&d)
}

// permitsEach reports whether w.permits is true for the caller and for each principal in the delegation chain.
func (w *denials) permitsEach(subject *Subject) bool {
	for i := range subject.size() {
		if !w.permits(subject.at(i)) {
			return false
		}
	}
	return true
}

// denials contains the patterns for names that are denied to a caller on a server, and the rules that permit calls on
// that server. The names are either tool names or method names.
type denials struct {
	// names is a function that returns a rule's patterns for tool names, or a rule's patterns for method names.
	names func(*rule) patterns
	// skipsExact is true if names without a wildcard are ignored here, because [Set.permitsNamedTool] checks each of
	// these names.
	skipsExact bool
	// allowing contains the rules that allow calls by the caller or a principal in the delegation chain, or that
	// require approval for such calls.
	allowing []*rule
	// prefixes contains the denied prefixes. Each name that starts with a denied prefix is denied. The field keys
	// contains the keys of the other denied patterns; see [glob.key].
	prefixes map[string]bool
	keys     map[string]bool
	// shortest and longest are the minimum and the maximum length of a denied prefix, in bytes.
	shortest, longest int
	// hidesName is true if at least one rule hides names.
	hidesName bool
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
		if r.hasToolProperties || r.Match.hasNames() || r.when != nil { // the rule denies only some of the calls with these names
			continue
		}
		for _, g := range names(r) {
			w.deny(&g)
		}
	}
	return w
}

// toolPatterns returns the patterns for the tools that a rule matches. If the rule names no tool, the result is a
// single pattern that matches all tools. If the rule matches no tool, the result is nil.
func (r *rule) toolPatterns() patterns {
	switch {
	case !r.matchesTools:
		return nil
	case len(r.tools) == 0:
		return patterns{matchAll()}
	}
	return r.tools
}

// methodPatterns returns the patterns for the methods other than tools/call that a rule matches.
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

// isPrefix reports whether g matches every text that starts with g.prefix.
func (g *glob) isPrefix() bool {
	for _, r := range g.rest {
		if r != anyRun {
			return false
		}
	}
	return !g.exact
}

// key returns a text that is the same for two globs if and only if the globs are equal.
func (g *glob) key() string { return g.prefix + "\x00" + string(encodeWildcards(g.rest)) }

// encodeWildcards returns the rest of a pattern, with each wildcard replaced with a control character. Patterns
// themselves contain no control characters.
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

// permitsNamedTool reports whether a call to at least one tool is not denied. It checks the tools that the rules in
// w.allowing name without wildcards, and evaluates a call to each of these tools.
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
			// If rules conflict and one of them depends on the tool's properties, the rules may in fact match different
			// tools.
			apart := v.conflict[0] != nil && slices.ContainsFunc(rules, func(r *rule) bool { return r.hasToolProperties })
			if apart || v.decision(call).Effect != Deny {
				return true
			}
		}
	}
	return false
}

// permitsPattern reports whether for the caller and for each principal in the delegation chain there is a default or a
// pattern that permits names. A default or pattern does not count if a single denied pattern covers all names that it
// permits. permitsPattern does not check that the same name is permitted for all of these principals.
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

// permits reports whether a rule in w.allowing that matches the principal has a pattern that is not covered by a single
// denied pattern.
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
