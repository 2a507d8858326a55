package dialect

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
)

// An operatorForm is a decoded policy in the format [OperatorYAML].
type operatorForm struct {
	Version     yaml.Node               `yaml:"version"`
	Description yaml.Node               `yaml:"description"`
	Default     *string                 `yaml:"default"`
	Hide        []string                `yaml:"hide"`
	Tools       map[string]operatorTool `yaml:"tools"`
}

type operatorTool struct {
	Rules []operatorRule `yaml:"rules"`
}

type operatorRule struct {
	Name       string          `yaml:"name"`
	Action     *string         `yaml:"action"`
	RateLimit  *string         `yaml:"rate_limit"`
	Conditions []conditionForm `yaml:"conditions"`
	OnDeny     string          `yaml:"on_deny"`
	State      *operatorState  `yaml:"state"`
}

type operatorState struct {
	Counter       string  `yaml:"counter"`
	Window        string  `yaml:"window"`
	Increment     *int64  `yaml:"increment"`
	IncrementFrom *string `yaml:"increment_from"`
}

// ExplainKey implements strictyaml.Explainer.
func (*operatorTool) ExplainKey(key string) (message, suggestion string, ok bool) {
	if slices.Contains([]string{"require", "deny_if", "limits"}, key) {
		return "the YAML format has no key " + key, "it is a key of the format " + HostedJSON.String(), true
	}
	return "", "", false
}

// operator reads a policy in the format [OperatorYAML]. It returns nil if the policy can't be read.
func (r *reader) operator() *policy {
	var f operatorForm
	known := r.decode(&f)
	text := "allow" // the default of the source format
	if f.Default != nil {
		text = *f.Default
	}
	allows, ok := r.defaultOf(text)
	if !r.version(&f.Version) || !known || !ok {
		return nil
	}
	p := &policy{source: r.source, allows: allows, hidden: r.hide(f.Hide)}
	for _, name := range sortedKeys(f.Tools) {
		at := strictyaml.Key("tools", name)
		if name != allTools {
			if !r.checkName(at, name) {
				continue
			}
			p.listed = append(p.listed, tool{at, name})
		}
		if r.isBrokenItself(at, "rules") {
			p.rules = append(p.rules, rule{at: at, tool: name, kind: unclear})
			continue
		}
		p.rules = append(p.rules, r.operatorRules(at, name, f.Tools[name].Rules)...)
	}
	return r.finish(p)
}

func (r *reader) operatorRules(at, tool string, rules []operatorRule) (out []rule) {
	counters := make(map[string]bool)
	for i := range rules {
		one := &rules[i]
		place := strictyaml.Index(at+".rules", i)
		read := rule{at: place, tool: tool, name: one.Name, message: one.OnDeny, conditions: places(place, one.Conditions), per: "[server, tool]"}
		if tool == allTools {
			read.per = "[server]"
		}
		if read.name == "" { // the source format requires a name, but some published policies have rules without a name
			read.name = fmt.Sprintf("rule-%d", i+1)
		}
		if s := one.State; s != nil && counters[s.Counter] {
			r.add(Error, place+".state.counter", "is a counter of another rule of the tool", "give each counter a name of its own")
			read.kind = unclear
		} else if s != nil {
			counters[s.Counter] = true
		}
		if r.isBroken(place) || read.kind == unclear || !r.operatorRule(place, one, &read) {
			read.kind, read.limits = unclear, nil
		}
		out = append(out, read)
	}
	return out
}

// operatorRule converts a rule to the type that both formats share, and stores it in out. If the rule is not valid in
// the source format, operatorRule adds a problem and returns false.
func (r *reader) operatorRule(at string, form *operatorRule, out *rule) bool {
	action := "evaluate"
	if form.Action != nil {
		action = *form.Action
	}
	switch {
	case action != "evaluate" && action != "deny":
		r.add(Error, at+".action", fmt.Sprintf("%q is not an action of this format", action), strictyaml.Suggest(action, []string{"evaluate", "deny"}))
	case action == "deny" && (len(form.Conditions) > 0 || form.RateLimit != nil || form.State != nil):
		r.add(Error, at+".action", "deny can't be combined with conditions, rate_limit or state", "")
	case action == "deny":
		out.kind = refuses
		return true
	case form.RateLimit != nil && (len(form.Conditions) > 0 || form.State != nil):
		r.add(Error, at+".rate_limit", "can't be combined with conditions or state", "")
	case form.RateLimit != nil:
		return r.rateLimit(at+".rate_limit", *form.RateLimit, out)
	case len(form.Conditions) == 0:
		r.add(Error, at, "has no conditions", "")
	case form.State != nil:
		return r.state(at, form.State, out)
	default:
		return true
	}
	return false
}

// rateLimit parses a limit such as "5/hour" and stores it in out. If the limit is not valid, rateLimit adds a problem
// and returns false.
func (r *reader) rateLimit(at, text string, out *rule) bool {
	number, window, _ := strings.Cut(text, "/")
	count, err := strconv.ParseInt(number, 10, 64)
	if err != nil || count < 1 || windows[window] == "" {
		r.add(Error, at, fmt.Sprintf("%q is not a limit", text), "write it as 5/minute, 5/hour or 5/day")
		return false
	}
	out.limits = []limit{{at, count, windows[window]}}
	return true
}

// state converts the conditions on the rule's own counter into limits. If the rule has no such condition, its counter
// has no effect. Then state ignores the counter and adds a warning.
func (r *reader) state(at string, s *operatorState, out *rule) bool {
	increment, ok := r.increment(at+".state", s)
	if !ok {
		return false
	}
	scope := out.tool
	if scope == allTools {
		scope = "_global"
	}
	own := "state." + scope + "." + s.Counter
	var others []conditionForm
	for _, c := range out.conditions {
		if c.Path != own {
			others = append(others, c)
			continue
		}
		most, ok := r.ownCounter(&c)
		if !ok {
			return false
		}
		out.limits = append(out.limits, limit{c.at, most / increment, windows[s.Window]})
	}
	if len(out.limits) == 0 {
		r.add(Warning, at+".state", "has no effect in the source: no condition of the rule compares the counter with lt or lte", "")
	}
	out.conditions = others
	return true
}

// increment returns the number that a call adds to a counter. If the counter is not valid in the source format or can't
// be translated, increment adds a problem and returns false.
func (r *reader) increment(at string, s *operatorState) (number int64, ok bool) {
	number = 1
	if s.Increment != nil && *s.Increment != 0 {
		number = *s.Increment
	}
	switch {
	case s.Counter == "":
		r.add(Error, at+".counter", "is required", "")
	case windows[s.Window] == "":
		r.add(Error, at+".window", fmt.Sprintf("%q is not a window", s.Window), "windows are minute, hour and day")
	case s.IncrementFrom != nil && *s.IncrementFrom != "":
		r.add(Error, at+".increment_from", "sums an argument, which limits of this version can't", "limit the argument of each call, and the number of calls")
	case number < 1:
		r.add(Error, at+".increment", "is negative", "")
	default:
		return number, true
	}
	return 0, false
}

// ownCounter returns the greatest value of the rule's own counter for which a condition is true. It returns false if
// the condition can't be translated.
func (r *reader) ownCounter(c *conditionForm) (int64, bool) {
	v := literalOf(&c.Value)
	if v.kind != numberValue || c.Op != "lt" && c.Op != "lte" {
		r.add(Error, c.at, "compares a counter, but not with lt or lte and a number", "")
		return 0, false
	}
	most := int64(v.number) // the source format truncates the number too
	if c.Op == "lt" {
		most--
	}
	return most, true
}
