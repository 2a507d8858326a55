package engine

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of documents.
const (
	// MaxNameBytes is the largest length of the name of a document or rule, in bytes.
	MaxNameBytes = 128
	// MaxReasonBytes is the largest length of a reason, in bytes.
	MaxReasonBytes = 1024
	// MaxPatternBytes is the largest length of a pattern, in bytes.
	MaxPatternBytes = 512
	// MaxLimit is the largest value of RateLimit.Max.
	MaxLimit = 1_000_000_000
	// MinWindow and MaxWindow are the smallest and the largest window of a limit.
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
	// MaxRuleLimits is the largest number of limits of a rule.
	MaxRuleLimits = 16
	// MaxApprovers is the largest number of groups of approvers of a rule.
	MaxApprovers = 64
	// MaxQuorum is the largest quorum.
	MaxQuorum = 16
	// MinTime and MaxTime are the smallest and the largest time to decide and to execute.
	MinTime = time.Second
	MaxTime = 30 * 24 * time.Hour
	// MinTimeout and MaxTimeout are the smallest and the largest timeout.
	MinTimeout = time.Millisecond
	MaxTimeout = time.Hour
	// MaxGrantCalls is the largest number of calls that a grant covers. MaxGrantTime is the longest time for which a grant
	// is valid.
	MaxGrantCalls = 10_000
	MaxGrantTime  = 7 * 24 * time.Hour
	// MaxSessionCap is the largest cap, in sessions.
	MaxSessionCap = 1_000_000
	// MaxChain is the largest number of principals in a caller's chain.
	MaxChain = 4
	// MaxLimits is the largest number of limits of one call. A reservation can't have more.
	MaxLimits = 64
	// MaxRuleRedactions is the largest number of redactions of a rule, and MaxRedactions of one call.
	MaxRuleRedactions = 128
	MaxRedactions     = 512
)

// MethodToolsCall is the method that calls a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document: rules for the servers that it applies to.
type Document struct {
	// Name is unique among the documents of a set: a letter or digit, then letters, digits, `_`, `.` and `-`, at most
	// [MaxNameBytes].
	Name string
	// Server is a pattern for the servers that the document applies to. If it is empty, the document applies to every
	// server.
	Server string
	// Default is the action for calls that no rule with an action matches.
	Default Default
	// ObserveUntil is the time until which the document is only observed: its rules and its default decide nothing. The
	// document is enforced if it is zero.
	ObserveUntil time.Time
	// Rules are the rules. Their order does not matter.
	Rules []Rule
}

// isObserved reports whether a rule has a time until which it is observed, or its document has one. The time may have
// passed.
func (d *Document) isObserved(rule int) bool {
	return !d.ObserveUntil.IsZero() || !d.Rules[rule].ObserveUntil.IsZero()
}

// A Rule decides about the calls that it matches. It has either a Name or a Tool.
type Rule struct {
	// Name is unique in the document and has the same form as the name of a document. It must not start with "tools.",
	// because names with that prefix are for the entries under `tools`.
	Name string
	// Tool is the name of the tool if the rule is an entry under `tools`. Match is then empty.
	Tool string
	// Match says which calls the rule matches.
	Match Match
	// When is a condition, in the language of package condition. The rule decides about the calls that it matches only
	// if the condition is true. An empty When is always true. If the condition can't be evaluated for a call, the rule
	// decides unless its action is [ActionAllow].
	When string
	// ExtraArgs reports whether When can be evaluated for calls whose arguments contain other spellings of the keys that
	// When reads, or keys that the tool's schema does not have. It has no effect without When.
	ExtraArgs bool
	// Otherwise reports whether the rule decides if When is false, instead of if When is true. The name of the rule in a
	// [RuleRef] then ends in ".otherwise".
	Otherwise bool
	// Action is what the rule does with the calls.
	Action Action
	// Reason is shown to the caller if the rule decides, unless Action is [ActionHide].
	Reason string
	// Limits apply to every matching call that is not denied: at most [MaxRuleLimits].
	Limits []RateLimit
	// Approvers are the groups whose members may approve. If it is empty, any approver may. It is allowed only with
	// [ActionRequireApproval].
	Approvers []string
	// Quorum is how many distinct people must approve: 1 to [MaxQuorum], 0 means 1. It is allowed only with
	// [ActionRequireApproval].
	Quorum int
	// DecideWithin is how long approvers have to decide. ExecuteWithin is how long after the approval the call may be
	// made. Both are between [MinTime] and [MaxTime]; 0 means the configured time. It is allowed only with
	// [ActionRequireApproval].
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm lets the person at the agent confirm the call. It is allowed only with [ActionRequireApproval],
	// without Approvers and Grant, and with a quorum of 1.
	SelfConfirm bool
	// Grant makes one approval cover several calls. It is allowed only with [ActionRequireApproval], and only in rules
	// about tools/call.
	Grant Grant
	// Idempotent reports whether a call with an unknown outcome may be sent again. It is allowed only with
	// [ActionAllow] and [ActionRequireApproval].
	Idempotent bool
	// ObserveUntil is the time until which the rule is only observed: it decides nothing, and its limits do not apply.
	// The rule is enforced if it is zero. Both halves of a rule with a condition have the same time.
	ObserveUntil time.Time
	// Timeout limits the time for the server's response to a call that is not denied: [MinTimeout] to [MaxTimeout], 0
	// means none. The shortest timeout of the rules that apply to a call counts.
	Timeout time.Duration
	// Strict reports whether a call of a tool is refused if its arguments do not satisfy the tool's input schema, or
	// include one that the schema does not declare. It concerns the calls to which the rule's limits would apply.
	Strict bool
	// Redactions are made in every matching call that is not denied: at most [MaxRuleRedactions], each once.
	Redactions []Redaction
	// Record reports whether a copy of the arguments of each matching call that is not denied is stored, in which secrets
	// and the values of the call's redactions are replaced.
	Record bool
}

