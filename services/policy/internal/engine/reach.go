package engine

import "slices"

// A Reach says what a subject may do on a server, with any method, tool and arguments. The zero value says that it may
// do nothing, and that something may be hidden from it.
type Reach struct {
	// Some says that some call could be allowed or wait for approval. If it is false, [Set.Decide] denies every call of
	// the subject on the server except the protocol's notifications, which must not reach the server for such a
	// subject. If it is true, every call may still be denied.
	Some bool
	// HidesNone says that no rule hides a tool of the server from the subject or from a principal behind it.
	HidesNone bool
	// Lists says that a list of the server's tools could show the subject a tool: see [Set.Visible].
	Lists bool
	// PromptsAlike says that no rule distinguishes prompts of the server by name for the subject or a principal behind
	// it. ResourcesAlike says the same of resources and their URIs.
	PromptsAlike, ResourcesAlike bool
}

// Reach returns what a subject may do on a server. It errs towards "some": a pattern counts unless one deny covers all
// of it. Its time grows with the number of rules, and with nothing that a caller controls.
func (s *Set) Reach(subject Subject, server string) Reach {
	call := Call{Server: server, Tool: "any", Subject: subject, Facts: Facts{Standing: Callable, whatever: true}}
	if refusal(&call) != "" {
		return Reach{}
	}
	tools, methods := s.wallsOf(&subject, server, (*rule).toolPatterns), s.wallsOf(&subject, server, (*rule).methodPatterns)
	tools.judged = true
	out := Reach{HidesNone: !tools.hides}
	out.PromptsAlike, out.ResourcesAlike = s.alike(&subject, server)
	opens := s.opensTool(tools, &call) || s.opensPattern(tools, &call)
	out.Some = opens || methods.opensToAll(&subject)
	out.Lists = opens || s.listsDenied(&call)
	return out
}

// listsDenied reports whether a tool that is denied to the subject could be listed, because the refusal gives a
// reason. It errs towards true: a pattern counts unless one rule that hides covers all of it.
func (s *Set) listsDenied(call *Call) bool {
	hiding := s.wallsOf(&call.Subject, call.Server, func(r *rule) patterns {
		if r.Action != ActionHide {
			return nil
		}
		return r.toolPatterns()
	})
	for _, r := range s.rules {
		speaks := r.Action == ActionDeny && r.Reason != "" || r.Action == ActionRequireApproval
		if !speaks || !r.home.match(call.Server) || !r.servers.match(call.Server) || !concernsAny(r, &call.Subject) {
			continue
		}
		for _, g := range r.toolPatterns() {
			if !hiding.covers(&g) && (!g.exact || r.classed || s.saysWhy(call, g.prefix)) {
				return true
			}
		}
	}
	return false
}

// saysWhy reports whether a refusal of a tool's call gives a reason.
func (s *Set) saysWhy(call *Call, tool string) bool {
	of := *call
	of.Tool = tool
	var space [16]*rule
	v := s.judge(s.find(space[:0], &of), &of)
	return v.decision(&of).Message != ""
}

// opensToAll reports whether each principal of the subject has a pattern that is not denied as a whole.
func (w *walls) opensToAll(subject *Subject) bool {
	for i := range subject.size() {
		if !w.opensTo(subject.at(i)) {
			return false
		}
	}
	return true
}

// walls are the rules about a server that concern a subject, with the names that they deny.
type walls struct {
	// names returns the patterns of a rule that count here: for tools, or for methods.
	names func(*rule) patterns
	// judged says that names without a wildcard are decided one by one.
	judged bool
	// opening are the rules that allow something to a principal of the subject or require approval for it.
	opening []*rule
	// starts are the starts of names that are denied whatever follows, and same the other denied patterns.
	starts map[string]bool
	same   map[string]bool
	// shortest and longest bound the lengths of starts, in bytes.
	shortest, longest int
	hides             bool
}

