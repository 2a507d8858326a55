package engine

import (
	"fmt"
	"slices"
	"time"
)

// These constants limit what documents may contain.
const (
	// MaxNameBytes limits the length of the name of a document or rule, in bytes.
	MaxNameBytes = 128
	// MaxReasonBytes limits the length of a reason, in bytes.
	MaxReasonBytes = 1024
	// MaxPatternBytes limits the length of a pattern, in bytes.
	MaxPatternBytes = 512
	// MaxLimit is the greatest value of RateLimit.Max.
	MaxLimit = 1_000_000_000
	// MinWindow and MaxWindow limit RateLimit.Window.
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
	// MaxRuleLimits limits how many limits a rule can have.
	MaxRuleLimits = 16
	// MaxApprovers limits how many groups of approvers a rule can have.
	MaxApprovers = 64
	// MaxQuorum is the greatest value of Rule.Quorum.
	MaxQuorum = 16
	// MinTime and MaxTime limit Rule.DecideWithin and Rule.ExecuteWithin.
	MinTime = time.Second
	MaxTime = 30 * 24 * time.Hour
	// MinTimeout and MaxTimeout limit Rule.Timeout.
	MinTimeout = time.Millisecond
	MaxTimeout = time.Hour
	// MaxGrantCalls and MaxGrantTime are the greatest values of Grant.Calls and Grant.Within.
	MaxGrantCalls = 10_000
	MaxGrantTime  = 7 * 24 * time.Hour
	// MinAuthAge and MaxAuthAge limit StepUp.MaxAge. MaxACRValues limits how many values StepUp.ACR may have, and
	// MaxACRBytes limits the length of each value, in bytes.
	MinAuthAge   = time.Minute
	MaxAuthAge   = 24 * time.Hour
	MaxACRValues = 8
	MaxACRBytes  = 256
	// MaxSessionCap is the greatest value of Options.SessionCap.
	MaxSessionCap = 1_000_000
	// MaxChain limits how many principals a delegation chain may have.
	MaxChain = 4
	// MaxLimits limits how many limits may apply to one call, because a reservation can't contain more.
	MaxLimits = 64
	// MaxRuleRedactions limits how many redactions a rule may have, and MaxRedactions limits how many may apply to one
	// call.
	MaxRuleRedactions = 128
	MaxRedactions     = 512
)

// MethodToolsCall is the method for calling a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document. It contains rules for the servers to which it applies.
type Document struct {
	// Name is unique among the documents in a set. It consists of a letter or digit, followed by letters, digits, `_`,
	// `.` and `-`, and is at most [MaxNameBytes] long.
	Name string
	// Server is a pattern for the servers to which the document applies. If it is empty, the document applies to every
	// server.
	Server string
	// Default decides on the calls that no rule with an action matches.
	Default Default
	// ObserveUntil is the end of the time in which the document is in observe mode, so that its rules and its default
	// are only recorded and not enforced. If it is zero, the document is enforced.
	ObserveUntil time.Time
	// Rules contains the rules of the document. Their order does not matter.
	Rules []Rule
}

// isObserved reports whether observe mode is configured for a document or one of its rules, even if its time has
// passed.
func (d *Document) isObserved(rule int) bool {
	return !d.ObserveUntil.IsZero() || !d.Rules[rule].ObserveUntil.IsZero()
}

