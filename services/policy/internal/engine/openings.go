package engine

import (
	"cmp"
	"fmt"
	"slices"
)

// MayOpen returns the rules and defaults that were added, removed or changed so that they may allow calls that were
// refused, or allow calls without the approval that they needed. If the result is empty, no call is opened. The rule of a
// default is "default". Names, reasons, limits and the terms of approvals do not count.
func MayOpen(before, after []Document) (out []RuleRef) {
	for _, added := range changedRules(before, after) {
		if added.permits {
			out = append(out, added.ref)
		}
	}
	for _, removed := range changedRules(after, before) {
		if removed.restricts {
			out = append(out, removed.ref)
		}
	}
	slices.SortFunc(out, func(a, b RuleRef) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// A changedRule is a rule or a default. permits reports whether it lets calls pass, perhaps after an approval, and
// restricts whether it refuses calls or requires an approval.
type changedRule struct {
	ref                RuleRef
	permits, restricts bool
}

// changedRules returns the rules and defaults of documents that are not in base.
func changedRules(base, documents []Document) (out []changedRule) {
	known := make(map[string]bool)
	for i := range base {
		for key := range keysOf(&base[i]) {
			known[key] = true
		}
	}
	for i := range documents {
		for key, changed := range keysOf(&documents[i]) {
			if !known[key] {
				out = append(out, changed)
			}
		}
	}
	return out
}

// keysOf returns the rules and the default of a document by strings that are equal for rules with the same effect.
func keysOf(d *Document) map[string]changedRule {
	out := make(map[string]changedRule)
	key := func(parts ...any) string {
		return fmt.Sprintf("%#v", append(parts, d.Server, d.ObserveUntil.UnixNano()))
	}
	out[key("default", d.Default)] = changedRule{
		ref:     RuleRef{Document: d.Name, Rule: "default"},
		permits: d.Default == DefaultAllow || d.Default == DefaultByRisk, restricts: d.Default == DefaultDeny || d.Default == DefaultByRisk,
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		approval := r.Action == ActionRequireApproval
		id := key("rule", r.Tool, r.Match, r.When, r.ExtraArgs, r.Otherwise, r.Strict, r.Action, r.ObserveUntil.UnixNano())
		out[id] = changedRule{
			ref:     RuleRef{Document: d.Name, Rule: r.label()},
			permits: approval || r.Action == ActionAllow, restricts: approval || r.Action == ActionDeny || r.Action == ActionHide || r.Strict,
		}
	}
	return out
}
