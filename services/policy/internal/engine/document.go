package engine

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of documents.
const (
	// MaxNameBytes is the maximum length of the name of a document or rule, in bytes.
	MaxNameBytes = 128
	// MaxReasonBytes is the maximum length of a reason, in bytes.
	MaxReasonBytes = 1024
	// MaxPatternBytes is the maximum length of a pattern, in bytes.
	MaxPatternBytes = 512
	// MaxLimit is the maximum value of RateLimit.Max.
	MaxLimit = 1_000_000_000
	// MinWindow and MaxWindow are the minimum and the maximum window of a limit.
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
	// MaxRuleLimits is the maximum number of limits that a rule can have.
	MaxRuleLimits = 16
	// MaxApprovers is the maximum number of approver groups that a rule can have.
	MaxApprovers = 64
	// MaxQuorum is the maximum number of people that a rule can require to approve a call.
	MaxQuorum = 16
	// MinTime and MaxTime are the minimum and the maximum of the time to decide on an approval, and of the time to
	// execute the call.
	MinTime = time.Second
	MaxTime = 30 * 24 * time.Hour
	// MinTimeout and MaxTimeout are the minimum and the maximum of Rule.Timeout.
	MinTimeout = time.Millisecond
	MaxTimeout = time.Hour
	// MaxGrantCalls is the maximum number of calls that one approval can cover (a grant). MaxGrantTime is the maximum
	// time for which a grant is valid.
	MaxGrantCalls = 10_000
	MaxGrantTime  = 7 * 24 * time.Hour
	// MinAuthAge and MaxAuthAge are the minimum and the maximum of StepUp.MaxAge. MaxACRValues is the maximum number of
	// values in StepUp.ACR, and MaxACRBytes is their maximum length.
	MinAuthAge   = time.Minute
	MaxAuthAge   = 24 * time.Hour
	MaxACRValues = 8
	MaxACRBytes  = 256
	// MaxSessionCap is the maximum of Options.SessionCap.
	MaxSessionCap = 1_000_000
	// MaxChain is the maximum number of principals in a caller's delegation chain.
	MaxChain = 4
	// MaxLimits is the maximum number of limits that can apply to one call. One reservation can't contain more limits.
	MaxLimits = 64
	// MaxRuleRedactions is the maximum number of redactions that a rule can have. MaxRedactions is the maximum number
	// of redactions that can apply to one call.
	MaxRuleRedactions = 128
	MaxRedactions     = 512
)

// MethodToolsCall is the method that calls a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document. It contains rules for the servers that it applies to.
type Document struct {
	// Name is unique among the documents in a set. It consists of a letter or digit, followed by letters, digits, `_`,
	// `.` and `-`, and has at most [MaxNameBytes].
	Name string
	// Server is a pattern for the servers that the document applies to. If it is empty, the document applies to every
	// server.
	Server string
	// Default is the action for calls that no rule with an action matches.
	Default Default
	// ObserveUntil is the time until which the document is in observe mode, in which its rules and its default are not
	// enforced but only recorded. If it is zero, the document is enforced.
	ObserveUntil time.Time
	// Rules contains the document's rules. Their order does not matter.
	Rules []Rule
}

// isObserved reports whether observe mode is configured for a rule or its document. It also returns true if the time
// until which observe mode was configured has passed.
func (d *Document) isObserved(rule int) bool {
	return !d.ObserveUntil.IsZero() || !d.Rules[rule].ObserveUntil.IsZero()
}