// A Rule affects the decisions on the calls that it matches. It has either a Name or a Tool.
type Rule struct {
	// Name is unique in the document and has the same form as the name of a document. It must not start with "tools.",
	// because the names of entries under `tools` start with this prefix.
	Name string
	// Tool is the name of the tool if the rule is an entry under `tools`. In this case, Match is empty.
	Tool string
	// Match says which calls the rule matches.
	Match Match
	// When is a condition in the language of package condition, which limits the rule to the matching calls for which
	// the condition is true. If When is empty, the rule applies to all matching calls. If the condition can't be
	// evaluated for a call, the rule applies unless its action is [ActionAllow].
	When string
	// ExtraArgs is true if When can be evaluated even if the arguments contain other spellings of the keys that it
	// reads, or keys that are not in the tool's schema. It has no effect without When.
	ExtraArgs bool
	// Otherwise is true if the rule applies to the matching calls for which When is false, instead of those for which
	// it is true. In a [RuleRef], the name of such a rule ends with ".otherwise".
	Otherwise bool
	// Action is what happens to the calls that the rule matches.
	Action Action
	// Reason is shown to the caller if the rule makes the decision, unless Action is [ActionHide].
	Reason string
	// Limits apply to every matching call that is not denied. A rule has at most [MaxRuleLimits] limits.
	Limits []RateLimit
	// Approvers contains the groups whose members may approve. If it is empty, any approver may approve. Approvers may
	// be set only with [ActionRequireApproval].
	Approvers []string
	// Quorum is how many different people must approve, from 1 to [MaxQuorum]. 0 means 1. Quorum may be set only with
	// [ActionRequireApproval].
	Quorum int
	// DecideWithin is how long approvers have to decide. ExecuteWithin is how long after the approval the call may be
	// made. Each is between [MinTime] and [MaxTime], or 0 to use the configured time. They may be set only with
	// [ActionRequireApproval].
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm allows the person who uses the agent to confirm the call. It may be set only with
	// [ActionRequireApproval], without Approvers, Grant and ApproveWith, and with a quorum of 1.
	SelfConfirm bool
	// Grant allows one approval to cover several calls. It may be set only with [ActionRequireApproval], and only in
	// rules for tools/call.
	Grant Grant
	// ApproveWith says how the people who approve must have authenticated. It may be set only with
	// [ActionRequireApproval], and without SelfConfirm.
	ApproveWith StepUp
	// Idempotent is true if a call with an unknown outcome may be sent again. It may be set only with [ActionAllow] and
	// [ActionRequireApproval].
	Idempotent bool
	// ObserveUntil is the end of the time in which the rule is in observe mode, so that its action and its limits are
	// only recorded and have no effect. If it is zero, the rule is enforced. A rule and the rule for its `otherwise`
	// have the same time.
	ObserveUntil time.Time
	// Timeout limits how long the server may take to respond to a call that is not denied. It is between [MinTimeout]
	// and [MaxTimeout], or 0 for no timeout. If several rules with a timeout apply to a call, the shortest timeout is
	// used.
	Timeout time.Duration
	// Strict is true if a tool call is refused unless its arguments satisfy the tool's input schema, and the schema
	// declares all of them. Strict applies to the same calls as the limits of the rule.
	Strict bool
	// Redactions apply to every matching call that is not denied. A rule has at most [MaxRuleRedactions] redactions,
	// all of them different.
	Redactions []Redaction
	// NeedsScope lists the OAuth scopes that a principal needs for the calls that the rule matches. If several rules
	// apply, the principal needs the scopes of all of them. NeedsScope applies to the same calls as the limits of the
	// rule. It may be set only with [ActionAllow] and [ActionRequireApproval], and has at most [MaxRuleScopes] scopes.
	NeedsScope []string
	// Record is true if a copy of the arguments is stored for each matching call that is not denied. In this copy,
	// secrets and the values that the call's redactions select are replaced.
	Record bool
}

// Grant allows one approval to cover several calls. The zero Grant means that each call needs an approval.
type Grant struct {
	// Calls is how many calls the grant covers, from 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long the grant is valid after the approval, from [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical is true if the grant may also cover the most dangerous tools, which are destructive or financial, or
	// have a critical risk or no classification.
	Critical bool
	// Where is a condition on the arguments, in the language of package condition. The grant covers only calls for
	// which the condition is true. An approval creates the grant only if the condition is true for the approved call.
	// If Where is empty, the grant covers all calls to the tool.
	Where string
	// ExtraArgs is true if Where can be evaluated even if the arguments contain other spellings of the keys that it
	// reads, or keys that are not in the tool's schema. It has no effect without Where.
	ExtraArgs bool
}

