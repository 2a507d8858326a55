package catalog

import (
	"maps"
	"slices"
)

// Flag returns the reason why [Server.AcceptAll] does not accept a definition, so that an operator must accept it
// individually. It returns "" if AcceptAll accepts the definition. bySkeleton must be the result of
// [Server.NamesBySkeleton].
func (d *Definition) Flag(name string, bySkeleton map[string][]string) string {
	switch {
	case d.Class.Category == 0:
		return "it can't be read as the definition of a tool"
	case slices.Contains(d.Class.Tags, "speaks-to-the-model"):
		return "it tells the model what to do, in addition to what the tool does"
	case slices.Contains(d.Class.Tags, "hidden-text"):
		return "it has characters that are not visible"
	case len(bySkeleton[Skeleton(name)]) > 1:
		return "its name looks like that of another tool of the server"
	default:
		return ""
	}
}

// NewlyWaiting compares the server s with a later state of the same server. It returns the sorted names of the tools
// that have a waiting definition for all sessions in the later state but not in s. A definition that waits for an
// operator's decision affects all sessions if the gateway itself has listed it, or if it is in the newest whole list of
// a protocol version.
func (s *Server) NewlyWaiting(later *Server) []string {
	forAll := func(d *Definition) bool {
		return d != nil && d.State == Waiting && (d.ListedTo == "" || len(d.WholeVersions) > 0)
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(later.Tools)) {
		before, now := s.Tools[name], later.Tools[name]
		if now == before {
			continue
		}
		if slices.ContainsFunc(now.Waiting(), func(d Digest) bool { return forAll(now.FindDefinition(d)) && !forAll(before.FindDefinition(d)) }) {
			out = append(out, name)
		}
	}
	return out
}
