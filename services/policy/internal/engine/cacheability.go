package engine

// Cacheability says for which other calls a decision may be reused. The zero value means for none.
type Cacheability struct {
	// Cacheable is true if the decision may be reused for calls that differ only in their params and in the sessions
	// and runs of their callers.
	Cacheable bool
	// BySession is true if the sessions and runs of the callers must also be the same.
	BySession bool
}

// Cacheability says for which other calls the decision d may be reused, as long as the set and the facts about the tool
// stay the same.
//
// A decision that requires approval may not be reused. A decision on a hidden or unknown tool may not be reused either.
// As a result, decisions on hidden tools take the same time as decisions on unknown tools, so that callers can't
// distinguish these tools. A decision on a tool that can't be called may not be reused, because the facts about the
// tool may change although the revision stays the same. The same applies to decisions that depend on conditions.
func (s *Set) Cacheability(call Call, d Decision) Cacheability {
	if d.Effect == RequireApproval || d.Hidden || d.Code == ToolUnknown || call.Facts.Status != Callable || s.EvaluatesConditions(call) {
		return Cacheability{}
	}
	out := Cacheability{Cacheable: true}
	for i := range d.Limits {
		out.BySession = out.BySession || d.Limits[i].SessionKey != SessionKeyNone
	}
	if d.Observed != nil {
		for i := range d.Observed.Limits {
			out.BySession = out.BySession || d.Observed.Limits[i].SessionKey != SessionKeyNone
		}
	}
	return out
}