// Grant lets one approval cover several calls. The zero Grant means that each call needs an approval.
type Grant struct {
	// Calls is the number of calls: 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long the grant is valid, from the decision: [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical reports whether the grant also covers the most dangerous tools: tools that are destructive or financial,
	// tools of critical risk, and tools without a class.
	Critical bool
	// Where is a condition on the arguments, in the language of package condition. The grant covers only calls for
	// which the condition is true, and only the approval of such a call gives a grant. If Where is empty, the grant
	// covers all calls of the tool.
	Where string
	// ExtraArgs reports whether Where can be true for calls whose arguments contain other spellings of the keys that
	// Where reads. It has no effect without Where.
	ExtraArgs bool
}

// Condition returns Where, with a comment that records ExtraArgs. The result is a condition of the same language. It is
// empty if the grant covers all calls of the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// condition returns When, with a comment that records ExtraArgs. It is empty if the rule has no condition.
func (r *Rule) condition() string {
	if r.ExtraArgs {
		return r.When + extraArgsNote
	}
	return r.When
}

// extraArgsNote is the comment that records ExtraArgs in a condition.
const extraArgsNote = " // extra_args: allow"

// Match selects calls. It matches if each of its lists matches. An empty list matches every call; any other list
// matches if one of its patterns does.
//
// A pattern is case-sensitive and must match the whole text. `*` matches any number of characters, `?` matches one
// character, and `\` before a character matches that character itself. Square and curly brackets have no meaning and
// are refused without `\`.
type Match struct {
	// Method are patterns for the MCP method of a request, including unknown methods. Unlike other lists, an empty
	// Method matches only [MethodToolsCall], unless Prompt or URI is set. Lists about a tool's name or properties match
	// no other method.
	//
	// Besides [MethodToolsCall], only prompts/get and resources/read can require approval. A rule that requires it must
	// name these methods without wildcards, or have Prompt or URI.
	Method []string
	// Tool are patterns for the tool's name.
	Tool []string
	// Prompt are patterns for the name of a prompt, and URI for the URI of a resource or for the template of a completion.
	// A rule with Prompt concerns prompts/get and completion/complete. A rule with URI concerns resources/read,
	// resources/subscribe, resources/unsubscribe and completion/complete. Method, if set, restricts these.
	//
	// Servers interpret URIs in different ways. A rule with [ActionAllow] therefore matches only plain URIs, which all
	// servers interpret alike; see package locator. Any other rule also matches a URI if a server could interpret it,
	// ignoring case, as a URI that the rule names. It also matches every URI that is not plain. A rule with
	// [ActionRequireApproval] admits only the URIs that it would match with [ActionAllow]. For other URIs it only adds the
	// approval to a call that another rule allows.
	Prompt, URI []string
	// Server are patterns for the server's name, in addition to the document's.
	Server []string
	// Agent are patterns for the name of the calling agent. A person's agent name is empty.
	Agent []string
	// Principal are patterns for the subject.
	Principal []string
	// Groups are patterns for groups. One of the patterns must match one of the subject's groups.
	Groups []string
	// Tenant are patterns for the subject's tenant.
	Tenant []string

	// Category and Risk list values of [Categories] and [Risks]. They match if the catalog gives the tool one of the
	// values. Tags match if the tool has one of them. These values are not patterns.
	Category, Risk, Tags []string
	// Annotations are values of the tool's annotations by name, for example "readOnlyHint". A tool matches if its
	// annotations have all of these values. Annotations of servers that are not trusted are unknown.
	//
	// If a property of a tool is unknown, the lists about that property match in every rule except rules with
	// [ActionAllow].
	Annotations map[string]bool
}

