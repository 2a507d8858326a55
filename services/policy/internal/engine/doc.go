// Package engine makes decisions on calls according to policy documents. It does no I/O, reads no clock and stores
// nothing. The policy service uses this package.
//
// # Rules
//
// The engine uses the rules of all documents that apply to the server of a call. The order of rules and documents does
// not matter. If several rules match a call, the strictest action wins. The actions from strict to permissive are hide,
// deny, require_approval and allow. All limits of all matching rules apply. If no matching rule has an action, the
// strictest default of the documents decides. If there is no default, the call is denied. Therefore sets of documents
// can be merged in any order. A merged set never allows a call that a rule in one of the sets refuses.
//
// # Stops
//
// An operator can stop the calls of an agent or a tenant, the calls to a server, or all calls. A stop refuses a call
// before any rule is evaluated. It applies to all methods, to the caller, and to every principal in the caller's
// delegation chain. A stop does not change which tools are listed.
//
// # Chains
//
// If a caller has a delegation chain, the engine makes a decision for the caller and for each principal in the chain.
// The strictest decision wins. If the rule of a limit matches one of these principals, the limit also applies to all
// principals that follow in the chain. Therefore starting further agents does not give a caller more rights.
//
// # The rule that a decision names
//
// A decision names one of the rules with the strictest action. Rules with a reason come first. Among these, rules for
// the caller come before rules for a principal in the chain. If several rules remain, the engine uses the first one in
// the order of document names and rule names.
//
// # Approvals
//
// If several rules require approval, the approval must satisfy all of them. The largest quorum and the shortest times
// apply. Only members of groups that are in every list of approvers may approve. If no group is in every list, the call
// is denied. The same applies to the authentication context classes in approve_with. The smallest max_age in
// approve_with applies. The person who uses the agent may confirm the call only if all these rules have self_confirm.
// One approval may cover several calls (a grant) only if all these rules have a grant, and then the smallest grant
// applies.
//
// # Scopes
//
// A rule that allows calls or requires approval for them can require OAuth scopes. The caller and each principal in the
// delegation chain need the scopes in all rules that apply to them. If a scope is missing, the call is refused. The
// tools are still listed, so that a client can sign in again with the missing scopes.
//
// # Observed rules, documents and servers
//
// In observe mode (mode: observe), rules and documents are not enforced, and their decisions are only recorded. On a
// server in observe mode, calls that rules or defaults would refuse or hold for approval are allowed without limits.
// The decision then also contains the decision that would be made without observe mode. Observe mode never allows a
// call that is refused for a different reason.
//
// # Methods
//
// A rule applies to `tools/call` unless it names other methods. Other methods have no default, so they are denied
// unless a rule allows them. The gateway allows some methods without requesting a decision.
package engine
