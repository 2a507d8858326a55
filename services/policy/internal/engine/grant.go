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
	conditions := make(map[string]*condition.Condition)
	for _, r := range asking {
		if r.Grant == (Grant{}) || !r.Grant.Critical && call.Facts.dangerous() {
			return Grant{}, nil
		}
		pooled.Calls = min(pooled.Calls, r.Grant.Calls)
		pooled.Within = min(pooled.Within, r.Grant.Within)
		pooled.Critical = pooled.Critical && r.Grant.Critical
		if r.where != nil {
			conditions[r.Grant.Condition()] = r.where
		}
	}
	pooled.Where, pooled.ExtraArgs = "", false
	if len(conditions) == 0 {
		return pooled, nil // the params need not be parsed
	}
	if len(conditions) > maxWhere {
		return Grant{}, nil
	}
	args, err := condition.ParseArguments(call.Params)
	if err != nil {
		return Grant{}, nil
	}
	for _, c := range conditions {
		if held, _ := c.Holds(args); !held {
			return Grant{}, nil
		}
	}
	return pooled, slices.Sorted(maps.Keys(conditions))
}
