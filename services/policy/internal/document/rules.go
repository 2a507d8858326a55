package document

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/strictyaml"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// addRules adds the entries under `tools` and then the rules to the document, as engine rules.
func (r *reader) addRules(f *form, d *engine.Document) {
	for _, tool := range slices.Sorted(maps.Keys(f.Tools)) {
		at := strictyaml.Key("tools", tool)
		if tool == "" { // package engine would report a rule without a name
			r.add(at, "is not a tool's name", "write the tool's name")
			continue
		}
		entry := f.Tools[tool]
		rule := r.rule(at, &entry, []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool})
		rule.Tool = tool
		rule.ObserveUntil = r.observe(at, "rule", entry.Mode, entry.Until)
		if entry.Action == nil && len(rule.Limits) > 0 {
			rule.Action = engine.ActionAllow
		}
		r.addRule(d, at, rule)
		r.addOtherwise(d, at, &entry, []engine.Dimension{engine.PerSession, engine.PerServer, engine.PerTool})
	}
	for i := range f.Rules {
		named := &f.Rules[i]
		at := strictyaml.Index("rules", i)
		rule := r.rule(at, &named.terms, []engine.Dimension{engine.PerSession})
		rule.Name = named.Name
		rule.ObserveUntil = r.observe(at, "rule", named.Mode, named.Until)
		rule.Match = r.match(at+".match", &named.Match)
		r.addRule(d, at, rule)
		r.addOtherwise(d, at, &named.terms, []engine.Dimension{engine.PerSession})
	}
}

// addOtherwise adds the rule for `otherwise`. This rule applies to the calls for which the condition of the last added
// rule is false.
func (r *reader) addOtherwise(d *engine.Document, at string, t *terms, per []engine.Dimension) {
	o := t.Otherwise
	if o == nil {
		return
	}
	at += ".otherwise"
	if t.When == nil {
		r.add(at, "has no effect without when", "add when, or remove otherwise")
		return
	}
	if o.Mode != "" || o.Until != "" {
		r.add(at+".mode", "has no mode of its own: it is observed with its rule", "write mode and until at the rule")
	}
	if o.When != nil || o.ExtraArgs != nil || o.Otherwise != nil {
		r.add(at, "must not have a condition of its own", "write another rule for it")
		return
	}
	of := d.Rules[len(d.Rules)-1]
	rule := r.rule(at, o, per)
	rule.Name, rule.Tool, rule.Match = of.Name, of.Tool, of.Match
	rule.When, rule.ExtraArgs, rule.Otherwise = of.When, of.ExtraArgs, true
	rule.ObserveUntil = of.ObserveUntil
	r.addRule(d, at, rule)
}

func (r *reader) addRule(d *engine.Document, at string, rule engine.Rule) {
	d.Rules = append(d.Rules, rule)
	r.rulePaths = append(r.rulePaths, at)
}

func (r *reader) match(at string, m *match) engine.Match {
	list := func(key string, patterns []string) []string {
		r.checkFilled(at+"."+key, patterns == nil || len(patterns) > 0, "it would match nothing: remove it, or add a pattern")
		return patterns
	}
	r.checkFilled(at+".annotations", m.Annotations == nil || len(m.Annotations) > 0, "remove it, or name an annotation")
	return engine.Match{
		Category:    list("category", m.Category),
		Risk:        list("risk", m.Risk),
		Tags:        list("tags", m.Tags),
		Annotations: m.Annotations,

		Method:    list("method", m.Method),
		Tool:      list("tool", m.Tool),
		Prompt:    list("prompt", m.Prompt),
		URI:       list("uri", m.URI),
		Server:    list("server", m.Server),
		Agent:     list("agent", m.Agent),
		Principal: list("principal", m.Principal),
		Groups:    list("groups", m.Groups),
		Tenant:    list("tenant", m.Tenant),
	}
}

// rule converts the keys that entries under `tools` and rules share. The parameter per contains the default dimensions
// of limits.
func (r *reader) rule(at string, t *terms, per []engine.Dimension) engine.Rule {
	rule := engine.Rule{Action: r.action(at+".action", t.Action), Reason: t.Reason, Approvers: t.Approvers}
	r.checkFilled(at+".rate_limit", t.RateLimit == nil || len(t.RateLimit) > 0, "remove it")
	r.checkFilled(at+".approvers", t.Approvers == nil || len(t.Approvers) > 0, "remove it: then any approver may decide")
	r.checkFilled(at+".needs_scope", t.NeedsScope == nil || len(t.NeedsScope) > 0, "remove it if the calls need no scope")
	for i := range t.RateLimit {
		rule.Limits = append(rule.Limits, r.limit(strictyaml.Index(at+".rate_limit", i), &t.RateLimit[i], per))
	}
	if t.Quorum != nil {
		rule.Quorum = *t.Quorum
		if rule.Quorum == 0 { // package engine would treat 0 as 1
			r.add(at+".quorum", fmt.Sprintf("0 is not between 1 and %d", engine.MaxQuorum), "")
		}
	}
	rule.DecideWithin = r.time(at+".decide_within", t.DecideWithin)
	rule.ExecuteWithin = r.time(at+".execute_within", t.ExecuteWithin)
	rule.SelfConfirm, rule.Idempotent = t.SelfConfirm, t.Idempotent
	r.forward(at, t, &rule)
	rule.Redactions = r.redactions(at+".redact", t.Redact)
	rule.Record = r.record(at+".record", t.Record)
	rule.NeedsScope = t.NeedsScope
	if t.Grant != nil {
		rule.Grant = r.grant(at+".grant", t.Grant)
	}
	if t.ApproveWith != nil {
		rule.ApproveWith = r.stepUp(at+".approve_with", t.ApproveWith)
	}
	if t.When != nil {
		rule.When = *t.When
		r.checkFilled(at+".when", rule.When != "", "remove it if the rule has no condition")
	}
	rule.ExtraArgs = r.extraArgs(at, t.ExtraArgs)
	return rule
}

