package engine

// Again says for which other calls a decision holds. The zero value is for none.
type Again struct {
	// Alike says that it holds for calls that are the same but for their params, and for
	// the sessions and runs of their subjects.
	Alike bool
	// BySession says that sessions and runs have to be the same too.
	BySession bool
}

// Again says for which other calls a decision on this one holds as long as the set and the
// facts of the tool are the same. A decision that asks people is theirs, each time; one that
// says that a tool is unknown or hidden is made again, so that both take the same time; and of
// a tool that can't be called more may change than the revision tells.
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
