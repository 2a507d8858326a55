package engine

import (
	"cmp"
	"slices"
)

// An index finds the rules that may match a tool or a method on a server, without trying all rules in the set.
type index struct {
	// exact contains the rules that have a pattern without wildcards, by this pattern.
	exact map[indexKey][]*rule
	// prefixes contains the rules that have a pattern with wildcards, by the text before the first wildcard.
	prefixes map[indexKey][]*rule
	// lengths contains the lengths of the prefixes in bytes and in ascending order.
	lengths []int
}

// An indexKey is a server and a name, or a server and the prefix of a name. The server is empty for rules that can
// match any server, according to [rule.namedServers].
type indexKey struct{ server, name string }

func newIndex() index {
	return index{exact: make(map[indexKey][]*rule), prefixes: make(map[indexKey][]*rule)}
}

// add adds a rule under each of its patterns for tools or methods. Rules must be added in the order of Set.rules.
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

// namedServers returns the servers to which a rule is limited. These are the server patterns in the document or in the
// rule, provided that no pattern has a wildcard. Otherwise the result is one empty name, which means any server.
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

// find appends the rules that match a call for any principal to found, which must be empty. The result has no
// duplicates, and is in the order of Set.rules.
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
