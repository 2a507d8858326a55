package engine

// Cacheability says for which other calls a decision may be reused. The zero value means that the decision may not be
// reused.
type Cacheability struct {
	// Cacheable reports whether the decision may be reused for calls that differ only in their params, and in the
	// sessions and runs of their callers.
	Cacheable bool
	// BySession reports whether the sessions and runs of the callers must also be equal.
	BySession bool
}

// Cacheability says for which other calls the decision d on a call may be reused, while the set and the facts about the
// tool stay the same.
//
// A decision that requires approval may not be reused. A decision that says that a tool is unknown or hidden may not be
// reused either. Therefore decisions on hidden tools and on unknown tools take the same time, so that callers can't
// distinguish these tools. Decisions on a tool that can't be called may not be reused, because the facts about the tool
// may change although the revision stays the same.
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
