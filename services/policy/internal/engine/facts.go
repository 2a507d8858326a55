package engine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Facts contains the catalog's facts about a tool with a certain definition. The zero Facts belong to an unknown tool,
// which must not be called.
type Facts struct {
	// Status says whether the tool may be called with this definition.
	Status Status
	// Category is one of [Categories], and Risk is one of [Risks]. Both are empty if the tool has no classification.
	Category, Risk string
	// Tags contains the tags from the classification and the tags that operators added.
	Tags []string
	// Hints contains the values of the definition's annotations, by name. Annotations that the definition omits have the
	// default values in the MCP specification. Hints is nil if the server is not trusted.
	Hints map[string]bool
	// Believed is true if the classification is confirmed. This is the case if the server is trusted, or if an operator
	// has accepted the definition or set the classification. Otherwise the classification relies only on the server's
	// definition.
	Believed bool
	// Arguments contains the sorted names of the arguments that the definition's schema allows. It is empty if the schema
	// allows all names, or if there is no schema.
	Arguments []string
	// Sure is true if the classification is sufficiently certain, or if an operator has set it. Otherwise `default:
	// by_risk` requires approval for every risk.
	Sure bool

	// anyTool is true if the facts represent all possible tools.
	anyTool bool
	// anyClass is true if the tool's classification is unknown. In this case, every rule that requires tool properties
	// matches.
	anyClass bool
}

// Status says whether a tool may be called with a certain definition.
type Status uint8

const (
	// Unlisted means that no reported list contained the tool. It is the zero value.
	Unlisted Status = iota
	// Callable means that the tool may be called if the rules allow the call.
	Callable
	// Changed means that this definition or a different definition of the tool waits for an operator's decision.
	Changed
	// Quarantined means that an operator has stopped the tool or its server.
	Quarantined
	// NotStored means that the gateway has received this definition only with the accounts of people. Such definitions
	// are not stored, so no operator can accept them.
	NotStored
)

func (s Status) String() string {
	return nameOf([]string{"unlisted", "callable", "changed", "quarantined", "not stored"}, int(s), "Status")
}

// refusal returns the code and the message for refused calls to a tool with this status. Both are empty if the status
// is [Callable]. The message mentions the server.
func (s Status) refusal(server string) (Code, string) {
	switch s {
	case Callable:
		return "", ""
	case Changed:
		return ToolChanged, "the tool's definition is new or has changed, and the tool can't be called until an operator has accepted it; an operator reads the change with `sluice catalog diff " + server + "`"
	case NotStored:
		return ToolChanged, "the server has sent this definition of the tool to the account of a person, but not to the account with which the mesh lists tools; it is not stored, so it can't be accepted; an operator can run `sluice connect " + server + " --discovery` with an account that has this tool, or set `pin: off` for the server"
	case Quarantined:
		return ToolQuarantined, "an operator has stopped the tool or its server; it can't be called until an operator ends the quarantine"
	case Unlisted:
		return ToolUnknown, ""
	}
	return ToolUnknown, ""
}

// Categories returns the categories of tools, least dangerous first.
func Categories() []string {
	return []string{"read", "write", "execute", "destructive", "financial"}
}

// Risks returns the risks of tools, lowest first.
func Risks() []string { return []string{"low", "medium", "high", "critical"} }

// Annotations returns the annotations that a definition may contain (MCP 2025-11-25, Tools, ToolAnnotations), with
// their default values.
func Annotations() map[string]bool {
	return map[string]bool{"readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": true}
}

// dangerous reports whether a grant must have Critical to cover the tool. Tools without a classification are dangerous.
func (f *Facts) dangerous() bool {
	return f.Category == "" || f.Category == "destructive" || f.Category == "financial" || f.Risk == "" || f.Risk == "critical"
}

// matchesProperties reports whether a tool with the given facts has the properties that a rule requires. If a property
// is unknown, matchesProperties chooses the stricter alternative: the property does not match in a rule with
// ActionAllow, and matches in all other rules.
func (r *rule) matchesProperties(f *Facts) bool {
	if !r.hasToolProperties || f.anyClass {
		return true
	}
	if f.anyTool {
		return r.Action == ActionAllow || r.Action == ActionRequireApproval
	}
	unknownMatches := r.Action != ActionAllow
	in := func(wanted []string, has string) bool {
		return len(wanted) == 0 || has == "" && unknownMatches || slices.Contains(wanted, has)
	}
	if !in(r.Match.Category, f.Category) || !in(r.Match.Risk, f.Risk) {
		return false
	}
	if len(r.Match.Tags) > 0 && (f.Category != "" || !unknownMatches) &&
		!slices.ContainsFunc(f.Tags, func(tag string) bool { return slices.Contains(r.Match.Tags, tag) }) {
		return false
	}
	return len(r.Match.Annotations) == 0 || f.Hints == nil && unknownMatches || f.hasHints(r.Match.Annotations)
}

// hasHints reports whether the annotations have the values that a rule requires.
func (f *Facts) hasHints(wanted map[string]bool) bool {
	for name, want := range wanted {
		if has, known := f.Hints[name]; !known || has != want {
			return false
		}
	}
	return true
}

// hasProperties reports whether m requires a category, a risk, a tag or an annotation.
func (m *Match) hasProperties() bool {
	return len(m.Category)+len(m.Risk)+len(m.Tags)+len(m.Annotations) > 0
}

// hintTexts returns the annotations that m requires, sorted and in the form "name: value".
func (m *Match) hintTexts() []string {
	out := make([]string, 0, len(m.Annotations))
	for _, name := range slices.Sorted(maps.Keys(m.Annotations)) {
		out = append(out, fmt.Sprintf("%s: %t", name, m.Annotations[name]))
	}
	return out
}

// checkProperties checks the category, risk, tags and annotations in a match.
func (c *checker) checkProperties(m *Match) {
	one := func(key string, values, known []string) {
		seen := make(map[string]bool) // the number of tags has no limit of its own
		for i, value := range values {
			field := fmt.Sprintf("match.%s[%d]", key, i)
			if seen[value] {
				c.add(field, "is listed twice", "keep one of them")
			}
			seen[value] = true
			if known != nil && !slices.Contains(known, value) {
				c.add(field, fmt.Sprintf("%q is unknown", value), "use "+strings.Join(known, ", "))
			}
			if known == nil && !validTag(value) {
				c.add(field, fmt.Sprintf("%q is not a tag", value), "tags have 1 to 64 lower-case letters, digits and -")
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
