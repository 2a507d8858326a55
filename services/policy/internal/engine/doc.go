// Package engine makes decisions on calls according to policy documents. The policy service uses it. The package does
// no I/O, has no clock and stores nothing.
//
// # Rules
//
// The engine applies the rules in all documents that apply to a server. The order of rules and documents never matters.
// If several rules match a call, the strictest action wins: hide wins over deny, deny over require_approval, and
// require_approval over allow. Every limit of every matching rule applies. If no matching rule has an action, the
// strictest default among the documents that apply is used. Without a default the call is denied. Two sets of documents
// can therefore be merged in any order, and the merged set never allows a call that a rule in either set refuses.
//
// # Stops
//
// An operator can stop the calls of an agent or a tenant, the calls to a server, or all calls. A stop refuses a call
// before any rule is evaluated. It applies to every method, to the caller, and to every principal in the caller's
// delegation chain. Lists stay the same.
//
// # Chains
//
// If a caller has a delegation chain, a decision is made for the caller and for each principal in the chain, and the
// strictest decision wins. A limit applies to the principal that its rule matches and to all principals that come after
// that principal in the chain. A caller therefore gains nothing by starting agents.
//
// # The rule that a decision names
//
// A decision contains the name of one of the rules with the winning action. Rules with a reason are preferred to rules
// without a reason. Next, rules for the caller are preferred to rules for a principal in the chain. Finally, rules are
// ordered by the names of document and rule.
//
// # Approvals
//
// If several rules require approval, all of them must be satisfied. The largest quorum and the shortest times apply.
// Only groups that are in every list of approvers may approve. If the lists have no group in common, the call is
// denied. The same holds for the authentication context classes in approve_with, of which also the smallest max_age
// applies. The person who uses the agent may confirm the call only if every one of these rules has self_confirm. One
// approval may cover several calls (a grant) only if every one of these rules has a grant, and then the smallest grant
// applies.
//
// # Scopes
//
// A rule that allows calls or requires approval for them may need OAuth scopes. The caller and each principal in the
// delegation chain need the scopes of all rules that apply to them. A call is refused if a scope is missing. Lists stay
// the same, so that a client can sign in again with the missing scopes.
//
// # Observed rules, documents and servers
//
// Rules and documents in observe mode (mode: observe) are not enforced, only recorded. On a server in observe mode,
// calls that rules or defaults would refuse or hold for approval are allowed without limits. The decision then contains
// the decision that would be made if everything were enforced. Observe mode never allows a call that is refused for
// another reason.
//
// # Methods
//
// A rule concerns `tools/call` unless it names methods. Other methods have no default: they are denied unless a rule
// allows them. The gateway allows some methods without asking for a decision.
package engine
