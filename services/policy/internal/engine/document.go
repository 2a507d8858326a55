package engine

import (
	"fmt"
	"slices"
	"time"
)

// These constants limit what documents may contain.
const (
	// MaxNameBytes limits the length of a document's or rule's name in bytes.
	MaxNameBytes = 128
	// MaxReasonBytes limits the length of a reason in bytes.
	MaxReasonBytes = 1024
	// MaxPatternBytes limits the length of a pattern in bytes.
	MaxPatternBytes = 512
	// MaxLimit is the greatest value of RateLimit.Max.
	MaxLimit = 1_000_000_000
	// MinWindow and MaxWindow limit RateLimit.Window.
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
	// MaxRuleLimits limits the number of limits in a rule.
	MaxRuleLimits = 16
	// MaxApprovers limits the number of approver groups in a rule.
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
	// MinAuthAge and MaxAuthAge limit StepUp.MaxAge. MaxACRValues limits the number of values in StepUp.ACR. MaxACRBytes
	// limits the length of each value in bytes.
	MinAuthAge   = time.Minute
	MaxAuthAge   = 24 * time.Hour
	MaxACRValues = 8
	MaxACRBytes  = 256
	// MaxSessionCap is the greatest value of Options.SessionCap.
	MaxSessionCap = 1_000_000
	// MaxChain limits the number of principals in a delegation chain.
	MaxChain = 4
	// MaxLimits limits the number of limits that apply to one call. A reservation can't contain more.
	MaxLimits = 64
	// MaxRuleRedactions limits the number of redactions in a rule. MaxRedactions limits the number of redactions that
	// apply to one call.
	MaxRuleRedactions = 128
	MaxRedactions     = 512
)

// MethodToolsCall is the method for calling a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document. It contains rules for the servers to which it applies.
type Document struct {
	// Name is unique among the documents in a set. It starts with a letter or digit, which letters, digits, `_`, `.` and
	// `-` can follow. It has at most [MaxNameBytes] bytes.
	Name string
	// Server is a pattern for the servers to which the document applies. If it is empty, the document applies to every
	// server.
	Server string
	// Default decides calls that match no rule with an action.
	Default Default
	// ObserveUntil is the time until which the document is in observe mode. In observe mode, the document's rules and
	// default are not enforced, and their decisions are only recorded. If ObserveUntil is zero, the document is enforced.
	ObserveUntil time.Time
	// Rules contains the rules of the document, in any order.
	Rules []Rule
}

// isObserved reports whether observe mode is configured for a rule or its document, even if the time of observe mode
// has passed.
func (d *Document) isObserved(rule int) bool {
	return !d.ObserveUntil.IsZero() || !d.Rules[rule].ObserveUntil.IsZero()
}