// A Rule affects the decisions on the calls that it matches. It has either a Name or a Tool.
type Rule struct {
	// Name is unique in the document and has the same form as the name of a document. It must not start with "tools.",
	// because the names of entries under `tools` start with this prefix.
	Name string
	// Tool is the name of the tool if the rule is an entry under `tools`. Match is then empty.
	Tool string
	// Match says which calls the rule matches.
	Match Match
	// When is a condition, in the language of package condition. The rule applies to the calls that it matches only if
	// the condition is true. An empty When is always true. If the condition can't be evaluated for a call, the rule
	// applies, unless its action is [ActionAllow].
	When string
	// ExtraArgs is true if When may be evaluated for calls whose arguments contain other spellings of the keys that
	// When reads, or keys that are not in the tool's schema. It has no effect without When.
	ExtraArgs bool
	// Otherwise is true if the rule applies to calls for which When is false, and not to those for which When is true.
	// The name of the rule in a [RuleRef] then ends in ".otherwise".
	Otherwise bool
	// Action is what the rule does with the calls that it matches.
	Action Action
	// Reason is shown to the caller if the rule determines the decision, unless Action is [ActionHide].
	Reason string
	// Limits apply to every matching call that is not denied. A rule has at most [MaxRuleLimits] limits.
	Limits []RateLimit
	// Approvers contains the groups whose members may approve. If it is empty, any approver may approve. It is allowed
	// only with [ActionRequireApproval].
	Approvers []string
	// Quorum is how many distinct people must approve, from 1 to [MaxQuorum]. 0 means 1. It is allowed only with
	// [ActionRequireApproval].
	Quorum int
	// DecideWithin is how long approvers have to approve or deny. ExecuteWithin is how long after the approval the call
	// may be made. Both are between [MinTime] and [MaxTime], or 0 to use the configured time. Both are allowed only
	// with [ActionRequireApproval].
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm allows the person who uses the agent to confirm the call. It is allowed only with
	// [ActionRequireApproval], without Approvers and Grant, and with a quorum of 1.
	SelfConfirm bool
	// Grant allows one approval to cover several calls. It is allowed only with [ActionRequireApproval], and only in
	// rules for tools/call.
	Grant Grant
	// ApproveWith says how the people who approve must have authenticated. It is allowed only with
	// [ActionRequireApproval], and without SelfConfirm.
	ApproveWith StepUp
	// Idempotent reports whether a call with an unknown outcome may be sent again. It is allowed only with
	// [ActionAllow] and [ActionRequireApproval].
	Idempotent bool
	// ObserveUntil is the time until which the rule is in observe mode, in which its action and its limits have no
	// effect and are only recorded. If it is zero, the rule is enforced. A rule with a condition and the rule for its
	// `otherwise` have the same time.
	ObserveUntil time.Time
	// Timeout limits the time for the server's response to a call that is not denied. It is between [MinTimeout] and
	// [MaxTimeout], or 0 for no timeout. If several rules with a timeout apply to a call, the shortest timeout is used.
	Timeout time.Duration
	// Strict is true if a tool call is refused when its arguments do not satisfy the tool's input schema, or include an
	// argument that the schema does not declare. Strict applies to the same calls as the rule's limits.
	Strict bool
	// Redactions apply to every matching call that is not denied. A rule has at most [MaxRuleRedactions] redactions,
	// and all of them are different.
	Redactions []Redaction
	// NeedsScope lists the OAuth scopes that a principal needs for the calls that the rule matches. If several rules
	// apply, the principal needs the scopes of all of them. NeedsScope applies to the same calls as the rule's limits. It
	// is allowed only with [ActionAllow] and [ActionRequireApproval], and has at most [MaxRuleScopes] scopes.
	NeedsScope []string
	// Record reports whether a copy of the arguments is stored for each matching call that is not denied. In this copy,
	// secrets and the values that the call's redactions select are replaced.
	Record bool
}

// Grant allows one approval to cover several calls. The zero Grant means that each call needs an approval.
type Grant struct {
	// Calls is the number of calls that the grant covers, from 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long the grant is valid after the approval, from [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical is true if the grant also covers the most dangerous tools. These are tools that are destructive or
	// financial, tools of critical risk, and tools without a classification.
	Critical bool
	// Where is a condition on the arguments, in the language of package condition. The grant covers only calls for
	// which the condition is true. An approval gives the grant only if the condition is true for the approved call. If
	// Where is empty, the grant covers all calls to the tool.
	Where string
	// ExtraArgs reports whether Where can be true for calls whose arguments contain other spellings of the keys that
	// Where reads. It has no effect without Where.
	ExtraArgs bool
}

// StepUp says how a person must have authenticated at the identity provider to approve a call. The zero StepUp requires
// nothing.
type StepUp struct {
	// MaxAge is the maximum time since the person has authenticated, from [MinAuthAge] to [MaxAuthAge], or 0 for any
	// time.
	MaxAge time.Duration
	// ACR contains the accepted authentication context classes (the claim `acr`), at most [MaxACRValues]. If it is empty,
	// any class is accepted.
	ACR []string
}

func (s *StepUp) isZero() bool { return s.MaxAge == 0 && len(s.ACR) == 0 }