// StepUp says how a person must have authenticated at the identity provider to approve a call. The zero StepUp requires
// no authentication.
type StepUp struct {
	// MaxAge is how long ago the person may have authenticated at most. It is between [MinAuthAge] and [MaxAuthAge], or
	// 0 for no limit.
	MaxAge time.Duration
	// ACR lists the accepted authentication context classes (the values of the claim `acr`), at most [MaxACRValues]. If
	// it is empty, all classes are accepted.
	ACR []string
}

func (s *StepUp) isZero() bool { return s.MaxAge == 0 && len(s.ACR) == 0 }

// Condition returns Where. If ExtraArgs is true, it appends a comment that says so. The result is a valid condition, or
// empty if the grant covers all calls to the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// condition returns When. If ExtraArgs is true, it appends a comment that says so. If the rule has no condition, the
// result is empty.
func (r *Rule) condition() string {
	if r.ExtraArgs {
		return r.When + extraArgsNote
	}
	return r.When
}

// extraArgsNote is appended to a condition if ExtraArgs is true.
const extraArgsNote = " // extra_args: allow"

// Match selects calls. A call matches if each list matches it. An empty list matches every call, and any other list
// matches a call if one of its patterns does.
//
// A pattern is case-sensitive and must match the whole text. `*` matches any number of characters, `?` matches one
// character, and `\` before a character matches that character itself. Square and curly brackets have no meaning and
// are refused without `\`.
type Match struct {
	// Method contains patterns for the MCP method, which may also be unknown to the protocol. In contrast to the other
	// lists, an empty Method does not match everything. It matches only [MethodToolsCall], or the methods that Prompt
	// or URI concerns. A rule with Tool or with tool properties matches only [MethodToolsCall].
	//
	// In addition to [MethodToolsCall], only prompts/get and resources/read can require approval. A rule that requires
	// approval for these methods must name them without wildcards, or have Prompt or URI.
	Method []string
	// Tool contains patterns for the tool's name.
	Tool []string
	// Prompt contains patterns for the name of a prompt. URI contains patterns for the URI of a resource, or for the
	// URI template in a completion request. A rule with Prompt concerns prompts/get and completion/complete. A rule
	// with URI concerns resources/read, resources/subscribe, resources/unsubscribe and completion/complete. If Method
	// is set, it restricts these methods further.
	//
	// Servers interpret URIs in different ways. Therefore a rule with [ActionAllow] matches only plain URIs, which all
	// servers interpret in the same way (see package locator). Other rules also match a URI if some server could
	// interpret it, ignoring case, as a URI that the patterns match. They also match every URI that is not plain. A
	// rule with [ActionRequireApproval] admits only the URIs that it would match with [ActionAllow]. For other URIs, it
	// only requires approval if a different rule allows the call.
	Prompt, URI []string
	// Server contains patterns for the server's name. The server must match the document's pattern, too.
	Server []string
	// Agent contains patterns for the name of the calling agent. The name is empty if a person makes the call.
	Agent []string
	// Principal contains patterns for the subject of the principal.
	Principal []string
	// Groups contains patterns for groups. At least one of the principal's groups must match one of the patterns.
	Groups []string
	// Tenant contains patterns for the principal's tenant.
	Tenant []string

	// Category and Risk contain values from [Categories] and [Risks]. Each of them matches if it contains the tool's
	// value in the catalog. Tags matches if the tool has one of its tags. The values in these lists are not patterns.
	Category, Risk, Tags []string
	// Annotations contains the values that annotations of the tool must have, by name, for example "readOnlyHint". It
	// matches if all these annotations have the given values. The annotations of untrusted servers are unknown.
	//
	// If a property of a tool is unknown, every list for this property matches, except in rules with [ActionAllow].
	Annotations map[string]bool
}

