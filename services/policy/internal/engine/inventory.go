package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// An Inventory contains the names of the tools that each configured server lists, by server. The names are nil if they
// are unknown.
type Inventory map[string][]string

// ownTools lists the tools that the mesh itself provides. No server lists them.
var ownTools = []string{modelTool, "sluice_approval_wait"}

// Check returns warnings about names in a document that match no configured server or no listed tool. It does not check
// patterns for methods, prompts and resources, and does not check tool patterns that begin with `*` or `?`. The
// document must have no errors.
func (in Inventory) Check(d *Document) []ParseError {
	home := in.matching(slices.Sorted(maps.Keys(in)), d.Server)
	if len(home) == 0 {
		return []ParseError{in.unknownServer(-1, "server", d.Server)}
	}
	var faults []ParseError
	for i := range d.Rules {
		faults = append(faults, in.checkRule(d, i, home)...)
	}
	return faults
}

// matching returns the given servers that match a pattern, or all given servers if the pattern is empty.
func (in Inventory) matching(servers []string, pattern string) []string {
	if pattern == "" {
		return servers
	}
	g, _, _ := compileGlob(pattern) // the pattern is valid, because the document has no errors
	return slices.DeleteFunc(slices.Clone(servers), func(name string) bool { return !g.match(name) })
}

func (in Inventory) unknownServer(rule int, field, pattern string) ParseError {
	return ParseError{
		Rule: rule, Field: field, Warning: true,
		Message:    fmt.Sprintf("no configured server is called %q", pattern),
		Suggestion: strictyaml.Suggest(pattern, slices.Sorted(maps.Keys(in))),
	}
}

// checkRule checks the names in one rule of a document. home contains the servers to which the document applies.
func (in Inventory) checkRule(d *Document, rule int, home []string) []ParseError {
	r := &d.Rules[rule]
	if r.Tool != "" {
		return in.checkTool(rule, "", r.Tool, home)
	}
	var faults []ParseError
	servers := home
	if len(r.Match.Server) > 0 {
		servers = nil
	}
	for i, pattern := range r.Match.Server {
		found := in.matching(home, pattern)
		if servers = append(servers, found...); len(found) > 0 {
			continue
		}
		fault := in.unknownServer(rule, strictyaml.Index("match.server", i), pattern)
		if len(in.matching(slices.Collect(maps.Keys(in)), pattern)) > 0 {
			fault.Message = fmt.Sprintf("the document is only about %q, so the rule matches no call of %q", d.Server, pattern)
			fault.Suggestion = "move the rule into a document for that server"
		}
		faults = append(faults, fault)
	}
	for i, pattern := range r.Match.Tool {
		faults = append(faults, in.checkTool(rule, strictyaml.Index("match.tool", i), pattern, servers)...)
	}
	return faults
}

// checkTool checks a tool name or a tool pattern in a rule that applies to the given servers. If field is empty, the
// pattern is the name of an entry under `tools`.
func (in Inventory) checkTool(rule int, field, pattern string, servers []string) []ParseError {
	g, _, _ := compileGlob(pattern) // the pattern is valid, because the document has no errors
	if field == "" {
		g = glob{prefix: pattern, exact: true}
	}
	if g.prefix == "" || len(servers) == 0 || slices.ContainsFunc(ownTools, g.match) {
		return nil
	}
	known := true
	for _, name := range servers {
		known = known && in[name] != nil
		if slices.ContainsFunc(in[name], g.match) {
			return nil
		}
	}
	f := ParseError{Rule: rule, Field: field, Warning: true}
	server, tool, joint := strings.Cut(pattern, "__")
	if _, configured := in[server]; joint && configured {
		f.Message = fmt.Sprintf("%q is a tool's name at /mcp, which begins with the server's name; rules use the name that the server lists, so this matches no call", pattern)
		f.Suggestion = fmt.Sprintf("write the tool as %q, for the server %q", tool, server)
		return []ParseError{f}
	}
	if !known {
		return nil
	}
	f.Message = fmt.Sprintf("no tool called %q was listed by %s", pattern, strings.Join(servers, ", "))
	if names := in.toolsOf(servers); len(names) > 0 {
		if best, ok := strictyaml.Closest(pattern, names); ok {
			f.Suggestion = fmt.Sprintf("did you mean %q?", best)
		}
	}
	return []ParseError{f}
}

func (in Inventory) toolsOf(servers []string) []string {
	var names []string
	for _, server := range servers {
		names = append(names, in[server]...)
	}
	return names
}