// Condition returns Where. If ExtraArgs is true, it appends a comment that says so. The result is a valid condition. It
// is empty if the grant covers all calls to the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// condition returns When. If ExtraArgs is true, it appends a comment that says so. The result is empty if the rule has
// no condition.
func (r *Rule) condition() string {
	if r.ExtraArgs {
		return r.When + extraArgsNote
	}
	return r.When
}

// extraArgsNote is the comment that is appended to a condition if ExtraArgs is true.
const extraArgsNote = " // extra_args: allow"

// Match selects calls. It matches if each of its lists matches. An empty list matches every call. Any other list
// matches if one of its patterns matches.
//
// A pattern is case-sensitive and must match the whole text. `*` matches any number of characters, `?` matches one
// character, and `\` before a character matches that character itself. Square and curly brackets have no meaning and
// are refused without `\`.
type Match struct {
	// Method contains patterns for the MCP method of a request, including unknown methods. Other lists match everything
	// if they are empty, but an empty Method matches only [MethodToolsCall], unless Prompt or URI is set. A rule with a
	// list of tool names or tool properties matches no other method.
	//
	// Besides [MethodToolsCall], only prompts/get and resources/read can require approval. A rule that requires
	// approval for these methods must name them without wildcards, or have Prompt or URI.
	Method []string
	// Tool contains patterns for the tool's name.
	Tool []string
	// Prompt contains patterns for the name of a prompt. URI contains patterns for the URI of a resource, or for the
	// URI template in a completion request. A rule with Prompt concerns prompts/get and completion/complete. A rule
	// with URI concerns resources/read, resources/subscribe, resources/unsubscribe and completion/complete. If Method
	// is set, it further restricts these methods.
	//
	// Servers interpret URIs in different ways. A rule with [ActionAllow] therefore matches only plain URIs, which all
	// servers interpret in the same way; see package locator. Any other rule also matches a URI if a server could
	// interpret it, ignoring case, as a URI that the patterns match. It also matches every URI that is not plain. A
	// rule with [ActionRequireApproval] admits only the URIs that it would match with [ActionAllow]. For other URIs, it
	// only requires an approval in addition to another rule that allows the call.
	Prompt, URI []string
	// Server contains patterns for the server's name. The server must also match the document's pattern.
	Server []string
	// Agent contains patterns for the name of the calling agent. If a person makes the call, the agent name is empty.
	Agent []string
	// Principal contains patterns for the name of the principal.
	Principal []string
	// Groups contains patterns for groups. At least one of the principal's groups must match one of the patterns.
	Groups []string
	// Tenant contains patterns for the principal's tenant.
	Tenant []string

	// Category and Risk contain values from [Categories] and [Risks]. Each of these lists matches if it contains the
	// tool's value in the catalog. Tags matches if the tool has one of the listed tags. These values are not patterns.
	Category, Risk, Tags []string
	// Annotations maps names of annotations, for example "readOnlyHint", to the values that the tool must have. A tool
	// matches if its annotations have all of these values. The annotations of untrusted servers are unknown.
	//
	// If a property of a tool is unknown, the lists for that property match in every rule, except in rules with
	// [ActionAllow].
	Annotations map[string]bool
}

// methods returns the patterns for methods. If Method is empty, the patterns depend on Prompt and URI.
func (m *Match) methods() []string {
	switch {
	case len(m.Method) > 0:
		return m.Method
	case len(m.Prompt) > 0:
		return promptMethods
	case len(m.URI) > 0:
		return uriMethods
	}
	return []string{MethodToolsCall}
}

// scope reports whether m can match tools/call, and whether it can match other methods.
func (m *Match) scope() (tools, methods bool) {
	if m.hasNames() {
		named := promptMethods
		if len(m.URI) > 0 {
			named = uriMethods
		}
		return false, len(m.Tool) == 0 && !m.hasProperties() && slices.ContainsFunc(named, compilePatterns(m.methods()).match)
	}
	for _, g := range compilePatterns(m.methods()) {
		tools = tools || g.match(MethodToolsCall)
		methods = methods || !g.exact || g.prefix != MethodToolsCall
	}
	return tools, methods && len(m.Tool) == 0 && !m.hasProperties()
}

