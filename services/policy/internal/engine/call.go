package engine

import (
	"strings"
	"time"
)

// A Call is one MCP request, before it is made.
type Call struct {
	// Method is the MCP method. Empty means [MethodToolsCall].
	Method string
	// Server is the configured name of the server that it goes to.
	Server string
	// Tool is the name of the tool or, of another method, what its params name: a prompt by
	// its name, a resource by its URI, or by a template of that.
	Tool string
	// Ref is of what a completion is, [RefPrompt] or [RefResource]. A completion that does
	// not say it is judged as of what rules refuse.
	Ref string
	// Params is the `params` of the request, a JSON object; empty means none.
	Params string
	// Subject is who calls.
	Subject Subject
	// Facts are what the catalogue knows of the tool, with the definition that the
	// caller's session has listed. Of another method than [MethodToolsCall] only their
	// Standing is known, which is the server's.
	Facts Facts

	// read are the readings of its URI, once they are made.
	read *readings
}

// OfTool reports whether a tool is called.
func (c *Call) OfTool() bool { return c.Method == "" || c.Method == MethodToolsCall }

// A Subject is a caller and who stands behind it. The zero Subject is refused.
type Subject struct {
	// Caller is the principal that calls.
	Caller Principal
	// Chain are the principals behind it, nearest first, at most [MaxChain].
	Chain []Principal
}

// A Principal is on whose behalf something is asked.
type Principal struct {
	// Tenant that it belongs to. Empty is refused.
	Tenant string
	// Name of the subject, unique in the tenant. Empty is refused.
	Name string
	// Agent is the name of the agent that calls; empty for people.
	Agent string
	// Owner is the subject of the person for whom it works; empty: itself. Only limits look at it.
	Owner string
	// Groups of the subject.
	Groups []string
	// Session is the gateway's session; empty where the protocol has none.
	Session string
	// Run is the run that the client declared; empty where it declared none.
	Run string
}

// at returns the principal at a place: 0 is the caller, 1 the nearest behind it.
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

// A Decision is the verdict on a call. The zero value refuses.
type Decision struct {
	// Effect is what to do.
	Effect Effect
	// Code says why the call is refused or held; empty beside [Allow].
	Code Code
	// Message is for the model and for people: the reason of the deciding rule.
	// Empty where it gives none, and where the tool is hidden.
	Message string
	// Rule decided; zero where no rule did.
	Rule RuleRef
	// RuleDigest is the SHA-256 of that rule's content; zero where none decided.
	RuleDigest [32]byte
	// Limits are to be reserved, all or nothing, before the call is sent. No two
	// have the same bucket.
	Limits []Limit
	// Approval is present exactly where Effect is [RequireApproval].
	Approval *ApprovalTerms
	// Idempotent says that a call whose outcome is unknown may be sent again: every
	// rule that decides says so, for each principal at least one.
	Idempotent bool
	// Hidden says that the caller is told that the tool is unknown.
	Hidden bool
	// ChainIndex says whose verdict holds: 0 the caller's, else that of the
	// principal at this place in its chain, from 1.
	ChainIndex int
}

// Effect is what to do with a call.
type Effect uint8

// The effects.
const (
	// Deny refuses the call. It is the zero value.
	Deny Effect = iota
	// Allow sends it on.
	Allow
	// RequireApproval holds it until people approve.
	RequireApproval
)

// String returns the effect's name.
func (e Effect) String() string {
	return nameOf([]string{"deny", "allow", "require_approval"}, int(e), "Effect")
}

// Code says why a call is refused or held, as `sluice.common.v1.Code` in lower
// case without its prefix.
type Code string

// The codes that judging yields.
const (
	// DeniedByRule means that a rule denies.
	DeniedByRule Code = "denied_by_rule"
	// DeniedByDefault means that no rule with an action matched.
	DeniedByDefault Code = "denied_by_default"
	// ToolUnknown means that the tool is hidden, or the server's name is none.
	ToolUnknown Code = "tool_unknown"
	// ToolNameInvalid means that the tool's name breaks the grammar
	// `^[A-Za-z0-9_./-]{1,128}$`.
	ToolNameInvalid Code = "tool_name_invalid"
	// ToolChanged means that the tool's definition is not one that was accepted.
	ToolChanged Code = "tool_changed"
	// ToolQuarantined means that the tool, or its server, is stopped.
	ToolQuarantined Code = "quarantined"
	// ApprovalRequired means that people must approve first.
	ApprovalRequired Code = "approval_required"
	// MethodDenied means that no rule with an action matched a method other than
	// [MethodToolsCall], for which there is no default, or that a rule hides it.
	MethodDenied Code = "method_denied"
	// Unauthenticated means that a principal lacks its tenant or name, or that the
	// chain is too long.
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

// IsZero reports whether it names none.
func (r RuleRef) IsZero() bool { return r == RuleRef{} }

// A Limit is one limit that bears on a call: a sliding window, of which the call
// takes one.
type Limit struct {
	// Rule brings it.
	Rule RuleRef
	// Bucket is its identity, 43 characters: the same for every call that shares
	// the limit, whatever the limit's Max and the revision.
	Bucket string
	// Max is how many calls fit into Window.
	Max int64
	// Window is the stretch of time that it looks at.
	Window time.Duration
	// Per is what the bucket is kept by.
	Per []Dimension
	// Cap says that it is the principal's cap over a limit kept by session.
	Cap bool
	// SessionKey is what stood for the session.
	SessionKey SessionKey
}

// SessionKey is what "per session" meant for a call.
type SessionKey uint8

// The session keys.
const (
	// SessionKeyNone means that the limit is not kept by session.
	SessionKeyNone SessionKey = iota
	// SessionKeyRun is the run that the client declared.
	SessionKeyRun
	// SessionKeySession is the gateway's session.
	SessionKeySession
	// SessionKeyPrincipal is the principal, where there is no session.
	SessionKeyPrincipal
)

// String returns the key's name.
func (k SessionKey) String() string {
	return nameOf([]string{"none", "run", "session", "principal"}, int(k), "SessionKey")
}

// validTool reports whether name is in the grammar of tool names.
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

// uriByte reports whether a byte may stand in a URI that is written plainly, or in a template.
func uriByte(c byte) bool { return c > ' ' && c < 0x7f && !strings.ContainsRune("\"<>\\^`|#", rune(c)) }

// validServer reports whether name is in the grammar of server names.
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