// A Rule affects the decisions on the calls that it matches. It has either a Name or a Tool.
type Rule struct {
	// Name is unique in the document and has the same form as a document's name. It must not start with "tools.", because
	// this is the prefix for the names of entries under `tools`.
	Name string
	// Tool is the name of the tool if the rule is an entry under `tools`. Then Match is empty.
	Tool string
	// Match says which calls the rule matches.
	Match Match
	// When is a condition in the language of package condition. If it is set, the rule applies only to matching calls for
	// which the condition is true. If the condition can't be evaluated for a call, the rule applies unless its action is
	// [ActionAllow].
	When string
	// If ExtraArgs is true, When is evaluated even if the arguments contain keys that are not in the tool's schema, or
	// other spellings of the keys that When reads. Otherwise such arguments make the evaluation fail. ExtraArgs has no
	// effect without When.
	ExtraArgs bool
	// Otherwise is true if the rule applies to the matching calls for which When is false. In a [RuleRef], the name of
	// such a rule ends with ".otherwise".
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
	// DecideWithin is how long approvers have to decide. ExecuteWithin is how long an approved call can still be made.
	// Each is between [MinTime] and [MaxTime], or 0 for the configured time. They may be set only with
	// [ActionRequireApproval].
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm allows the person who uses the agent to confirm the call. It may be set only with
	// [ActionRequireApproval], without Approvers, Grant and ApproveWith, and with a quorum of 1.
	SelfConfirm bool
	// Grant allows one approval to cover several calls. It may be set only with [ActionRequireApproval], and only in
	// rules for tools/call.
	Grant Grant
	// ApproveWith specifies how approvers must have authenticated. It may be set only with [ActionRequireApproval], and
	// without SelfConfirm.
	ApproveWith StepUp
	// Idempotent is true if the call may be sent again after an unknown outcome. It may be set only with [ActionAllow] and
	// [ActionRequireApproval].
	Idempotent bool
	// ObserveUntil is the time until which the rule is in observe mode. In observe mode, the rule's action and limits are
	// only recorded and have no effect. If ObserveUntil is zero, the rule is enforced. A rule and the rule for its
	// `otherwise` have the same ObserveUntil.
	ObserveUntil time.Time
	// Timeout limits the time in which the server must respond to a call that is not denied. It is between [MinTimeout]
	// and [MaxTimeout], or 0 for no timeout. If several rules with a timeout apply to a call, the shortest timeout is
	// used.
	Timeout time.Duration
	// Strict is true if a tool call is refused unless the tool's input schema declares all arguments and they satisfy the
	// schema. Strict applies to the same calls as the rule's limits.
	Strict bool
	// Redactions apply to every matching call that is not denied. A rule has at most [MaxRuleRedactions] redactions,
	// without duplicates.
	Redactions []Redaction
	// NeedsScope lists the OAuth scopes that a principal needs for the calls that the rule matches. If several rules
	// apply, the principal needs the scopes in all of them. NeedsScope applies to the same calls as the rule's limits. It
	// may be set only with [ActionAllow] and [ActionRequireApproval], and has at most [MaxRuleScopes] scopes.
	NeedsScope []string
	// Record is true if a copy of the arguments is stored for each matching call that is not denied. In the copy, secrets
	// and the values that redactions select are replaced.
	Record bool
}

// Grant allows one approval to cover several calls. The zero Grant means that each call needs an approval.
type Grant struct {
	// Calls is the number of calls that the grant covers, from 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long the grant is valid after the approval, from [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical is true if the grant may cover the most dangerous tools. These are tools that are destructive or financial,
	// that have a critical risk, or that have no classification.
	Critical bool
	// Where is a condition on the arguments, in the language of package condition. The grant covers only calls for which
	// the condition is true. An approval creates the grant only if the condition is true for the approved call. If Where
	// is empty, the grant covers all calls to the tool.
	Where string
	// If ExtraArgs is true, Where is evaluated even if the arguments contain keys that are not in the tool's schema, or
	// other spellings of the keys that Where reads. Otherwise such arguments make the evaluation fail. ExtraArgs has no
	// effect without Where.
	ExtraArgs bool
}

// StepUp specifies how a person must have authenticated at the identity provider to approve a call. The zero StepUp
// requires no authentication.
type StepUp struct {
	// MaxAge is the maximum time since the person authenticated. It is between [MinAuthAge] and [MaxAuthAge], or 0 for no
	// limit.
	MaxAge time.Duration
	// ACR lists the accepted authentication context classes (values of the claim `acr`). It has at most [MaxACRValues]
	// values. If it is empty, all classes are accepted.
	ACR []string
}

func (s *StepUp) isZero() bool { return s.MaxAge == 0 && len(s.ACR) == 0 }

// Condition returns Where, followed by a comment if ExtraArgs is true. The result is a valid condition, or empty if the
// grant covers all calls to the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// condition returns When, followed by a comment if ExtraArgs is true. If the rule has no condition, the result is
// empty.
func (r *Rule) condition() string {
	if r.ExtraArgs {
		return r.When + extraArgsNote
	}
	return r.When
}

// extraArgsNote is appended to a condition if ExtraArgs is true.
const extraArgsNote = " // extra_args: allow"

