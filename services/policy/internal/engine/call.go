package engine

import (
	"strings"
	"time"
)

// A Call is one MCP request, before it is made.
type Call struct {
	// Method is the MCP method. Empty means [MethodToolsCall].
	Method string
	// Server is the configured name of the server that the call goes to.
	Server string
	// Tool is the name of the tool or, for another method, what its params name: the name of a prompt, the URI of a
	// resource, or a template of URIs.
	Tool string
	// Ref says what a completion is for: [RefPrompt] or [RefResource]. A completion without it is matched by rules that
	// refuse, and not by rules that allow.
	Ref string
	// Params is the `params` of the request, a JSON object; empty means none.
	Params string
	// Subject is the caller.
	Subject Subject
	// Facts are the facts of the catalog about the tool with the definition that the caller's session has listed. For a
	// method other than [MethodToolsCall] only Standing is set, to that of the server.
	Facts Facts

	// read caches the readings of the call's URI.
	read *readings
}

// OfTool reports whether the call is of a tool.
func (c *Call) OfTool() bool { return c.Method == "" || c.Method == MethodToolsCall }

// A Subject is a caller and the principals behind it. The zero Subject is refused.
type Subject struct {
	// Caller is the principal that calls.
	Caller Principal
	// Chain lists the principals behind the caller, at most [MaxChain]: first the principal that made the caller, then
	// the principal that made that one, and so on.
	Chain []Principal
}

// A Principal is a caller, or a principal that made it.
type Principal struct {
	// Tenant of the principal. An empty tenant is refused.
	Tenant string
	// Name of the subject, unique in the tenant. An empty name is refused.
	Name string
	// Agent is the name of the agent that calls; empty for people.
	Agent string
	// Owner is the subject of the person for whom the principal works; empty means the principal itself. Only limits
	// use it.
	Owner string
	// Groups of the subject.
	Groups []string
	// Session is the gateway's session; empty if the protocol has none.
	Session string
	// Run is the run that the client declared; empty if it declared none.
	Run string
}

// at returns the principal at an index: 0 is the caller, 1 the nearest behind it.
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

// A Decision is the decision about a call. The zero value refuses.
type Decision struct {
	// Effect says what to do with the call.
	Effect Effect
	// Code says why the call is refused or waits; empty with [Allow].
	Code Code
	// Message is the reason of the deciding rule, for the model and for people. Empty if the rule gives none, or the
	// tool is hidden.
	Message string
	// Rule is the rule that decided; zero if no rule did.
	Rule RuleRef
	// RuleDigest is the SHA-256 of that rule's content; zero if no rule decided.
	RuleDigest [32]byte
	// Limits are to be reserved, all or nothing, before the call is sent. No two have the same bucket.
	Limits []Limit
	// Approval is set if and only if Effect is [RequireApproval].
	Approval *ApprovalTerms
	// Idempotent says that a call with an unknown outcome may be sent again. It is set if at least one rule decides for
	// each principal, and every rule that decides says so.
	Idempotent bool
	// Hidden says that the caller gets the answer for an unknown tool.
	Hidden bool
	// ChainIndex is the index of the principal whose decision holds: 0 for the caller, otherwise its index in the
	// chain, from 1.
	ChainIndex int
}

// Effect says what to do with a call.
type Effect uint8

// The effects.
const (
	// Deny refuses the call. It is the zero value.
	Deny Effect = iota
	// Allow sends the call.
	Allow
	// RequireApproval lets the call wait until people approve.
	RequireApproval
)

// String returns the effect's name.
func (e Effect) String() string {
	return nameOf([]string{"deny", "allow", "require_approval"}, int(e), "Effect")
}

// Code says why a call is refused or waits: `sluice.common.v1.Code` in lower case without its prefix.
type Code string

// The codes that the engine returns.
const (
	// DeniedByRule means that a rule denies.
	DeniedByRule Code = "denied_by_rule"
	// DeniedByDefault means that no rule with an action matched.
	DeniedByDefault Code = "denied_by_default"
	// ToolUnknown means that the tool is hidden, or that the server's name is not valid.
	ToolUnknown Code = "tool_unknown"
	// ToolNameInvalid means that the tool's name breaks the grammar
	// `^[A-Za-z0-9_./-]{1,128}$`.
	ToolNameInvalid Code = "tool_name_invalid"
	// ToolChanged means that the tool's definition is not accepted.
	ToolChanged Code = "tool_changed"
	// ToolQuarantined means that the tool or its server is stopped.
	ToolQuarantined Code = "quarantined"
	// ApprovalRequired means that people must approve first.
	ApprovalRequired Code = "approval_required"
	// MethodDenied means that no rule with an action matched a method other than [MethodToolsCall], which has no
	// default, or that a rule hides the method.
	MethodDenied Code = "method_denied"
	// Unauthenticated means that a principal lacks its tenant or name, or that the chain is too long.
	Unauthenticated Code = "unauthenticated"
)

// A RuleRef names a rule.
type RuleRef struct {
	// Document is the name of the document.
	Document string
	// Rule is the rule's name; "tools." and the tool's name for an entry.
	Rule string
}

// String returns "document/rule".
func (r RuleRef) String() string { return r.Document + "/" + r.Rule }

// IsZero reports whether the reference names no rule.
func (r RuleRef) IsZero() bool { return r == RuleRef{} }

// A Limit is one limit that applies to a call: a sliding window, of which the call uses one.
type Limit struct {
	// Rule is the rule that has the limit.
	Rule RuleRef
	// Bucket is the limit's identity, 43 characters. It is the same for every call that shares the limit, and
	// independent of Max and of the revision.
	Bucket string
	// Max is the largest number of calls in Window.
	Max int64
	// Window is the length of the sliding window.
	Window time.Duration
	// Per lists the dimensions by which the bucket is counted.
	Per []Dimension
	// Cap reports that the limit is a cap for a principal over all its sessions.
	Cap bool
	// SessionKey says what identified the session.
	SessionKey SessionKey
}

// SessionKey says what identified the session of a call.
type SessionKey uint8

// The session keys.
const (
	// SessionKeyNone means that the limit is not counted per session.
	SessionKeyNone SessionKey = iota
	// SessionKeyRun is the run that the client declared.
	SessionKeyRun
	// SessionKeySession is the gateway's session.
	SessionKeySession
	// SessionKeyPrincipal is the principal, if there is no session.
	SessionKeyPrincipal
)

// String returns the key's name.
func (k SessionKey) String() string {
	return nameOf([]string{"none", "run", "session", "principal"}, int(k), "SessionKey")
}

// validTool reports whether name matches the grammar of tool names.
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

// uriByte reports whether a byte may be in a plain URI or in a template.
func uriByte(c byte) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune("\"<>\\^`|#", rune(c)) }

// validServer reports whether name matches the grammar of server names.
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