const recordExample = "write it as record: {arguments: redacted}"

// record reports whether the rule has the key record. It adds a problem if the value of the key is unknown.
func (r *reader) record(at string, f *record) bool {
	if f != nil && f.Arguments != "redacted" && !r.has(at) {
		r.add(at+".arguments", fmt.Sprintf("unknown value %q", f.Arguments), recordExample)
	}
	return f != nil
}

// extraArgs reports whether the rule has the key extra_args. It adds a problem if the value of the key is unknown.
func (r *reader) extraArgs(at string, value *string) bool {
	if value != nil && *value != "allow" {
		r.add(at+".extra_args", fmt.Sprintf("unknown value %q", *value), "write allow, or remove it")
	}
	return value != nil
}

// time converts one of the durations for approvals. It adds a problem if the duration is 0, because package engine
// treats 0 as an absent duration.
func (r *reader) time(at string, w *window) time.Duration {
	if w == nil {
		return 0
	}
	if *w == 0 {
		r.add(at, "is not between 1s and 30 days", "")
	}
	return time.Duration(*w)
}

func (r *reader) grant(at string, g *grant) engine.Grant {
	grant := engine.Grant{Calls: 1, Within: time.Second, Critical: g.Critical}
	if g.Calls == nil && g.Within == nil && r.has(at) { // the grant is not a mapping, or both keys are misspelled
		return grant
	}
	if g.Calls == nil {
		r.add(at+".calls", "is required", "say how many calls one approval covers, for example calls: 10")
	} else if grant.Calls = *g.Calls; grant.Calls == 0 { // package engine would treat 0 as no grant
		r.add(at+".calls", fmt.Sprintf("0 is not between 1 and %d", engine.MaxGrantCalls), "")
	}
	if g.Within == nil {
		r.add(at+".within", "is required", "say how long the grant is valid, for example within: 1h")
	} else {
		grant.Within = time.Duration(*g.Within)
	}
	if g.Where != nil {
		grant.Where = *g.Where
		r.checkFilled(at+".where", grant.Where != "", "remove it if the grant covers all calls of the tool")
	}
	grant.ExtraArgs = r.extraArgs(at, g.ExtraArgs)
	return grant
}

const stepUpExample = "write it as {max_age: 5m, acr: [phr]}"

// stepUp converts the key approve_with in a rule. It adds a problem if the value is empty, because package engine
// treats an empty value as an absent key.
func (r *reader) stepUp(at string, s *stepUp) (out engine.StepUp) {
	r.checkFilled(at+".acr", s.ACR == nil || len(s.ACR) > 0, "remove it: then any acr is accepted")
	out.ACR = s.ACR
	if s.MaxAge != nil {
		if out.MaxAge = time.Duration(*s.MaxAge); out.MaxAge == 0 {
			r.add(at+".max_age", "is not between 1m and 24h", "")
		}
	}
	if s.MaxAge == nil && s.ACR == nil && !r.has(at) {
		r.add(at, "is empty", stepUpExample)
	}
	return out
}

func (r *reader) action(at string, name *string) engine.Action {
	if name == nil {
		return engine.ActionNone
	}
	action, ok := engine.ParseAction(*name)
	if !ok {
		r.add(at, fmt.Sprintf("unknown action %q", *name), actionHint(*name))
		return engine.ActionDeny
	}
	return action
}

func (r *reader) limit(at string, l *rateLimit, per []engine.Dimension) engine.RateLimit {
	limit := engine.RateLimit{Max: 1, Window: time.Second, Per: per}
	if l.Max == nil && l.Window == nil && r.has(at) { // the limit is not a mapping, or both keys are misspelled
		return limit
	}
	if l.Max == nil {
		r.add(at+".max", "is required", "say how many calls fit into the window, for example max: 10")
	} else {
		limit.Max = *l.Max
	}
	if l.Window == nil {
		r.add(at+".window", "is required", "say how long the window is, for example window: 60s")
	} else {
		limit.Window = time.Duration(*l.Window)
	}
	if l.Per != nil {
		limit.Per = r.dimensions(at+".per", l.Per)
	}
	return limit
}

func (r *reader) dimensions(at string, names []string) []engine.Dimension {
	per := make([]engine.Dimension, 0, len(names))
	for i, name := range names {
		d, ok := engine.ParseDimension(name)
		switch {
		case ok:
			per = append(per, d)
		case strings.ContainsAny(name, "./[$"):
			r.add(strictyaml.Index(at, i), "a limit that is counted by an argument is not supported by this version",
				"use "+strings.Join(engine.Dimensions(), ", "))
		default:
			r.add(strictyaml.Index(at, i), fmt.Sprintf("unknown dimension %q", name), strictyaml.Suggest(name, engine.Dimensions()))
		}
	}
	return per
}
