package engine

import (
	"cmp"
	"strings"
	"time"
)

// A Call is one MCP request or notification, before it is sent to the server.
type Call struct {
	// Method is the MCP method. Empty means [MethodToolsCall].
	Method string
	// Server is the configured name of the server to which the call is sent.
	Server string
	// Tool is the name of the tool. For other methods, it is the name of a prompt, the URI of a resource, or the URI
	// template in the params.
	Tool string
	// Ref says whether a completion request is about a prompt ([RefPrompt]) or a resource ([RefResource]). If Ref is
	// empty, rules for prompts and rules for resources both match the request, except for rules with [ActionAllow].
	Ref string
	// Params is the `params` of the request as a JSON object. It is empty if there are no params.
	Params string
	// Subject is the caller.
	Subject Subject
	// Now is the time of the call, for conditions. If it is zero, conditions that read the time can't be evaluated.
	Now time.Time
	// Facts contains the catalog's facts about the tool, for the tool definition that the caller's session has seen. For
	// methods other than [MethodToolsCall], only Status is set, to the status of the server.
	Facts Facts
	// CheckArguments returns an error unless the tool's input schema declares the arguments in Params and the arguments
	// satisfy the schema. It is nil if the schema is not known. If it is nil, a rule with Strict refuses the call.
	CheckArguments func(params string) error

	// argumentsError is the result of CheckArguments if argumentsChecked is true.
	argumentsError   error
	argumentsChecked bool
	// listed is true if the call represents all calls to the tool or method, for example when the tools for a list are
	// selected. In this case, conditions know neither the arguments nor the time.
	listed bool
	// anyName is true if the name of the prompt or resource is unknown. In this case, all patterns for such names match.
	anyName bool
	// uriCache contains the result of [Call.uri]. It is nil before the first call of this method.
	uriCache *uriReadings
	// evaluations contains the results of conditions. It is nil before the first condition is evaluated.
	evaluations *evaluations
}

// OfTool reports whether the method is [MethodToolsCall].
func (c *Call) OfTool() bool { return c.Method == "" || c.Method == MethodToolsCall }

func (c *Call) method() string { return cmp.Or(c.Method, MethodToolsCall) }

// A Subject is a caller and the chain of principals for whom the caller works. The zero Subject's calls are refused.
type Subject struct {
	// Caller is the principal that makes the call.
	Caller Principal
	// Chain is the delegation chain, which contains the principals for whom the caller works. The first principal started
	// the caller, and each further principal started the one before it. The chain has at most [MaxChain] elements.
	Chain []Principal
}

// A Principal is a caller, or a principal in the delegation chain.
type Principal struct {
	// Tenant is the tenant of the principal. A call with an empty tenant is refused.
	Tenant string
	// Name is the subject of the principal, which is unique in the tenant. A call with an empty name is refused.
	Name string
	// Agent is the name of the calling agent. It is empty for people.
	Agent string
	// Owner is the subject of the person for whom the principal works. It is empty if the principal works for itself.
	// Owner affects only limits.
	Owner string
	// Groups contains the groups that the principal belongs to.
	Groups []string
	// Issuer, Client and Scopes are the issuer, the OAuth client and the scopes in the principal's JWT. They are empty if
	// the principal has a token from the mesh. Issuer and Client are read only by conditions.
	Issuer, Client string
	Scopes         []string
	// Session is the session at the gateway. It is empty for protocol versions without sessions.
	Session string
	// Run is the run that the client declared, or empty if the client did not declare a run.
	Run string
}

// at returns the principal with index i. The caller has index 0, and Chain[i-1] has index i.
func (s *Subject) at(i int) *Principal {
	if i == 0 {
		return &s.Caller
	}
	return &s.Chain[i-1]
}

func (s *Subject) size() int { return 1 + len(s.Chain) }

func (s *Subject) valid() bool {
	if len(s.Chain) > MaxChain {
		return false
	}
	for i := range s.size() {
		if p := s.at(i); p.Tenant == "" || p.Name == "" {
			return false
		}
	}
	return true
}

// A Decision is the decision on a call. The zero Decision refuses the call.
type Decision struct {
	// Effect says what happens to the call.
	Effect Effect
	// Code says why the call is refused or needs an approval. It is empty with [Allow].
	Code Code
	// Message is the reason that the deciding rule gives to the model and to people. It is empty if the rule has no
	// reason, or if it hides the tool.
	Message string
	// Rule is the rule that made the decision. It is zero if the decision comes from no rule.
	Rule RuleRef
	// RuleDigest is the SHA-256 digest of the content of this rule. It is zero if the decision comes from no rule.
	RuleDigest [32]byte
	// Limits contains the limits for the call. Before the gateway sends the call, it must reserve one unit of every limit
	// in a single reservation. Each limit has a different bucket.
	Limits []Limit
	// Approval is set if and only if Effect is [RequireApproval].
	Approval *ApprovalTerms
	// Idempotent is true if the call may be sent again after an unknown outcome. For this, rules with an action must apply
	// to the caller and to each principal in the chain, and all these rules must have Idempotent set.
	Idempotent bool
	// Timeout is the shortest timeout among the rules that apply, and TimeoutRule is the rule with this timeout. Both
	// are zero if no rule has a timeout, or if Effect is [Deny].
	Timeout     time.Duration
	TimeoutRule RuleRef
	// Redactions contains the redactions of all rules that apply, in the order of the rules. It is empty if Effect is
	// [Deny].
	Redactions []RuleRedaction
	// Record is true if a copy of the arguments must be stored. It is false if Effect is [Deny].
	Record bool
	// Hidden is true if the caller must receive the same error as for an unknown tool.
	Hidden bool
	// ChainIndex is the index of the principal that determines the decision. It is 0 for the caller, and i+1 for
	// Chain[i].
	ChainIndex int
	// NeededScopes contains the scopes that the rules require for the call. MissingScopes contains the scopes among them
	// that the principal does not have. Both are sorted. They are empty unless Code is [ScopeMissing].
	NeededScopes, MissingScopes []string
	// Observed is the decision that would be made without observe mode. It is nil if that decision would have the same
	// effects.
	Observed *Observation
}

