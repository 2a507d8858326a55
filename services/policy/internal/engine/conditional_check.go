package engine

import (
	"errors"
	"slices"

	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
)

// checkEffect adds an error for a rule that has no effect. For a rule for `otherwise`, a reason alone is an effect,
// because the reason is shown if a default refuses the call.
func (c *checker) checkEffect(r *Rule) {
	switch {
	case r.Action != ActionNone || len(r.Limits) > 0 || r.Timeout != 0 || r.Strict || len(r.Redactions) > 0 || r.Record:
	case !r.Otherwise:
		c.add("", "has no effect: it has neither an action nor a rate_limit", "add an action or a rate_limit, or remove the rule")
	case r.Reason == "":
		c.add("", "has no effect: it has no action, no rate_limit and no reason", "add one of them, or remove otherwise")
	}
}

// checkWhen checks the keys of a rule for its condition.
func (c *checker) checkWhen(r *Rule) {
	if r.When == "" {
		if r.ExtraArgs || r.Otherwise {
			c.add("extra_args", "has no effect without when", "remove it")
		}
		return
	}
	if !r.Otherwise { // the condition of a rule for `otherwise` was already checked in the rule before it
		c.checkCondition("when", r.condition())
	}
	if r.Action != ActionHide {
		return
	}
	const notInLists = condition.VariableArgs | condition.VariableNow
	if compiled, err := condition.Compile(r.When); err == nil && compiled.Variables()&notInLists != 0 {
		c.add("action", "hides a tool depending on arguments or the time, which are not known when tools are listed", "use deny")
	}
}

// checkAllowedAnyway adds an error for a rule that allows calls under a condition if the document's default already
// allows all calls.
func (c *checker) checkAllowedAnyway(d *Document) {
	if d.Default != DefaultAllow {
		return
	}
	for i := range d.Rules {
		r := &d.Rules[i]
		decides := func(o Rule) bool {
			return o.Otherwise != r.Otherwise && o.Name == r.Name && o.Tool == r.Tool && o.Action != ActionNone
		}
		if tools, _ := r.Match.scope(); r.When == "" || r.Action != ActionAllow || !tools || slices.ContainsFunc(d.Rules, decides) {
			continue
		}
		c.rule = i
		c.add("action", "allows some calls, and the document's default allows all others too", "add otherwise: {action: deny}, or write default: deny")
	}
}

func (c *checker) checkCondition(field, text string) {
	if hasUnprintable(text) {
		c.add(field, "contains an unprintable character", `write it as an escape, for example "\u00a0"`)
		return
	}
	_, err := condition.Compile(text)
	if problem, ok := errors.AsType[*condition.TextError](err); ok {
		c.add(field, problem.Message, problem.Suggestion)
	} else if err != nil {
		c.add(field, err.Error(), "")
	}
}
