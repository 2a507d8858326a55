package engine

// Cacheability says for which other calls a decision may be reused. The zero value means that the decision may not be
// reused.
type Cacheability struct {
	// Cacheable is true if the decision may be reused for calls that differ only in their params and in the sessions
	// and runs of their callers.
	Cacheable bool
	// BySession is true if the sessions and runs of the callers must also be the same.
	BySession bool
}

// Cacheability says for which other calls the decision d may be reused while the set and the facts about the tool are
// the same.
//
// Some decisions may not be reused:
//
//   - decisions that require approval
//   - decisions that depend on conditions
//   - decisions on hidden or unknown tools, because otherwise callers could recognize hidden tools by the response time
//   - decisions on tools that can't be called, because the facts about such a tool can change without a new revision
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