// Effect is what the gateway does with a call.
type Effect uint8

// These are the effects.
const (
	// Deny means that the call is refused. It is the zero value.
	Deny Effect = iota
	// Allow means that the call is sent.
	Allow
	// RequireApproval means that the call is held until it is approved.
	RequireApproval
)

func (e Effect) String() string {
	return nameOf([]string{"deny", "allow", "require_approval"}, int(e), "Effect")
}

// Code says why a call is refused or needs an approval. It is the name of a `sluice.common.v1.Code` in lower case and
// without its prefix.
type Code string

// These are the codes that the engine returns.
const (
	// DeniedByRule means that a rule denies the call.
	DeniedByRule Code = "denied_by_rule"
	// DeniedByDefault means that a tool call is denied because no rule with an action matches it.
	DeniedByDefault Code = "denied_by_default"
	// ToolUnknown means that the tool is hidden, or that the catalog does not contain the tool or its server. It also
	// means that the server's name is not valid.
	ToolUnknown Code = "tool_unknown"
	// ToolNameInvalid means that the tool's name does not match `^[A-Za-z0-9_./-]{1,128}$`.
	ToolNameInvalid Code = "tool_name_invalid"
	// ToolChanged means that the definition of the tool waits for an operator's decision.
	ToolChanged Code = "tool_changed"
	// ToolQuarantined means that an operator has stopped the tool or its server.
	ToolQuarantined Code = "quarantined"
	// ApprovalRequired means that the call must be approved before it is sent.
	ApprovalRequired Code = "approval_required"
	// MethodDenied means that a method other than [MethodToolsCall] is denied because no rule with an action matches, or
	// because a rule hides the method. The defaults in documents do not apply to these methods.
	MethodDenied Code = "method_denied"
	// TypeError means that a condition can't be evaluated for the call, or that the arguments do not satisfy the tool's
	// input schema.
	TypeError Code = "type_error"
	// ScopeMissing means that rules permit the call, but that a principal does not have a scope that the rules require.
	ScopeMissing Code = "scope_missing"
	// Stopped means that a [Stop] by an operator applies to the call.
	Stopped Code = "stopped"
	// Unauthenticated means that a principal has no tenant or no name, or that the chain of principals is too long.
	Unauthenticated Code = "unauthenticated"
)

// A RuleRef is a reference to a rule.
type RuleRef struct {
	// Document is the name of the document.
	Document string
	// Rule is the rule's name. For an entry under `tools`, it is "tools." followed by the tool's name. The name of a rule
	// for `otherwise` ends with ".otherwise".
	Rule string
}

// String returns "document/rule".
func (r RuleRef) String() string { return r.Document + "/" + r.Rule }

// IsZero reports whether the reference names no rule.
func (r RuleRef) IsZero() bool { return r == RuleRef{} }

// A Limit limits the number of calls in a sliding window. The call for which the decision is made also counts.
type Limit struct {
	// Rule is the rule that specifies the limit.
	Rule RuleRef
	// Bucket identifies the limit's counter, in 43 characters. Calls that share the limit have the same bucket, even if
	// Max or the revision differs.
	Bucket string
	// Max is the maximum number of calls in the window.
	Max int64
	// Window is the length of the sliding window.
	Window time.Duration
	// Per lists the dimensions whose values are part of the bucket's identity.
	Per []Dimension
	// Cap is true if the limit caps the calls in all sessions of a principal together.
	Cap bool
	// SessionKey says how the session was identified.
	SessionKey SessionKey
}

// SessionKey says which value identifies the session of a call.
type SessionKey uint8

// These are the session keys.
const (
	// SessionKeyNone means that the limit does not count sessions separately.
	SessionKeyNone SessionKey = iota
	// SessionKeyRun means the run that the client declared.
	SessionKeyRun
	// SessionKeySession means the session at the gateway.
	SessionKeySession
	// SessionKeyPrincipal means the principal, for calls that have neither a run nor a session.
	SessionKeyPrincipal
)

func (k SessionKey) String() string {
	return nameOf([]string{"none", "run", "session", "principal"}, int(k), "SessionKey")
}

func validTool(name string) bool {
	if len(name) == 0 || len(name) > 128 {
		return false
	}
	for i := range len(name) {
		if !toolByte(name[i]) {
			return false
		}
	}
	return true
}

func toolByte(c byte) bool {
	return serverByte(c) || 'A' <= c && c <= 'Z' || c == '_' || c == '.' || c == '/'
}

func methodByte(c byte) bool { return toolByte(c) || c == '$' }

// uriByte reports whether a byte may occur in a plain URI or a URI template.
func uriByte(c byte) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune("\"<>\\^`|#", rune(c)) }

func validServer(name string) bool {
	if len(name) == 0 || len(name) > 32 {
		return false
	}
	for i := range len(name) {
		if !serverByte(name[i]) {
			return false
		}
	}
	return true
}

func serverByte(c byte) bool { return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' }
