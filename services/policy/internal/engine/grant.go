package engine

import (
	"maps"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// maxWhere is the largest number of conditions of one grant, because each condition takes time to evaluate.
const maxWhere = 8

// poolGrants combines the grants of rules. The result has the smallest number of calls, the shortest time, and all
// conditions. It is the zero Grant if a rule has no grant, if a rule's grant does not cover the tool, or if a condition
// is not true for the call. A condition that can't be evaluated is not true.
func poolGrants(asking []*rule, call *Call) (Grant, []string) {
	pooled := asking[0].Grant
	conditions := make(map[string]bool)
	for _, r := range asking {
		if r.Grant == (Grant{}) || !r.Grant.Critical && call.Facts.dangerous() || !call.grants(r) {
			return Grant{}, nil
		}
		pooled.Calls = min(pooled.Calls, r.Grant.Calls)
		pooled.Within = min(pooled.Within, r.Grant.Within)
		pooled.Critical = pooled.Critical && r.Grant.Critical
		if r.where != nil {
			conditions[r.Grant.Condition()] = true
		}
	}
	pooled.Where, pooled.ExtraArgs = "", false
	if len(conditions) > maxWhere {
		return Grant{}, nil
	}
	return pooled, slices.Sorted(maps.Keys(conditions))
}

// grants reports whether a rule that requires approval gives a grant for the call: the rule's own condition could be
// evaluated, and the grant's condition is true, for each principal to which the rule applies.
func (c *Call) grants(r *rule) bool {
	for i := range c.Subject.size() {
		if !c.applies(r, i) {
			continue
		}
		if c.failure(r, i) != nil {
			return false
		}
		if r.where == nil {
			continue
		}
		if result, _ := c.evaluate(r.where, i); result != condition.True {
			return false
		}
	}
	return true
}
