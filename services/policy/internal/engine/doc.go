// Package engine decides calls by policy documents. The policy service uses it. The package does no I/O, has no clock
// and stores nothing.
//
// # Rules
//
// The engine applies the rules of all documents that apply to a server. The order of rules and documents never matters.
// If several rules match a call, the strictest action wins: hide wins over deny, deny over require_approval, and
// require_approval over allow. Every limit of every matching rule applies. If no matching rule has an action, the
// strictest default of the documents that apply decides. Without a default the call is denied. Two sets of documents
// can therefore be merged in any order, and the merged set never allows a call that a rule of either set refuses.
//
// # Stops
//
// An operator can stop the calls of an agent or a tenant, the calls to a server, or all calls. A stop refuses a call
// before any rule is evaluated, with every method and for every principal of the chain. Lists stay the same.
//
// # Chains
//
// If a caller has a chain of principals, the call is decided for the caller and for each principal of the chain, and
// the strictest decision wins. A limit applies to the principal that its rule matches and to all principals that come
// after that principal in the chain. A caller therefore gains nothing by starting agents.
//
// # The rule that a decision names
//
// A decision names one of the rules with the winning action. A rule with a reason comes before a rule without one.
// After that, a rule for the caller comes before a rule for a principal of the chain. After that, rules are ordered by
// the names of document and rule.
//
// # Approvals
//
// If several rules require approval, all of them must be satisfied. The largest quorum and the shortest times apply,
// and only groups that every list of approvers names may decide. If the lists have no group in common, the call is
// denied. The person at the agent may confirm the call only if every one of these rules has self_confirm. A grant may
// be given only if every one of these rules has a grant, and then the smallest grant applies.
//
// # Observed rules, documents and servers
//
// Rules and documents that are observed decide nothing. On an observed server, calls that rules or defaults would refuse
// or hold for approval are allowed without limits. The decision then contains the decision that would apply if nothing
// were observed. Observing never opens a call that is refused for another reason.
//
// # Methods
//
// A rule concerns `tools/call` unless it names methods. Other methods have no default: they are denied unless a rule
// allows them. The gateway lets some methods pass without asking for a decision.
package engine