// methods returns the patterns for methods. If Method is empty, they depend on Prompt and URI.
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
	// dimension twice. Tenants are always counted separately. Two limits of a rule with the same Window must differ in
	// Per.
	Per []Dimension
}

// Action is what a rule does with the calls that it matches. Greater actions are stricter, and the strictest action
// wins.
type Action uint8

// The actions.
const (
	// ActionNone means that the rule has no action. Its limits apply if a different rule or a default allows the call.
	ActionNone Action = iota
	// ActionAllow means that the call is allowed.
	ActionAllow
	// ActionRequireApproval means that the call is held until it is approved.
	ActionRequireApproval
	// ActionDeny means that the call is refused. If the rule has a reason, the tool is listed nevertheless.
	ActionDeny
	// ActionHide means that the call is refused with the error for an unknown tool, and that the tool is not listed.
	ActionHide
)

var actionNames = [...]string{"none", "allow", "require_approval", "deny", "hide"}

// String returns the name of the action in documents.
func (a Action) String() string { return nameOf(actionNames[:], int(a), "Action") }

// ParseAction returns the action with the given name in documents. It returns false if there is no such action.
func ParseAction(name string) (Action, bool) {
	for i, known := range actionNames {
		if known == name && i > 0 {
			return Action(i), true
		}
	}
	return ActionNone, false
}

// Actions returns the names of the actions that documents can use.
func Actions() []string { return []string{"allow", "deny", "hide", "require_approval"} }

// Default decides on the calls that no rule with an action matches. Greater defaults are stricter, and the strictest
// default wins.
type Default uint8

// The defaults.
const (
	// DefaultNone means that the document has no default.
	DefaultNone Default = iota
	// DefaultAllow allows calls.
	DefaultAllow
	// DefaultByRisk means that the decision depends on the tool's risk. If the classification of the tool is uncertain,
	// it requires approval.
	//
	// If the classification is confirmed, calls with a low risk are allowed. Calls with a medium risk are allowed 30
	// times a minute in each session, and calls with a high risk 10 times a minute. A critical or unknown risk requires
	// approval.
	//
	// If the classification is not confirmed, calls with a low risk are allowed 30 times a minute in each session. All
	// other calls require approval.
	DefaultByRisk
	// DefaultDeny refuses calls.
	DefaultDeny
)

// String returns the name of the default in documents.
func (d Default) String() string {
	return nameOf([]string{"none", "allow", "by_risk", "deny"}, int(d), "Default")
}

// Dimension is a property of calls. A limit with this dimension counts calls separately if they differ in the property.
type Dimension uint8

// The dimensions.
const (
	// PerSession counts each session of a principal separately.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each principal separately.
	PerPrincipal
	// PerAgent counts each agent name separately. It counts all people together, because people have no agent name.
	PerAgent
	// PerTenant counts all principals of a tenant together. In combination with other dimensions, it has no effect,
	// because every limit counts tenants separately.
	PerTenant
	// PerServer counts the calls to each server separately.
	PerServer
	// PerTool counts each tool separately, by its name. For methods other than tools/call, it counts each method
	// separately.
	PerTool
	// PerOwner counts each person separately, but all principals that work for the same person together. These are the
	// agents that the person started, the agents that these agents started, and all tokens with this owner. A principal
	// without an owner counts as its own owner.
	PerOwner
)

// dimensionNames contains the names of the dimensions, ordered by their numeric values. These values must not change,
// because they are a part of the identities of buckets.
var dimensionNames = [...]string{"none", "session", "principal", "agent", "tenant", "server", "tool", "owner"}

// String returns the name of the dimension in documents.
func (d Dimension) String() string { return nameOf(dimensionNames[:], int(d), "Dimension") }

// ParseDimension returns the dimension with the given name in documents. It returns false if there is no such
// dimension.
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
