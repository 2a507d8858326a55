package engine

import (
	"errors"
	"slices"
	"time"
)

// checkForward checks the keys timeout and forward of a rule.
func (c *checker) checkForward(r *Rule) {
	if r.Timeout != 0 && (r.Timeout < MinTimeout || r.Timeout > MaxTimeout) {
		c.add("timeout", "is not between 1ms and 1h", "")
	}
	if refuses := r.Action == ActionDeny || r.Action == ActionHide; refuses {
		if r.Timeout != 0 {
			c.add("timeout", "has no effect: the rule refuses all calls", "remove it")
		}
		if r.Strict {
			c.add("forward", "has no effect: the rule refuses all calls", "remove it")
		}
		return
	}
	if tools, _ := r.Match.scope(); r.Strict && !tools {
		c.add("forward", "has no effect: the rule does not match tools/call, and only tools have a schema of their arguments", "remove it")
	}
}

// ChecksArguments reports whether the decision on a call may depend on Call.CheckArguments.
func (s *Set) ChecksArguments(call Call) bool {
	s = s.withoutObservation() // rules in observe mode are evaluated too
	if !s.conditional || !call.OfTool() || refusal(&call) != "" {
		return false
	}
	var space [16]*rule
	return slices.ContainsFunc(s.find(space[:0], &call), func(r *rule) bool { return r.Strict })
}

// strictRule returns a rule with Strict that applies to the call, and the index of the principal to whom it applies. It
// returns nil if there is no such rule. All given rules must match the call.
func (c *Call) strictRule(rules []*rule) (*rule, int) {
	if !c.OfTool() {
		return nil, 0
	}
	for i := range c.Subject.size() {
		for _, r := range rules {
			if r.Strict && c.limits(r, i) {
				return r, i
			}
		}
	}
	return nil, 0
}

var errNoSchema = errors.New("the tool's definition is not known here; list the server's tools (tools/list) and send the call again")

// checkArguments checks the arguments of the call against the tool's input schema. The check is made only once for each
// call, and its result is cached.
func (c *Call) checkArguments() error {
	if c.argumentsChecked {
		return c.argumentsError
	}
	c.argumentsChecked, c.argumentsError = true, errNoSchema
	if c.CheckArguments != nil {
		c.argumentsError = c.CheckArguments(c.Params)
	}
	return c.argumentsError
}

// refusedArguments returns the decision that refuses a call because rule r has Strict and the arguments do not satisfy
// the schema.
func refusedArguments(r *rule, chain int, err error) Decision {
	return Decision{
		Code: TypeError, Rule: r.ref, RuleDigest: r.digest, ChainIndex: chain,
		Message: err.Error() + " (rule " + r.ref.String() + " has forward: strict)",
	}
}

// checkStrict returns the check of the arguments for an explanation.
func checkStrict(call *Call) Check {
	c := Check{Name: "forward", Want: "strict", Got: "the arguments satisfy the tool's input schema", Held: true}
	if err := call.checkArguments(); err != nil {
		c.Got, c.Held = err.Error(), false
	}
	return c
}

// timeout returns the shortest timeout of the rules that apply to a principal of the call, and the rule with this
// timeout. All given rules must match the call.
func (c *Call) timeout(rules []*rule) (shortest time.Duration, of RuleRef) {
	for _, r := range rules {
		if r.Timeout != 0 && (shortest == 0 || r.Timeout < shortest) && c.limitsAny(r) {
			shortest, of = r.Timeout, r.ref
		}
	}
	return shortest, of
}
