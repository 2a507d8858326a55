package engine

import (
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// maxWhere bounds the conditions of one grant: what an answer holds.
const maxWhere = 64

// poolGrants returns the smallest of the grants and their conditions, where every rule
// gives one and every condition holds for a call with these params; else the zero
// Grant. A condition that can't be told does not hold.
func poolGrants(asking []*rule, params string) (Grant, []string) {
	pooled := asking[0].Grant
	var where []string
	for _, r := range asking {
		if r.Grant == (Grant{}) {
			return Grant{}, nil
		}
		pooled.Calls = min(pooled.Calls, r.Grant.Calls)
		pooled.Within = min(pooled.Within, r.Grant.Within)
		pooled.Critical = pooled.Critical && r.Grant.Critical
		if r.where != nil {
			where = append(where, r.Grant.Where)
		}
	}
	slices.Sort(where)
	where = slices.Compact(where)
	if held, _ := hold(asking, params); !held || len(where) > maxWhere {
		return Grant{}, nil
	}
	pooled.Where = ""
	return pooled, where
}

// hold tells whether the conditions of all rules hold.
func hold(rules []*rule, params string) (bool, error) {
	if !slices.ContainsFunc(rules, func(r *rule) bool { return r.where != nil }) {
		return true, nil // without reading the params
	}
	args, err := condition.ParseArguments(params)
	if err != nil {
		return false, err
	}
	for _, r := range rules {
		if r.where == nil {
			continue
		}
		if held, err := r.where.Holds(args); !held {
			return false, err
		}
	}
	return true, nil
}
