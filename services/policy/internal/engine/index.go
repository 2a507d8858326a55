package engine

import (
	"cmp"
	"slices"
)

// An index finds the rules that may match a tool's name or a method on a server, without trying every rule in the set.
type index struct {
	// exact maps a name to the rules that have this name as a pattern without wildcards.
	exact map[indexKey][]*rule
	// prefixes maps a prefix to the rules that have a pattern with this prefix before its first wildcard.
	prefixes map[indexKey][]*rule
	// lengths contains the lengths of the prefixes in bytes, in ascending order.
	lengths []int
}

// An indexKey consists of a server and a name or the prefix of a name. The server is empty for rules for which
// [rule.namedServers] returns an empty name.
type indexKey struct{ server, name string }

func newIndex() index {
	return index{exact: make(map[indexKey][]*rule), prefixes: make(map[indexKey][]*rule)}
}

// add adds a rule under its patterns for tools or methods. Rules must be added in the order of Set.rules.
func (x *index) add(r *rule, names patterns) {
	for _, server := range r.namedServers() {
		if len(names) == 0 {
			x.addPrefix(indexKey{server, ""}, r)
		}
		for _, g := range names {
			key := indexKey{server, g.prefix}
			if g.exact {
				x.exact[key] = append(x.exact[key], r)
			} else {
				x.addPrefix(key, r)
			}
		}
	}
}

func (x *index) addPrefix(key indexKey, r *rule) {
	if list := x.prefixes[key]; len(list) == 0 || list[len(list)-1] != r {
		x.prefixes[key] = append(list, r)
	}
	x.lengths = append(x.lengths, len(key.name))
}

func (x *index) finish() {
	slices.Sort(x.lengths)
	x.lengths = slices.Compact(x.lengths)
}

// namedServers returns the servers that a rule's document names, or else the servers that the rule names, if all of
// these names are without wildcards. If neither the document nor the rule has only such names, the result contains one
// empty name.
func (r *rule) namedServers() []string {
	for _, ps := range []patterns{r.documentServers, r.servers} {
		if len(ps) == 0 || slices.ContainsFunc(ps, func(g glob) bool { return !g.exact }) {
			continue
		}
		var names []string
		for _, g := range ps {
			names = append(names, g.prefix)
		}
		return names
	}
	return []string{""}
}

// find appends the rules that match a call, regardless of the principal, to found. The slice found must be empty. The
// rules are distinct, and have the same order as in Set.rules.
func (s *Set) find(found []*rule, call *Call) []*rule {
	x, name := &s.methods, call.Method
	if call.OfTool() {
		x, name = &s.tools, call.Tool
	}
	for _, server := range [...]string{call.Server, ""} {
		found = appendMatching(found, x.exact[indexKey{server, name}], call)
		for _, n := range x.lengths {
			if n > len(name) {
				break
			}
			found = appendMatching(found, x.prefixes[indexKey{server, name[:n]}], call)
		}
	}
	order := func(a, b *rule) int { return cmp.Compare(a.order, b.order) }
	if !slices.IsSortedFunc(found, order) {
		slices.SortFunc(found, order)
	}
	return slices.Compact(found)
}

func appendMatching(found, list []*rule, call *Call) []*rule {
	for _, r := range list {
		if r.matchesCall(call) {
			found = append(found, r)
		}
	}
	return found
}
