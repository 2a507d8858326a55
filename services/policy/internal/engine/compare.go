package engine

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

const (
	// maxCompared is the maximum number of unknown conditions for which [Compare] tries all combinations of results.
	maxCompared = 6
	// maxChanges limits how many changes Compare returns.
	maxChanges = 20
)

// A Change is a difference between the decisions of two sets on certain calls.
type Change struct {
	Before, After Decision
	// Assumptions says for which results of conditions the decisions differ. It contains the conditions in the rules that
	// made the decisions, if the results of these conditions depend on the call.
	Assumptions []Assumption
	// InvalidArguments is true if the change affects only calls whose arguments do not satisfy the tool's schema.
	InvalidArguments bool
}

// An Assumption is a result that is assumed for a condition.
type Assumption struct {
	Condition string
	Result    condition.Result
}

// Opens reports whether the change makes calls less restricted, because refused calls become permitted or calls that
// needed approval become allowed.
func (c *Change) Opens() bool { return rankOf(&c.After) > rankOf(&c.Before) }

// Closes reports whether the change makes calls more restricted, because permitted calls become refused or allowed
// calls need approval.
func (c *Change) Closes() bool { return rankOf(&c.After) < rankOf(&c.Before) }

// Compare returns the differences between the decisions of two sets on a call. It covers all calls that differ from the
// given call only in their arguments and the time. The sets must come from [CompilePair]. Decisions differ if their
// effects differ, if only one of them hides the tool, or if their limits, redactions or approval terms differ.
// Differences in reasons and codes do not count.
//
// A condition that occurs in both sets has the same result in both decisions. Compare treats different conditions as
// independent of each other, so a reported change may be impossible. The second result is false if there may be further
// changes, because there are too many conditions or changes.
func Compare(before, after *Set, call Call) (changes []Change, complete bool) {
	call.listed = true
	if refusal(&call) != "" || sameRules(before, after, &call) {
		return nil, true
	}
	c := comparer{before: before, after: after}
	return c.compareAll(&call, &call)
}

// comparer collects the changes for [Compare].
type comparer struct {
	before, after *Set
	changes       []Change
	// full is true if changes were omitted because there were too many.
	full bool
}

// compareAll compares the decisions on a call for all possible results of conditions. before and after are the same
// call before and after the change. They differ only if the classification or the status of the tool changes.
func (c *comparer) compareAll(before, after *Call) (changes []Change, complete bool) {
	before.evaluations = &evaluations{input: before.conditionInput()}
	after.evaluations = before.evaluations
	complete = before.evaluations.combine(maxCompared, func() {
		for _, invalid := range []error{nil, errAssumedArguments} {
			for _, call := range []*Call{before, after} {
				call.argumentsChecked, call.CheckArguments = false, func(string) error { return invalid }
			}
			c.compare(before, after, invalid != nil)
			if !before.argumentsChecked && !after.argumentsChecked {
				break
			}
		}
	})
	return c.changes, complete && !c.full
}

// compare compares the two decisions under the current assumptions about the results of conditions.
func (c *comparer) compare(before, after *Call, invalid bool) {
	before.evaluations.setClass(before)
	old, oldVerdict := c.before.decideObserved(before)
	after.evaluations.setClass(after)
	next, nextVerdict := c.after.decideObserved(after)
	if alikeDecisions(&old, &next) {
		return
	}
	change := Change{Before: old, After: next, InvalidArguments: invalid && (before.argumentsChecked || after.argumentsChecked)}
	if slices.ContainsFunc(c.changes, func(o Change) bool { return o.covers(&change) }) {
		return
	}
	if len(c.changes) == maxChanges {
		c.full = true
		return
	}
	add := func(a Assumption, open bool) {
		if open && !slices.Contains(change.Assumptions, a) {
			change.Assumptions = append(change.Assumptions, a)
		}
	}
	before.evaluations.setClass(before)
	add(before.assumption(&oldVerdict))
	after.evaluations.setClass(after)
	add(after.assumption(&nextVerdict))
	c.changes = append(c.changes, change)
}

// covers reports whether o is redundant because c is already in the list. This is the case if the same rules make the
// same decisions in both changes, and only the assumed results of conditions differ.
func (c *Change) covers(o *Change) bool {
	same := func(a, b *Decision) bool {
		return a.Rule == b.Rule && (a.Observed == nil) == (b.Observed == nil) && alikeDecisions(a, b)
	}
	return same(&c.Before, &o.Before) && same(&c.After, &o.After)
}

// assumption returns the condition of the rule that made a decision, and the result that is assumed for this condition.
// It returns false if no result is assumed, or if a default made the decision.
func (c *Call) assumption(v *verdict) (Assumption, bool) {
	r := cmp.Or(v.failedRule, v.scoped, v.rule)
	if r == nil || !c.isOpen(r) {
		return Assumption{}, false
	}
	result, _ := c.evaluate(r.when, v.chain)
	return Assumption{Condition: r.condition(), Result: result}, true
}

// sameRules reports whether the same rules and the same default apply to a call in both sets. If so, both sets make the
// same decision.
func sameRules(a, b *Set, call *Call) bool {
	return a.opens(call) == b.opens(call) && alikeRules(a, b, call) && alikeRules(a.withoutObservation(), b.withoutObservation(), call)
}

func alikeRules(a, b *Set, call *Call) bool {
	var spaceA, spaceB [16]*rule
	same := func(x, y *rule) bool { return x.ref == y.ref && x.digest == y.digest }
	return a.fallbacks.find(call.Server).value == b.fallbacks.find(call.Server).value &&
		slices.EqualFunc(a.find(spaceA[:0], call), b.find(spaceB[:0], call), same)
}

// alikeDecisions reports whether two decisions have the same consequences for a call.
func alikeDecisions(a, b *Decision) bool {
	if a.Effect != b.Effect || a.Hidden != b.Hidden {
		return false
	}
	if a.Effect == Deny {
		return true
	}
	return slices.Equal(limitKeys(a.Limits), limitKeys(b.Limits)) && alikeTerms(a.Approval, b.Approval) && alikeRedactions(a, b) && a.Record == b.Record
}

// A limitKey describes a limit independently of the rule that specifies it.
type limitKey struct {
	max    int64
	window time.Duration
	per    string
}

func limitKeys(limits []Limit) []limitKey {
	var out []limitKey
	for _, l := range limits {
		key := limitKey{max: l.Max, window: l.Window}
		if l.Cap {
			key.per = "cap "
		}
		for _, dimension := range l.Per {
			key.per += dimension.String() + " "
		}
		out = append(out, key)
	}
	slices.SortFunc(out, func(a, b limitKey) int {
		return cmp.Or(cmp.Compare(a.max, b.max), cmp.Compare(a.window, b.window), cmp.Compare(a.per, b.per))
	})
	return out
}

// alikeTerms reports whether two approval terms are the same, apart from the rules that define them.
func alikeTerms(a, b *ApprovalTerms) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.Equal(a.Approvers, b.Approvers) && a.Quorum == b.Quorum && a.SelfConfirm == b.SelfConfirm &&
		a.DecideWithin == b.DecideWithin && a.ExecuteWithin == b.ExecuteWithin && a.Grant == b.Grant && slices.Equal(a.Where, b.Where) &&
		a.ApproveWith.MaxAge == b.ApproveWith.MaxAge && slices.Equal(a.ApproveWith.ACR, b.ApproveWith.ACR)
}
