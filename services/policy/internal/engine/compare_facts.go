package engine

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// A FactsComparer compares the decisions of a set before and after a change to the facts about a tool.
type FactsComparer struct {
	set *Set
	// limits is true if the documents have so many limits that a call could be refused because too many limits apply.
	limits bool
}

// NewFactsComparer returns a comparer for a set that was compiled from the given documents.
func NewFactsComparer(set *Set, documents []Document) *FactsComparer {
	return &FactsComparer{set: set, limits: mayExceedLimits(documents)}
}

// Compare returns the differences between the decisions before and after a change to the facts about a tool. It covers
// all calls that differ from the given call only in their arguments and the time. The facts before and after the change
// must be about the same definition, so that their Arguments are equal. The results have the same meaning as the
// results of the function [Compare]. If the tool's class changes, Compare assumes that a condition that reads the
// arguments and the class has independent results before and after the change.
func (f *FactsComparer) Compare(call Call, after Facts) (changes []Change, complete bool) {
	call.listed = true
	if refusal(&call) != "" {
		return nil, true
	}
	next := call
	next.Facts = after
	c := comparer{before: f.set, after: f.set}
	return c.compareAll(&call, &next)
}

// MayOpen returns the rules that may make calls less restricted after a change to the facts. These rules either permit
// calls and apply only after the change, or restrict calls and apply only before it. MayOpen returns nothing if
// [MentionedCallers] contains an example of each kind of caller, because Compare then finds all such calls. If the
// result is empty and the change makes some calls less restricted, then some of these calls are by a caller in
// MentionedCallers.
func (f *FactsComparer) MayOpen(call Call, after Facts) (out []RuleRef) {
	next := call
	next.Facts = after
	if next.Facts.Status != Callable {
		return nil
	}
	was, is := f.set.find(nil, &call), f.set.find(nil, &next)
	if !manyCallers(slices.Concat(was, is)) {
		return nil
	}
	opens := call.Facts.Status != Callable // in this case, every rule applies only after the change
	changed := func(r *rule, others []*rule) bool {
		return opens || !slices.Contains(others, r) || r.readsAny(condition.VariableTool)
	}
	for _, r := range is {
		if (r.Action == ActionAllow || r.Action == ActionRequireApproval) && changed(r, was) {
			out = append(out, r.ref)
		}
	}
	for _, r := range was {
		if !opens && f.restricts(r) && changed(r, is) {
			out = append(out, r.ref)
		}
	}
	if table := f.set.fallbacks.find(call.Server).table; table != nil {
		old, now := table[outcomeFor(&call.Facts)], table[outcomeFor(&after)]
		if opens || old.Action == ActionRequireApproval && now.Action == ActionAllow {
			out = append(out, now.ref)
		}
	}
	slices.SortFunc(out, func(a, b RuleRef) int { return cmp.Compare(a.String(), b.String()) })
	return slices.Compact(out)
}

// manyCallers reports whether the rules distinguish so many kinds of callers that [MentionedCallers] may not contain an
// example of each kind. This is possible if a condition reads the caller, or if several rules match only certain
// callers.
func manyCallers(rules []*rule) bool {
	var first *rule
	for _, r := range rules {
		if r.readsAny(condition.VariableCaller) {
			return true
		}
		if m := &r.Match; len(m.Agent)+len(m.Principal)+len(m.Groups)+len(m.Tenant) == 0 || r == first {
			continue
		}
		if first != nil {
			return true
		}
		first = r
	}
	return false
}

// readsAny reports whether a rule's condition reads one of the given variables.
func (r *rule) readsAny(variables condition.Variables) bool {
	return r.when != nil && r.when.Variables()&variables != 0
}

// restricts reports whether a rule can refuse calls or require approval for them.
func (f *FactsComparer) restricts(r *rule) bool {
	return r.Action >= ActionDeny || r.Action == ActionRequireApproval || r.Strict || f.limits && len(r.limits) > 0
}
