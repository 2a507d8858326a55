package engine

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// A FactsComparer compares the decisions that one set makes on tools whose facts change.
type FactsComparer struct {
	set *Set
	// limits is true if the documents contain so many limits that calls may be refused because too many limits apply to
	// them.
	limits bool
}

// NewFactsComparer returns a comparer for a set. The parameter documents contains the documents from which the set was
// compiled.
func NewFactsComparer(set *Set, documents []Document) *FactsComparer {
	return &FactsComparer{set: set, limits: mayExceedLimits(documents)}
}

// Compare compares the decisions before and after a change to the facts about a tool. It returns the differences for
// all calls that differ from the given call only in their arguments and the time. The facts before and after the change
// are about the same definition, so their Arguments are equal. The results have the same meaning as those of the
// function [Compare]. If the tool's class changes, a condition that reads both the arguments and the class is assumed
// to have independent results before and after the change.
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

// MayOpen returns the rules because of which a change to the facts may make calls less restricted: calls that were
// refused may be permitted, or calls that needed approval may be allowed. These are the rules that permit calls and
// apply only after the change, and the rules that restrict calls and apply only before it. If the result is empty, the
// change makes no calls less restricted, or it does so for a call by one of the principals in [MentionedCallers].
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

// manyCallers reports whether rules distinguish so many kinds of callers that [MentionedCallers] may not contain an
// example of each kind. This is the case if a condition reads the caller, or if more than one rule matches only certain
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

// readsAny reports whether a rule's condition reads at least one of the variables.
func (r *rule) readsAny(variables condition.Variables) bool {
	return r.when != nil && r.when.Variables()&variables != 0
}

// restricts reports whether a rule can refuse calls, or require approval for calls.
func (f *FactsComparer) restricts(r *rule) bool {
	return r.Action >= ActionDeny || r.Action == ActionRequireApproval || r.Strict || f.limits && len(r.limits) > 0
}
