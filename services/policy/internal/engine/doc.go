// Package engine judges calls by policy documents. It is pure: values go in,
// values come out, nothing is read, kept or timed.
//
// The rules of all documents that apply to a server are pooled, and their order
// never matters. Of the rules that match a call the strictest action wins: hide
// beats deny, deny beats require_approval, require_approval beats allow. Every
// limit of every matching rule applies. Only where no rule with an action matched
// do defaults count, then the strictest of the applicable documents'; where none
// has one, the call is denied. So two sets of documents can be merged without
// reading them in order: merging never lets through what a rule of either
// refuses.
//
// A caller with principals behind it is judged as itself and as each of them. The
// strictest verdict holds, and a limit weighs on the principal that its rule
// matches and on everyone behind that one: whoever starts agents gains nothing.
//
// The rule that is named is, among those of the winning action, one that gives a
// reason before one that gives none, then the caller's before those of the
// principals behind it, then the first by the names of document and rule. Where
// several rules ask for approval, all must be content: the largest quorum holds,
// only groups that every list of approvers names may decide, and the times are the
// shortest; a person at the agent may confirm, or a grant be given, only where every
// one of them says so, and the smallest grant holds. Where no group is left the call
// is denied. A call may be sent again after an unknown outcome only where every rule
// that decides on it says so.
//
// A rule is about `tools/call` unless it names methods. For other methods there is no
// default: what no rule allows is denied. Those that always pass are let through before
// policy is asked.
package engine
