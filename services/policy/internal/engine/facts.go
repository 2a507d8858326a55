package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Facts are what the catalog knows of a tool's definition. The zero Facts are those of an unknown tool, which no
// caller may call.
type Facts struct {
	// Standing says whether a tool with this definition may be called at all.
	Standing Standing
	// Category and Risk are from [Categories] and [Risks]; both empty if they are not known.
	Category, Risk string
	// Tags are the tags of the definition and those that people added.
	Tags []string
	// Hints are the annotations of the definition, with the specification's defaults for absent ones; nil if the server
	// is not trusted.
	Hints map[string]bool
	// Believed says that the classification is confirmed: the server is trusted, or a person has accepted the
	// definition or set the class. Otherwise only the server states it.
	Believed bool
	// Sure says that the class is certain enough, or that a person has set it. The zero value makes `default: by_risk`
	// require approval regardless of the risk.
	Sure bool

	// whatever means that the facts stand for every possible tool.
	whatever bool
}

// Standing says whether a tool may be called with a definition.
type Standing uint8

// The standings.
const (
	// Unlisted means that no known list has the tool. It is the zero value.
	Unlisted Standing = iota
	// Callable means that only rules decide about the call.
	Callable
	// Changed means that the definition, or another definition of the tool, waits for a person.
	Changed
	// Quarantined means that the tool or its server is stopped.
	Quarantined
)

// String returns the standing's name.
func (s Standing) String() string {
	return nameOf([]string{"unlisted", "callable", "changed", "quarantined"}, int(s), "Standing")
}

// refusal returns why a tool with that standing can't be called, and what to do, for a tool of the server.
func (s Standing) refusal(server string) (Code, string) {
	switch s {
	case Callable:
		return "", ""
	case Changed:
		return ToolChanged, "the tool's definition is new or has changed, and the tool can't be called until an operator has accepted it; an operator reads the change with `sluice catalog diff " + server + "`"
	case Quarantined:
		return ToolQuarantined, "the tool, or its server, is stopped until an operator lets it go on"
	case Unlisted:
		return ToolUnknown, ""
	}
	return ToolUnknown, ""
}

// Categories returns the categories of tools, the mildest first.
func Categories() []string {
	return []string{"read", "write", "execute", "destructive", "financial"}
}

// Risks returns the risks of tools, the lowest first.
func Risks() []string { return []string{"low", "medium", "high", "critical"} }

// Annotations returns the hints that a definition may give (MCP 2025-11-25, Tools, ToolAnnotations), with their
// defaults.
func Annotations() map[string]bool {
	return map[string]bool{"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true}
}

// dangerous reports whether a grant must state that it covers such a tool. An unclassified tool is dangerous.
func (f *Facts) dangerous() bool {
	return f.Category == "" || f.Category == "destructive" || f.Category == "financial" || f.Risk == "" || f.Risk == "critical"
}

// fits reports whether a tool with the facts has the properties that a rule names. An unknown property counts against
// the caller: it does not match in a rule that allows, and matches in any other.
func (r *rule) fits(f *Facts) bool {
	if !r.classed {
		return true
	}
	if f.whatever {
		return r.Action == ActionAllow || r.Action == ActionRequireApproval
	}
	doubt := r.Action != ActionAllow
	in := func(wanted []string, has string) bool {
		return len(wanted) == 0 || has == "" && doubt || slices.Contains(wanted, has)
	}
	if !in(r.Match.Category, f.Category) || !in(r.Match.Risk, f.Risk) {
		return false
	}
	if len(r.Match.Tags) > 0 && (f.Category != "" || !doubt) &&
		!slices.ContainsFunc(f.Tags, func(tag string) bool { return slices.Contains(r.Match.Tags, tag) }) {
		return false
	}
	return len(r.Match.Annotations) == 0 || f.Hints == nil && doubt || f.hint(r.Match.Annotations)
}

// hint reports whether the annotations are those that a rule requires.
func (f *Facts) hint(wanted map[string]bool) bool {
	for name, want := range wanted {
		if has, known := f.Hints[name]; !known || has != want {
			return false
		}
	}
	return true
}

// classed reports whether a match names properties of tools other than their names.
func (m *Match) classed() bool {
	return len(m.Category)+len(m.Risk)+len(m.Tags)+len(m.Annotations) > 0
}

// hints returns the annotations that a match requires as texts, sorted.
func (m *Match) hints() []string {
	out := make([]string, 0, len(m.Annotations))
	for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
		out = append(out, fmt.Sprintf("%s: %t", name, m.Annotations[name]))
	}
	return out
}

// classes checks the keys of a match about properties of tools.
func (c *checker) classes(m *Match) {
	one := func(key string, values, known []string) {
		for i, value := range values {
			field := fmt.Sprintf("match.%s[%d]", key, i)
			if slices.Contains(values[:i], value) {
				c.add(field, "is listed twice", "keep one of them")
			}
			if known != nil && !slices.Contains(known, value) {
				c.add(field, fmt.Sprintf("%q is unknown", value), "use "+strings.Join(known, ", "))
			}
			if known == nil && !validTag(value) {
				c.add(field, fmt.Sprintf("%q is not a tag", value), "tags are of 1 to 64 lower-case letters, digits and -")
			}
		}
	}
	one("category", m.Category, Categories())
	one("risk", m.Risk, Risks())
	one("tags", m.Tags, nil)
	for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
		if _, known := Annotations()[name]; !known {
			c.add("match.annotations."+name, "is not an annotation of a tool", "use "+strings.Join(slices.Sorted(maps.Keys(Annotations())), ", "))
		}
	}
}

func validTag(tag string) bool {
	if len(tag) == 0 || len(tag) > 64 {
		return false
	}
	for i := range len(tag) {
		if !serverByte(tag[i]) {
			return false
		}
	}
	return true
}
