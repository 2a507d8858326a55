package engine

import (
	"maps"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// maxWhere limits how many conditions a grant may have, because each condition takes time to evaluate.
const maxWhere = 8

// poolGrants combines the grants of several rules. The result has the smallest number of calls, the shortest time, and
// the conditions of all grants. The result is the zero Grant in these cases: a rule has no grant, a grant does not
// cover the tool, a grant's condition is not true for the call, or there are too many conditions.
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

// grants reports whether an approval of the call creates the rule's grant. For each principal to whom the rule applies,
// it must be possible to evaluate the rule's own condition, and the grant's condition must be true.
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