// methods returns the patterns for the method. If Method is empty, they depend on Prompt and URI.
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

// scope reports whether the match can match tools/call, and whether it can match other methods.
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
	// Max is 1 to [MaxLimit].
	Max int64
	// Window is [MinWindow] to [MaxWindow].
	Window time.Duration
	// Per lists the dimensions by which calls are counted separately: at least one, each once. Tenants are always
	// counted separately. No two limits of a rule have the same Window and the same Per.
	Per []Dimension
}

// Action is what a rule does with the calls that it matches. A greater action is stricter and wins.
type Action uint8

// The actions.
const (
	// ActionNone decides nothing. The rule's limits apply if another rule or a default allows the call.
	ActionNone Action = iota
	// ActionAllow allows the call.
	ActionAllow
	// ActionRequireApproval holds the call until it is approved.
	ActionRequireApproval
	// ActionDeny refuses the call. The tool stays listed if the rule has a reason.
	ActionDeny
	// ActionHide refuses the call with the error for an unknown tool. The tool is never listed.
	ActionHide
)

var actionNames = [...]string{"none", "allow", "require_approval", "deny", "hide"}

// String returns the action as documents write it.
func (a Action) String() string { return nameOf(actionNames[:], int(a), "Action") }

// ParseAction returns the action that documents write as name, and reports whether name is an action.
func ParseAction(name string) (Action, bool) {
	for i, known := range actionNames {
		if known == name && i > 0 {
			return Action(i), true
		}
	}
	return ActionNone, false
}

// Actions returns the names of the actions that documents may write.
func Actions() []string { return []string{"allow", "deny", "hide", "require_approval"} }

// Default is the action for calls that no rule with an action matches. A greater default is stricter and wins.
type Default uint8

// The defaults.
const (
	// DefaultNone leaves the decision to other documents.
	DefaultNone Default = iota
	// DefaultAllow allows calls.
	DefaultAllow
	// DefaultByRisk decides by the tool's risk and requires approval if the tool's class is uncertain.
	//
	// If the classification is confirmed, calls of low risk are allowed. Calls of medium risk are allowed 30 times a
	// minute in each session, and calls of high risk 10 times a minute. Critical or unknown risk requires approval.
	//
	// If the classification is not confirmed, calls of low risk are allowed 30 times a minute in each session. Any
	// other risk requires approval.
	DefaultByRisk
	// DefaultDeny refuses calls.
	DefaultDeny
)

// String returns the default as documents write it.
func (d Default) String() string {
	return nameOf([]string{"none", "allow", "by_risk", "deny"}, int(d), "Default")
}

// Dimension is a property of a call. A limit counts calls with different values of the property separately.
type Dimension uint8

// The dimensions.
const (
	// PerSession counts each session of a principal separately.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each subject separately.
	PerPrincipal
	// PerAgent counts each agent name separately, and all people together, because people have no agent name.
	PerAgent
	// PerTenant counts all principals of a tenant together. With other dimensions it has no effect, because every limit
	// counts tenants separately.
	PerTenant
	// PerServer counts each server separately.
	PerServer
	// PerTool counts each tool name separately. For methods other than tools/call it counts each method separately.
	PerTool
	// PerOwner counts each person separately, together with all principals that work for that person: the agents that
	// the person started, the agents that these agents started, and all tokens with that owner. A principal without an
	// owner counts as its own owner.
	PerOwner
)

// dimensionNames are in the order of the values, which are part of the identities of buckets.
var dimensionNames = [...]string{"none", "session", "principal", "agent", "tenant", "server", "tool", "owner"}

// String returns the dimension as documents write it.
func (d Dimension) String() string { return nameOf(dimensionNames[:], int(d), "Dimension") }

// ParseDimension returns the dimension that documents write as name, and reports whether name is a dimension.
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
