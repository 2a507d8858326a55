package dialect

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// maxReported is the number of problems at which decoding stops. A policy with so many problems is not translated,
// because the rest of it was not read.
const maxReported = 100

// A reader decodes a source and collects problems.
type reader struct {
	source   *strictyaml.Source
	problems []Problem
	// broken contains the paths of the values that can't be decoded.
	broken []string
}

func (r *reader) add(severity Severity, at, message, suggestion string) {
	r.problems = append(r.problems, Problem{r.source.Problem(at, message, suggestion), severity})
}

func problemsOf(err error) (out []Problem) {
	found, ok := errors.AsType[strictyaml.Errors](err)
	if !ok {
		return []Problem{{strictyaml.Problem{Message: err.Error()}, Error}}
	}
	for _, p := range found {
		out = append(out, Problem{p, Error})
	}
	return out
}

// decode decodes the source and adds the problems that it finds. It returns false if there are too many problems, or if
// a problem is not inside the values of the keys `tools` and `all_tools`.
func (r *reader) decode(into any) bool {
	err := r.source.Decode(into)
	if err == nil {
		return true
	}
	r.problems = problemsOf(err)
	for _, p := range r.problems {
		r.broken = append(r.broken, p.Path)
		if !strings.HasPrefix(p.Path, "tools.") && !strings.HasPrefix(p.Path, "tools[") && !strings.HasPrefix(p.Path, "all_tools") {
			return false
		}
	}
	return len(r.problems) < maxReported
}

// isBroken reports whether the value at the given path, or a value inside it, can't be decoded.
func (r *reader) isBroken(at string) bool {
	return slices.ContainsFunc(r.broken, func(path string) bool {
		rest, below := strings.CutPrefix(path, at)
		return below && (rest == "" || rest[0] == '.' || rest[0] == '[')
	})
}

// isBrokenItself is like isBroken, but ignores problems in the elements of the list with the key inner.
func (r *reader) isBrokenItself(at, inner string) bool {
	return slices.ContainsFunc(r.broken, func(path string) bool {
		rest, below := strings.CutPrefix(path, at)
		return below && (rest == "" || rest[0] == '.' || rest[0] == '[') && !strings.HasPrefix(rest, "."+inner+"[")
	})
}

// version reports whether the policy has a known version.
func (r *reader) version(n *yaml.Node) bool {
	switch {
	case n.Kind == 0:
		r.add(Error, "version", "is required", `write version: "1"`)
	case n.Kind != yaml.ScalarNode || n.Value != "1" || n.ShortTag() != "!!str" && n.ShortTag() != "!!int":
		r.add(Error, "version", "is not 1, the only version that can be translated", "")
	default:
		return true
	}
	return false
}

// defaultOf reports whether the default of the policy allows the tools that the policy does not list. Its second result
// is false if the default is unknown.
func (r *reader) defaultOf(text string) (allows, ok bool) {
	if text != "allow" && text != "deny" {
		r.add(Error, "default", "is neither allow nor deny", strictyaml.Suggest(text, []string{"allow", "deny"}))
		return false, false
	}
	return text == "allow", true
}

// hide returns the hidden tools with the given names. It adds a problem for each invalid name.
func (r *reader) hide(names []string) (out []tool) {
	for i, name := range names {
		at := strictyaml.Index("hide", i)
		if name != allTools && !r.checkName(at, name) {
			continue
		}
		out = append(out, tool{at, name})
	}
	return out
}

// checkName reports whether a tool can have the given name. If not, it adds a problem. Calls with such a name are
// always refused, so a rule for it is not necessary.
func (r *reader) checkName(at, name string) bool {
	if isToolName(name) {
		return true
	}
	suggestion := "tools have names of 1 to 128 letters, digits and _ . / -"
	if strings.ContainsAny(name, "*?") {
		suggestion = "the source compares whole names: if it is meant as a pattern, write a rule with match: {tool: …}"
	}
	r.add(Error, at, "is not a tool's name, so it matches no call", suggestion)
	return false
}

// isToolName reports whether MCP clients can call a tool with this name.
func isToolName(name string) bool {
	return name != "" && len(name) <= 128 && !strings.ContainsFunc(name, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && !strings.ContainsRune("_./-", c)
	})
}

// places sets the position in the source of each condition, and returns the conditions.
func places(at string, conditions []conditionForm) []conditionForm {
	for i := range conditions {
		conditions[i].at = strictyaml.Index(at+".conditions", i)
	}
	return conditions
}

// finish returns the policy. If the policy is too large, finish adds a problem and returns nil.
func (r *reader) finish(p *policy) *policy {
	rules, conditions := 0, 0
	for _, one := range p.rules {
		rules += 1 + len(one.limits)
		conditions += len(one.conditions)
	}
	tooMany := func(have, most int, what string) bool {
		if have > most {
			r.add(Error, "", fmt.Sprintf("has more than %d %s", most, what), "divide it")
		}
		return have > most
	}
	if tooMany(rules, MaxRules, "rules and limits") || tooMany(conditions, MaxConditions, "conditions") || tooMany(len(p.listed)+len(p.hidden), MaxTools, "tools") {
		return nil
	}
	return p
}

// sortedKeys returns the sorted names of the tools, with allTools at the end.
func sortedKeys[T any](tools map[string]T) []string {
	names := slices.Sorted(maps.Keys(tools))
	if _, found := tools[allTools]; found {
		names = append(slices.DeleteFunc(names, func(name string) bool { return name == allTools }), allTools)
	}
	return names
}
