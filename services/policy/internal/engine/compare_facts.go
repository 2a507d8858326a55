package engine

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// A FactsComparer compares the decisions of one set about tools whose facts change.
type FactsComparer struct {
	set *Set
	// limits reports whether calls may be refused because too many limits apply.
	limits bool
}

// NewFactsComparer returns a comparer for a set that was compiled from documents.
func NewFactsComparer(set *Set, documents []Document) *FactsComparer {
	return &FactsComparer{set: set, limits: mayExceedLimits(documents)}
}

// Compare returns the differences between the decisions about the calls that are equal to call except for their arguments
// and the time, before and after the facts about the tool change. Both facts are about the same definition, so their
// Arguments are equal. The results are those of the function [Compare]. A condition that reads both the arguments and the
// class is taken to have independent results before and after the change of a class.
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

// MayOpen returns the rules because of which the change of the facts may allow calls that were refused, or allow calls
// without the approval that they needed: rules that permit and apply only after the change, and rules that restrict and
// apply only before it. If the result is empty, a call by one of the principals of [MentionedCallers] is opened, or no
// call is.
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
	opens := call.Facts.Status != Callable // so that every rule applies only after the change
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

// manyCallers reports whether rules distinguish callers so that [MentionedCallers] may not have an example of each kind:
// by a condition, or more than one of them by a match.
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

// readsAny reports whether the condition of a rule reads one of the variables.
func (r *rule) readsAny(variables condition.Variables) bool {
	return r.when != nil && r.when.Variables()&variables != 0
}

// restricts reports whether a rule can refuse calls or require an approval.
func (f *FactsComparer) restricts(r *rule) bool {
	return r.Action >= ActionDeny || r.Action == ActionRequireApproval || r.Strict || f.limits && len(r.limits) > 0
}
