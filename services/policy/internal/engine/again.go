package engine

// Cacheability says for which other calls a decision may be reused. The zero value means that it may not be reused.
type Again struct {
	// Cacheable reports whether the decision may be reused for calls that differ only in their params, and in the
	// sessions and runs of their subjects.
	Alike bool
	// BySession reports whether sessions and runs must be equal too.
	BySession bool
}

// Cacheability returns for which other calls the decision d about a call may be reused, while the set and the facts of
// the tool stay the same.
//
// A decision that requires approval may not be reused. Neither may a decision that a tool is unknown or hidden, so that
// both kinds of decisions take the same time. For a tool that can't be called, the facts may change without a change of
// the revision, so its decisions may not be reused either.
func (s *Set) Again(call Call, d Decision) Again {
	if d.Effect == RequireApproval || d.Hidden || d.Code == ToolUnknown || call.Facts.Standing != Callable || s.Evaluates(call) {
		return Again{}
	}
	out := Again{Alike: true}
	for i := range d.Limits {
		out.BySession = out.BySession || d.Limits[i].SessionKey != SessionKeyNone
	}
	return out
}
