package engine

// Again says for which other calls a decision holds. The zero value means for none.
type Again struct {
	// Alike says that the decision holds for calls that differ only in their params and in the sessions and runs of
	// their subjects.
	Alike bool
	// BySession says that sessions and runs must also be the same.
	BySession bool
}

// Again returns for which other calls a decision on this call holds while the set and the facts of the tool are the
// same. A decision that requires approval is made for each call. So is a decision that a tool is unknown or hidden, so
// that both take the same time. For a tool that can't be called, more may change than the revision shows.
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
