package engine

// recordedBy reports whether a rule that applies to a principal of the call requires a record of the arguments. All
// given rules must match the call.
func (c *Call) recordedBy(rules []*rule) bool {
	for _, r := range rules {
		if r.Record && c.limitsAny(r) {
			return true
		}
	}
	return false
}

// checkRecord adds an error for a rule that records arguments although it refuses all calls or does not match
// tools/call.
func (c *checker) checkRecord(r *Rule) {
	if !r.Record {
		return
	}
	if r.Action == ActionDeny || r.Action == ActionHide {
		c.add("record", "has no effect: the rule refuses all calls", "remove it")
		return
	}
	if tools, _ := r.Match.scope(); !tools {
		c.add("record", "has no effect: the rule does not match tools/call", "remove it, or match tools")
	}
}
