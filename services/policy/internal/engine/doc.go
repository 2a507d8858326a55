// Package engine makes decisions on calls according to policy documents. It does no I/O, reads no clock and stores
// nothing. The policy service uses this package.
//
// # Rules
//
// The engine applies the rules of all documents that apply to the server of a call. The order of rules and documents
// never matters. If several rules match a call, the strictest action wins: hide is stricter than deny, deny than
// require_approval, and require_approval than allow. Every limit of every matching rule applies. If no matching rule
// has an action, the strictest default of the documents decides. If there is no default either, the call is denied.
// Therefore two sets of documents can be merged in any order, and the merged set never allows a call that a rule in one
// of the sets refuses.
//
// # Stops
//
// An operator can stop the calls of an agent or a tenant, the calls to a server, or all calls. A stop refuses a call
// before any rule is evaluated. It applies to all methods, to the caller, and to every principal in the caller's
// delegation chain. A stop does not change which tools are listed.
//
// # Chains
//
// If a caller has a delegation chain, the engine makes a decision for the caller and for each principal in the chain,
// and the strictest decision wins. If a limit's rule matches one of these principals, the limit applies to this
// principal and to all principals after it in the chain. Therefore a caller gains nothing by starting agents.
//
// # The rule that a decision names
//
// A decision names one of the rules with the strictest action. It prefers rules with a reason. Among these, it prefers
// rules for the caller to rules for a principal in the chain. Among these, it chooses the first one in the order of
// document names and rule names.
//
// # Approvals
//
// If several rules require approval, the approval must satisfy all of them. The largest quorum and the shortest times
// apply. Only groups that are in every list of approvers may approve. If no group is in every list, the call is denied.
// The same applies to the authentication context classes in approve_with. Of its max_age, the smallest applies. The
// person who uses the agent may confirm the call only if all these rules have self_confirm. One approval may cover
// several calls (a grant) only if all these rules have a grant, and then the smallest grant applies.
//
// # Scopes
//
// A rule that allows calls or requires approval for them may require OAuth scopes. The caller and each principal in the
// delegation chain need the scopes of all rules that apply to them. If a scope is missing, the call is refused. The
// tools are listed nevertheless, so that a client can sign in again with the missing scopes.
//
// # Observed rules, documents and servers
//
// In observe mode (mode: observe), rules and documents are only recorded and not enforced. On a server in observe mode,
// calls that rules or defaults would refuse or hold for approval are allowed without limits. The decision then also
// contains the decision that would be made if everything were enforced. Observe mode never allows a call that is
// refused for a different reason.
//
// # Methods
//
// A rule concerns `tools/call` unless it names other methods. These have no default, so they are denied unless a rule
// allows them. The gateway allows some methods without asking for a decision.
package engine