// RateLimit allows at most Max calls in any period of Window.
type RateLimit struct {
	// Max is between 1 and [MaxLimit].
	Max int64
	// Window is between [MinWindow] and [MaxWindow].
	Window time.Duration
	// Per lists the dimensions by which calls are counted separately. It contains at least one dimension, and no
	// dimension twice. Tenants are always counted separately. Two limits of a rule can't have both the same Window and
	// the same Per.
	Per []Dimension
}

// Action is what a rule does with the calls that it matches. A greater action is stricter and wins.
type Action uint8

// The actions.
const (
	// ActionNone means that the rule has no action. The rule's limits apply if another rule or a default allows the
	// call.
	ActionNone Action = iota
	// ActionAllow means that the call is allowed.
	ActionAllow
	// ActionRequireApproval means that the call is held until it is approved.
	ActionRequireApproval
	// ActionDeny means that the call is refused. If the rule has a reason, the tool is still listed.
	ActionDeny
	// ActionHide means that the call is refused with the error for an unknown tool. The tool is never listed.
	ActionHide
)

var actionNames = [...]string{"none", "allow", "require_approval", "deny", "hide"}

// String returns the action as it is written in documents.
func (a Action) String() string { return nameOf(actionNames[:], int(a), "Action") }

// ParseAction returns the action with the given name in documents, and reports whether name is an action.
func ParseAction(name string) (Action, bool) {
	for i, known := range actionNames {
		if known == name && i > 0 {
			return Action(i), true
		}
	}
	return ActionNone, false
}

// Actions returns the names of the actions that can be used in documents.
func Actions() []string { return []string{"allow", "deny", "hide", "require_approval"} }

// Default is the action for calls that no rule with an action matches. A greater default is stricter and wins.
type Default uint8

// The defaults.
const (
	// DefaultNone means that the document has no default.
	DefaultNone Default = iota
	// DefaultAllow allows calls.
	DefaultAllow
	// DefaultByRisk means that the default depends on the tool's risk. It requires approval if the tool's
	// classification is uncertain.
	//
	// If the classification is confirmed, calls of low risk are allowed. In each session, calls of medium risk are
	// allowed 30 times a minute, and calls of high risk 10 times a minute. A critical or unknown risk requires
	// approval.
	//
	// If the classification is not confirmed, calls of low risk are allowed 30 times a minute in each session. Any
	// other risk requires approval.
	DefaultByRisk
	// DefaultDeny refuses calls.
	DefaultDeny
)

// String returns the default as it is written in documents.
func (d Default) String() string {
	return nameOf([]string{"none", "allow", "by_risk", "deny"}, int(d), "Default")
}

// Dimension is a property of a call. A limit counts calls with different values of the property separately.
type Dimension uint8

// The dimensions.
const (
	// PerSession counts each session of a principal separately.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each principal separately.
	PerPrincipal
	// PerAgent counts each agent name separately. It counts all people together, because people have no agent name.
	PerAgent
	// PerTenant counts all principals of a tenant together. It has no effect in combination with other dimensions,
	// because every limit counts tenants separately.
	PerTenant
	// PerServer counts the calls to each server separately.
	PerServer
	// PerTool counts each tool name separately. For methods other than tools/call, it counts each method separately.
	PerTool
	// PerOwner counts each person separately, together with all principals that work for that person: the agents that
	// the person started, the agents that these agents started, and all tokens with that owner. A principal without an
	// owner counts as its own owner.
	PerOwner
)

// dimensionNames contains the names of the dimensions, ordered by their numeric values. The values are part of the
// identities of buckets.
var dimensionNames = [...]string{"none", "session", "principal", "agent", "tenant", "server", "tool", "owner"}

// String returns the dimension as it is written in documents.
func (d Dimension) String() string { return nameOf(dimensionNames[:], int(d), "Dimension") }

// ParseDimension returns the dimension with the given name in documents, and reports whether name is a dimension.
func ParseDimension(name string) (Dimension, bool) {
	for i, known := range dimensionNames {
		if known == name && i > 0 {
			return Dimension(i), true
		}
	}
	return 0, false
}

// Dimensions returns the names of all dimensions.
func Dimensions() []string {
	return []string{"session", "principal", "owner", "agent", "tenant", "server", "tool"}
}

func nameOf(names []string, i int, kind string) string {
	if i < len(names) {
		return names[i]
	}
	return fmt.Sprintf("%s(%d)", kind, i)
}
