package engine

import "slices"

// contains reports whether g matches every string that o matches. A false result is not certain, because contains does
// not recognize all such pairs of patterns.
func (g *glob) contains(o *glob) bool {
	switch {
	case o.exact:
		return g.match(o.prefix)
	case g.isPrefix():
		return len(o.prefix) >= len(g.prefix) && o.prefix[:len(g.prefix)] == g.prefix
	}
	return g.key() == o.key()
}

// contains reports whether ps matches every string that other matches. A false result is not certain, because contains
// does not recognize all such pairs of lists.
func (ps patterns) contains(other patterns) bool {
	if len(ps) == 0 {
		return true
	}
	if len(other) == 0 {
		other = patterns{matchAll()}
	}
	for i := range other {
		if !slices.ContainsFunc(ps, func(g glob) bool { return g.contains(&other[i]) }) {
			return false
		}
	}
	return true
}

// intersects reports whether there is a string that both lists match.
func (ps patterns) intersects(other patterns) bool {
	if len(ps) == 0 || len(other) == 0 {
		return true
	}
	for i := range ps {
		if slices.ContainsFunc(other, func(o glob) bool { return ps[i].intersects(&o) }) {
			return true
		}
	}
	return false
}

// intersects reports whether there is a string that both patterns match.
func (g *glob) intersects(o *glob) bool {
	if g.exact {
		return o.match(g.prefix)
	}
	if o.exact {
		return g.match(o.prefix)
	}
	a, b := g.runes(), o.runes()
	// reachable[j] is true if some string matches both the first j characters of the second pattern and the processed part
	// of the first pattern.
	reachable := make([]bool, len(b)+1)
	reachable[0] = true
	for j := 0; j < len(b) && b[j] == anyRun; j++ {
		reachable[j+1] = true
	}
	for _, r := range a {
		next := make([]bool, len(b)+1)
		next[0] = reachable[0] && r == anyRun
		for j, c := range b {
			if r == anyRun || c == anyRun {
				next[j+1] = reachable[j+1] || next[j]
			} else {
				next[j+1] = reachable[j] && (r == anyOne || c == anyOne || r == c)
			}
		}
		reachable = next
	}
	return reachable[len(b)]
}

// runes returns the whole pattern, with anyRun and anyOne for the wildcards.
func (g *glob) runes() []rune { return append([]rune(g.prefix), g.rest...) }
