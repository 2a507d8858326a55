package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/policy/internal/locator"
)

// checkNames checks the patterns for prompts and URIs in a rule.
func (c *checker) checkNames(r *Rule) {
	m := &r.Match
	for i, text := range m.URI {
		field := fmt.Sprintf("match.uri[%d]", i)
		g, message, _ := compileGlob(text)
		if message != "" { // checkMatch has already added this problem
			continue
		}
		scheme, _, has := strings.Cut(g.prefix, ":")
		switch err := locator.CheckTemplate(g.prefix); {
		case has && scheme != strings.ToLower(scheme):
			c.add(field, "names a scheme in upper case, which no plain URI has", "write "+strings.ToLower(scheme)+":")
		case g.exact && err != nil:
			c.add(field, "is not a plain URI: it "+err.Error(), "a rule that allows never matches such a URI, and any other rule matches all of them")
		case r.Action == ActionAllow && !g.exact && endsInHost(g.prefix):
			c.problems = append(c.problems, ParseError{
				Rule: c.rule, Field: field, Warning: true,
				Message: "also allows other hosts, whose names begin with this text", Suggestion: "put a / before the first * or ?",
			})
		}
	}
	switch {
	case !m.hasNames():
	case len(m.Prompt) > 0 && len(m.URI) > 0:
		c.add("match.uri", "can never match: no request names both a prompt and a URI", "make it two rules")
	case len(m.Tool) > 0 || m.hasProperties():
		c.add("match", "can never match: only tools/call has a tool, and tools/call has neither a prompt nor a URI", "make it two rules")
	}
}

// endsInHost reports whether the beginning of a URL ends in the host or directly after it.
func endsInHost(beginning string) bool {
	scheme, rest, has := strings.Cut(beginning, "://")
	return has && rest != "" && !strings.Contains(rest, "/") && slices.Contains([]string{"http", "https", "ws", "wss", "ftp"}, scheme)
}
