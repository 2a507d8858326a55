// Package engine decides calls by policy documents. The policy service uses it. It is pure: it does no I/O, has no
// clock and stores nothing.
//
// The rules of all documents that apply to a server are collected, and their order never matters. Of the rules that
// match a call the strictest action wins: hide wins over deny, deny over require_approval, require_approval over
// allow. Every limit of every matching rule applies. If no rule with an action matches, the strictest default of the
// documents that apply counts; without a default the call is denied. Two sets of documents can therefore be merged in
// any order, and a merge never allows what a rule of either set refuses.
//
// A caller with principals behind it is decided as itself and as each of them. The strictest decision holds. A limit
// applies to the principal that its rule matches and to every principal behind that one, so a caller gains nothing by
// starting agents.
//
// Among the rules with the winning action, a decision names a rule with a reason before one without, then a rule for
// the caller before one for the principals behind it, then the first by the names of document and rule. If several
// rules require approval, all of them must be satisfied: the largest quorum and the shortest times hold, and only
// groups that every list of approvers names may decide. The person at the agent may confirm, or a grant be given, only
// if every one of these rules says so, and the smallest grant holds. If no group is left, the call is denied. A call
// with an unknown outcome may be sent again only if every rule that decides on it says so.
//
// A rule concerns `tools/call` unless it names methods. Other methods have no default: what no rule allows is denied.
// Methods that always pass are let through before policy is asked.
package engine
