package engine_test

import (
	"cmp"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// modelResult returns the result of a rule's condition. It is True if the rule has no condition.
func modelResult(r engine.Rule, call engine.Call, p engine.Principal) condition.Result {
	if r.When == "" {
		return condition.True
	}
	result := someConditions[r.When](call, p)
	switch {
	case !r.Otherwise || result == condition.Failed:
		return result
	case result == condition.True:
		return condition.False
	}
	return condition.True
}

// modelDecides reports whether a rule matches a call and a principal, and its condition has the result that the rule
// requires. A condition that can't be evaluated counts as having this result, unless the rule's action is allow.
func modelDecides(d engine.Document, r engine.Rule, call engine.Call, p engine.Principal) bool {
	if !modelConcerns(d, r, call, p) {
		return false
	}
	result := modelResult(r, call, p)
	return result == condition.True || result == condition.Failed && r.Action != engine.ActionAllow
}

// modelFailedAllow returns a vote to deny the call if the condition of a rule that allows the call can't be evaluated.
func modelFailedAllow(documents []engine.Document, call engine.Call, p engine.Principal) (vote, bool) {
	var found []vote
	for _, d := range documents {
		for _, r := range d.Rules {
			if r.Action == engine.ActionAllow && modelConcerns(d, r, call, p) && modelResult(r, call, p) == condition.Failed {
				found = append(found, vote{action: engine.ActionDeny, document: d.Name, name: modelName(r), failed: true})
			}
		}
	}
	if len(found) == 0 {
		return vote{}, false
	}
	return slices.MinFunc(found, func(a, b vote) int {
		return cmp.Or(cmp.Compare(a.document, b.document), cmp.Compare(a.name, b.name))
	}), true
}

// modelHint returns the reason that is shown if a default refuses a call.
func modelHint(documents []engine.Document, call engine.Call, p engine.Principal) string {
	hint := ""
	for _, d := range slices.SortedFunc(slices.Values(documents), func(a, b engine.Document) int { return cmp.Compare(b.Name, a.Name) }) {
		for _, r := range d.Rules {
			if r.Action == engine.ActionNone && modelConcerns(d, r, call, p) && modelResult(r, call, p) == condition.True {
				hint = cmp.Or(r.Reason, hint)
			}
		}
	}
	return hint
}
