package dialect

import (
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// A hostedForm is a decoded policy in the format [HostedJSON].
type hostedForm struct {
	Version  yaml.Node             `yaml:"version"`
	Default  *string               `yaml:"default"`
	Hide     []string              `yaml:"hide"`
	AllTools *hostedAll            `yaml:"all_tools"`
	Tools    map[string]hostedTool `yaml:"tools"`
}

type hostedAll struct {
	Limits []hostedLimit `yaml:"limits"`
}

type hostedTool struct {
	Require []hostedRule  `yaml:"require"`
	DenyIf  []hostedRule  `yaml:"deny_if"`
	Limits  []hostedLimit `yaml:"limits"`
}

type hostedRule struct {
	Conditions []conditionForm `yaml:"conditions"`
	OnDeny     string          `yaml:"on_deny"`
}

type hostedLimit struct {
	Counter string `yaml:"counter"`
	Window  string `yaml:"window"`
	Max     *int64 `yaml:"max"`
	Scope   string `yaml:"scope"`
}

// ExplainKey implements strictyaml.Explainer.
func (*hostedTool) ExplainKey(key string) (message, suggestion string, ok bool) {
	if key == "rules" {
		return "the JSON format has no key rules", "it is a key of the format " + OperatorYAML.String(), true
	}
	return "", "", false
}

// hosted reads a policy in the format [HostedJSON]. It returns nil if the policy can't be read.
func (r *reader) hosted(text []byte) *policy {
	if !jsontext.Value(text).IsValid() {
		r.add(Error, "", "is not JSON", "if it is YAML, its format is "+OperatorYAML.String())
		return nil
	}
	var f hostedForm
	known := r.decode(&f)
	if f.Default == nil {
		r.add(Error, "default", "is required", `write "allow" or "deny"`)
		return nil
	}
	allows, ok := r.defaultOf(*f.Default)
	if !r.version(&f.Version) || !known || !ok {
		return nil
	}
	p := &policy{source: r.source, allows: allows, hidden: r.hide(f.Hide)}
	counters := make(map[string]int)
	for _, t := range f.Tools {
		countCounters(counters, t.Limits)
	}
	if f.AllTools != nil {
		countCounters(counters, f.AllTools.Limits)
	}
	for _, name := range sortedKeys(f.Tools) {
		at := strictyaml.Key("tools", name)
		if !r.checkName(at, name) {
			continue
		}
		p.listed = append(p.listed, tool{at, name})
		p.rules = append(p.rules, r.hostedRules(at, name, f.Tools[name], counters)...)
	}
	if f.AllTools != nil {
		p.rules = append(p.rules, r.hostedRules("all_tools", allTools, hostedTool{Limits: f.AllTools.Limits}, counters)...)
	} else if r.isBroken("all_tools") {
		p.rules = append(p.rules, rule{at: "all_tools", tool: allTools, kind: unclear})
	}
	return r.finish(p)
}

// countCounters counts in the map how many limits use each counter.
func countCounters(counters map[string]int, limits []hostedLimit) {
	for _, l := range limits {
		counters[l.Counter]++
	}
}

func (r *reader) hostedRules(at, name string, form hostedTool, counters map[string]int) (out []rule) {
	if r.isBroken(at) {
		return []rule{{at: at, tool: name, kind: unclear}}
	}
	for i, one := range form.Require {
		place := strictyaml.Index(at+".require", i)
		read := rule{at: place, tool: name, name: fmt.Sprintf("require-%d", i+1), message: one.OnDeny, conditions: places(place, one.Conditions)}
		if len(one.Conditions) == 0 {
			r.add(Error, place, "requires no condition", "")
			read.kind = unclear
		}
		out = append(out, r.noted(read))
	}
	for i, one := range form.DenyIf {
		place := strictyaml.Index(at+".deny_if", i)
		read := rule{at: place, tool: name, name: fmt.Sprintf("deny-if-%d", i+1), kind: refuses, message: one.OnDeny, conditions: places(place, one.Conditions)}
		if one.Conditions == nil {
			r.add(Error, place, "has no conditions", "write [] if it applies to every call")
			read.kind = unclear
		}
		out = append(out, r.noted(read))
	}
	for i, one := range form.Limits {
		out = append(out, r.hostedLimit(strictyaml.Index(at+".limits", i), name, one, counters[one.Counter]))
	}
	return out
}

// noted returns the given rule. If the rule has conditions, noted adds a warning, because a person should check their
// translation.
func (r *reader) noted(read rule) rule {
	if len(read.conditions) > 0 && read.kind != unclear {
		r.add(Warning, read.at, "its conditions are read like those of the format "+OperatorYAML.String(), "check the translation, for example with the tests of the document")
	}
	return read
}

func (r *reader) hostedLimit(at, name string, form hostedLimit, uses int) rule {
	out := rule{at: at, tool: name, name: "limit", per: "[principal, server, tool]", kind: unclear}
	if name == allTools {
		out.per = "[principal, server]"
	}
	if form.Counter != "" {
		out.name = form.Counter
	}
	switch {
	case form.Max == nil || *form.Max < 0:
		r.add(Error, at+".max", "is not a number of calls", "")
	case windows[form.Window] == "":
		r.add(Error, at+".window", fmt.Sprintf("%q is not a window", form.Window), "windows are minute, hour and day")
	case form.Scope != "grant":
		r.add(Error, at+".scope", fmt.Sprintf("%q is not a known scope", form.Scope), strictyaml.Suggest(form.Scope, []string{"grant"}))
	case form.Counter == "":
		r.add(Error, at+".counter", "is required", "")
	case uses > 1:
		r.add(Error, at+".counter", "is the counter of several limits, which limits of this version can't share", "")
	default:
		out.kind, out.limits = requires, []limit{{at, *form.Max, windows[form.Window]}}
	}
	return out
}

// knownOps contains the operators for conditions in both formats.
var knownOps = []string{"eq", "neq", "in", "not_in", "lt", "lte", "gt", "gte", "regex", "contains", "exists"}

// checkOp reports whether conditions can use an operator. Otherwise it returns a suggestion.
func checkOp(op string) (suggestion string, ok bool) {
	if slices.Contains(knownOps, op) {
		return "", true
	}
	return strictyaml.Suggest(op, knownOps), false
}