// Match selects calls. A call must match every list. An empty list matches every call. Any other list matches a call if
// at least one of its patterns does.
//
// A pattern is case-sensitive and must match the whole string. `*` matches any number of characters, and `?` matches
// one character. A character after `\` matches literally. Square brackets and curly brackets must be written with `\`.
type Match struct {
	// Method contains patterns for the MCP method. They may match methods that are not in the protocol. Unlike the other
	// lists, an empty Method does not match everything. It matches only the methods for which Prompt or URI is used, or
	// only [MethodToolsCall] if Prompt and URI are empty too. A rule with Tool or with tool properties matches only
	// [MethodToolsCall].
	//
	// Apart from [MethodToolsCall], only prompts/get and resources/read can require approval. A rule that requires
	// approval for these methods must name them without wildcards, or have Prompt or URI.
	Method []string
	// Tool contains patterns for the tool's name.
	Tool []string
	// Prompt contains patterns for the name of a prompt. URI contains patterns for the URI of a resource, or for the URI
	// template in a completion request. A rule with Prompt matches prompts/get and completion/complete. A rule with URI
	// matches resources/read, resources/subscribe, resources/unsubscribe and completion/complete. If Method is set, it
	// restricts these methods further.
	//
	// Servers interpret URIs in different ways. Therefore a rule with [ActionAllow] matches only plain URIs, which all
	// servers interpret in the same way (see package locator). Other rules also match every URI that is not plain. They
	// also match a URI if some server could interpret it, ignoring case, as a URI that the patterns match. A rule with
	// [ActionRequireApproval] admits only the URIs that it would match with [ActionAllow]. For all other URIs, the rule
	// requires approval only if a different rule allows the call.
	Prompt, URI []string
	// Server contains patterns for the server's name. The server must also match the document's pattern.
	Server []string
	// Agent contains patterns for the calling agent's name, which is empty if a person makes the call.
	Agent []string
	// Principal contains patterns for the principal's subject.
	Principal []string
	// Groups contains patterns for groups. At least one of the principal's groups must match a pattern.
	Groups []string
	// Tenant contains patterns for the principal's tenant.
	Tenant []string

	// Category and Risk contain values from [Categories] and [Risks]. Each list matches if it contains the tool's value in
	// the catalog. Tags matches if it contains one of the tool's tags. The values in these lists are not patterns.
	Category, Risk, Tags []string
	// Annotations contains the values that the tool's annotations must have, by name, for example "readOnlyHint". All of
	// them must have the given values. The annotations of untrusted servers are unknown.
	//
	// If a tool property is unknown, every list for this property matches, except in rules with [ActionAllow].
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
	// Per lists the dimensions by which calls are counted separately. It contains at least one dimension, and no dimension
	// twice. Tenants are always counted separately. If two limits of a rule have the same Window, they must differ in Per.
	Per []Dimension
}

// Action is what a rule does with the calls that it matches. Greater values are stricter. The strictest action wins.
type Action uint8

// These are the actions.
const (
	// ActionNone means that the rule has no action. Its limits apply if a different rule or a default allows the call.
	ActionNone Action = iota
	// ActionAllow means that the call is allowed.
	ActionAllow
	// ActionRequireApproval means that the call is held until it is approved.
	ActionRequireApproval
	// ActionDeny means that the call is refused. If the rule has a reason, the tool is still listed.
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

// Default decides calls that match no rule with an action. Greater values are stricter. The strictest default wins.
type Default uint8

// These are the defaults.
const (
	// DefaultNone means that the document has no default.
	DefaultNone Default = iota
	// DefaultAllow allows calls.
	DefaultAllow
	// DefaultByRisk means that the decision depends on the tool's risk. If the tool's classification is uncertain, the
	// call requires approval.
	//
	// If the classification is confirmed, calls with a low risk are allowed. Calls with a medium risk are allowed 30 times
	// a minute in each session, and calls with a high risk 10 times a minute in each session. A critical or unknown risk
	// requires approval.
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

// Dimension is a property of calls. A limit with a dimension counts calls separately for each value of the property.
type Dimension uint8

// These are the dimensions.
const (
	// PerSession counts each session of a principal separately.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each principal separately.
	PerPrincipal
	// PerAgent counts each agent name separately. It counts all people together, because people have no agent name.
	PerAgent
	// PerTenant counts all principals of a tenant together. It has no effect in combination with other dimensions, because
	// every limit counts tenants separately.
	PerTenant
	// PerServer counts the calls to each server separately.
	PerServer
	// PerTool counts each tool separately, by name. For methods other than tools/call, it counts each method separately.
	PerTool
	// PerOwner counts each person separately, but counts all principals that work for the same person together. These are
	// all agents that the person started directly or through other agents, and all tokens with this owner. A principal
	// without an owner is its own owner.
	PerOwner
)

// dimensionNames contains the names of the dimensions by their numeric values. The values must not change, because they
// are part of bucket identities.
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
