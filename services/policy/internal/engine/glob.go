package engine

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A glob is a compiled pattern. [Match] describes the pattern language.
type glob struct {
	// prefix is the literal text before the first wildcard.
	prefix string
	// exact is true if the pattern has no wildcard. In this case, the pattern matches only the string prefix.
	exact bool
	// rest is the part of the pattern from the first wildcard to the end. It contains anyRun for `*` and anyOne for `?`.
	rest []rune
}

const (
	anyRun rune = -1 - iota
	anyOne
)

// compileGlob compiles a pattern. If the pattern is invalid, it returns a message and a suggestion for correcting it.
func compileGlob(pattern string) (g glob, message, suggestion string) {
	if message, suggestion = checkText(pattern); message != "" {
		return glob{}, message, suggestion
	}
	var prefix strings.Builder
	escaped := false
	put := func(r rune) {
		if len(g.rest) == 0 && r >= 0 {
			prefix.WriteRune(r)
			return
		}
		g.rest = append(g.rest, r)
	}
	for _, r := range pattern {
		switch {
		case escaped:
			escaped = false
			put(r)
		case r == '\\':
			escaped = true
		case r == '*':
			put(anyRun)
		case r == '?':
			put(anyOne)
		case strings.ContainsRune("[]{}", r):
			return glob{}, fmt.Sprintf("%q has no meaning in a pattern", r),
				fmt.Sprintf(`list the names one by one, or write \%c for the character`, r)
		default:
			put(r)
		}
	}
	if escaped {
		return glob{}, `ends in a lone \`, `write \\ for the character`
	}
	g.prefix, g.exact = prefix.String(), len(g.rest) == 0
	return g, "", ""
}

// checkText returns a message and a suggestion if the text is not a valid pattern. Otherwise both are empty.
func checkText(pattern string) (message, suggestion string) {
	switch {
	case pattern == "":
		return "is empty", "write * for any"
	case len(pattern) > MaxPatternBytes:
		return fmt.Sprintf("is longer than %d bytes", MaxPatternBytes), ""
	case !utf8.ValidString(pattern) || strings.ContainsRune(pattern, utf8.RuneError):
		return "is not valid UTF-8", "save the file as UTF-8"
	case strings.ContainsFunc(pattern, unicode.IsControl):
		return "contains a control character", "remove it"
	default:
		return "", ""
	}
}

// stray looks for a literal character in the pattern for which the function fits returns false. It returns the
// character and reports whether there is one. A pattern with such a character matches no valid name.
func (g *glob) stray(fits func(byte) bool) (rune, bool) {
	for _, r := range g.prefix + string(g.literals()) {
		if r >= utf8.RuneSelf || !fits(byte(r)) {
			return r, true
		}
	}
	return 0, false
}

func (g *glob) literals() []rune {
	var literal []rune
	for _, r := range g.rest {
		if r >= 0 {
			literal = append(literal, r)
		}
	}
	return literal
}

// match reports whether the pattern matches a string. After a mismatch, match changes only the part that the last `*`
// matches, because changing the part of an earlier `*` can't lead to a match. The running time is at most proportional
// to the product of the lengths of the string and the pattern.
func (g *glob) match(s string) bool {
	if g.exact {
		return s == g.prefix
	}
	s, ok := strings.CutPrefix(s, g.prefix)
	if !ok {
		return false
	}
	run, from, p := -1, 0, 0
	for i := 0; i < len(s); {
		r, width := utf8.DecodeRuneInString(s[i:])
		switch {
		case p < len(g.rest) && g.rest[p] == anyRun:
			run, from = p, i
			p++
		case p < len(g.rest) && (g.rest[p] == anyOne || g.rest[p] == r):
			i += width
			p++
		case run >= 0:
			_, width = utf8.DecodeRuneInString(s[from:])
			from += width
			i, p = from, run+1
		default:
			return false
		}
	}
	for p < len(g.rest) && g.rest[p] == anyRun {
		p++
	}
	return p == len(g.rest)
}

// patterns is a list of globs. It matches a string if one of its globs does, or if the list is empty.
type patterns []glob

func (ps patterns) match(s string) bool {
	if len(ps) == 0 {
		return true
	}
	for i := range ps {
		if ps[i].match(s) {
			return true
		}
	}
	return false
}

func (ps patterns) matchAny(list []string) bool {
	if len(ps) == 0 {
		return true
	}
	return slices.ContainsFunc(list, ps.match)
}
