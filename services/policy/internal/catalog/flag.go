package catalog

import (
	"maps"
	"slices"
)

// Flag says in a sentence why [Server.AcceptAll] leaves a definition out, so that it must be accepted by itself; empty
// if it is accepted with the others. looks is the result of [Server.Looks].
func (d *Definition) Flag(name string, looks map[string][]string) string {
	switch {
	case d.Class.Category == 0:
		return "it can't be read as the definition of a tool"
	case slices.Contains(d.Class.Tags, "speaks-to-the-model"):
		return "it tells the model what to do, in addition to what the tool does"
	case slices.Contains(d.Class.Tags, "hidden-text"):
		return "it has characters that are not visible"
	case len(looks[Look(name)]) > 1:
		return "its name looks like that of another tool of the server"
	default:
		return ""
	}
}

// NewlyWaiting returns the names, sorted, of the tools with a definition that the gateway has listed itself, that
// waits in the later state of the server, and that did not wait, or was not listed by the gateway, in this one.
// Definitions that only sessions have listed are left out, because they stop only those sessions.
func (s *Server) NewlyWaiting(later *Server) []string {
	forAll := func(d *Definition) bool {
		return d != nil && d.State == Waiting && (d.By == "" || len(d.Whole) > 0)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(later.Tools)) {
		before, now := s.Tools[name], later.Tools[name]
		if now == before {
			continue
		}
		if slices.ContainsFunc(now.Waiting(), func(d Digest) bool { return forAll(now.Of(d)) && !forAll(before.Of(d)) }) {
			out = append(out, name)
		}
	}
	return out
}