// wallsOf sorts the rules about a server that have patterns for some names.
func (s *Set) wallsOf(subject *Subject, server string, names func(*rule) patterns) *walls {
	w := &walls{names: names, starts: make(map[string]bool), same: make(map[string]bool)}
	for _, r := range s.rules {
		if r.Action == ActionNone || len(names(r)) == 0 || !r.home.match(server) || !r.servers.match(server) || !concernsAny(r, subject) {
			continue
		}
		if r.Action == ActionAllow || r.Action == ActionRequireApproval {
			w.opening = append(w.opening, r)
			continue
		}
		w.hides = w.hides || r.Action == ActionHide
		if r.classed || r.Match.named() { // these names don't show which tools or calls it denies
			continue
		}
		for _, g := range names(r) {
			w.deny(&g)
		}
	}
	return w
}

// toolPatterns returns the patterns for the tools that a rule concerns: one for all tools if it names none, nil if it
// concerns no tool.
func (r *rule) toolPatterns() patterns {
	switch {
	case !r.ofTools:
		return nil
	case len(r.tools) == 0:
		return patterns{anything()}
	}
	return r.tools
}

// methodPatterns returns the patterns for the methods other than tools/call that a rule concerns.
func (r *rule) methodPatterns() patterns {
	if !r.ofMethods {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(r.methods), func(g glob) bool { return g.exact && g.prefix == MethodToolsCall })
}

func anything() glob { return glob{rest: []rune{anyRun}} }

func (w *walls) deny(g *glob) {
	if !g.open() {
		w.same[g.key()] = true
		return
	}
	if len(w.starts) == 0 {
		w.shortest = len(g.prefix)
	}
	w.starts[g.prefix] = true
	w.shortest, w.longest = min(w.shortest, len(g.prefix)), max(w.longest, len(g.prefix))
}

// covers reports whether one deny concerns every name that g matches.
func (w *walls) covers(g *glob) bool {
	if w.same[g.key()] {
		return true
	}
	if len(w.starts) == 0 {
		return false
	}
	for n := w.shortest; n <= min(w.longest, len(g.prefix)); n++ {
		if w.starts[g.prefix[:n]] {
			return true
		}
	}
	return false
}

// open reports whether g matches everything that starts with its prefix.
func (g *glob) open() bool {
	for _, r := range g.rest {
		if r != anyRun {
			return false
		}
	}
	return !g.exact
}

// key is the same for globs that are written alike.
func (g *glob) key() string { return g.prefix + "\x00" + string(wildcards(g.rest)) }

// wildcards returns the rest of a pattern with its wildcards as characters that no pattern contains.
func wildcards(rest []rune) []rune {
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

// opensTool reports whether a call of a tool that an opening rule names would not be denied. Such tools are decided as
// a call of them would be.
func (s *Set) opensTool(w *walls, call *Call) bool {
	for _, r := range w.opening {
		for _, g := range r.tools {
			if !g.exact || w.covers(&g) {
				continue
			}
			call.Tool = g.prefix
			var space [16]*rule
			rules := s.find(space[:0], call)
			v := s.judge(rules, call)
			// Two rules without a common approver group may concern different tools.
			apart := v.conflict[0] != nil && slices.ContainsFunc(rules, func(r *rule) bool { return r.classed })
			if apart || v.decision(call).Effect != Deny {
				return true
			}
		}
	}
	return false
}

// opensPattern reports whether each principal of the subject has a pattern, or a default, that is not denied as a
// whole. It does not check that the patterns have a name in common.
func (s *Set) opensPattern(w *walls, call *Call) bool {
	all := anything()
	byDefault := s.fallbacks.find(call.Server).opens() && !w.covers(&all)
	for i := range call.Subject.size() {
		if !byDefault && !w.opensTo(call.Subject.at(i)) {
			return false
		}
	}
	return true
}

// opensTo reports whether a pattern of an opening rule that concerns the principal is not denied as a whole.
func (w *walls) opensTo(p *Principal) bool {
	for _, r := range w.opening {
		if !r.concerns(p) {
			continue
		}
		for _, g := range w.names(r) {
			if (!g.exact || !w.judged) && !w.covers(&g) {
				return true
			}
		}
	}
	return false
}
