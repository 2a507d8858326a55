package engine

import (
	"fmt"
	"slices"
	"time"
)

// Bounds of documents.
const (
	// MaxNameBytes bounds names of documents and rules.
	MaxNameBytes = 128
	// MaxReasonBytes bounds a reason.
	MaxReasonBytes = 1024
	// MaxPatternBytes bounds one pattern.
	MaxPatternBytes = 512
	// MaxLimit is the largest max of a limit.
	MaxLimit = 1_000_000_000
	// MinWindow and MaxWindow bound the window of a limit.
	MinWindow = time.Millisecond
	MaxWindow = 366 * 24 * time.Hour
	// MaxRuleLimits bounds the limits of one rule.
	MaxRuleLimits = 16
	// MaxApprovers bounds the groups that a rule lists.
	MaxApprovers = 64
	// MaxQuorum is the largest quorum.
	MaxQuorum = 16
	// MinTime and MaxTime bound the times to decide and to execute.
	MinTime = time.Second
	MaxTime = 30 * 24 * time.Hour
	// MaxGrantCalls is the largest number of calls that a grant covers, and MaxGrantTime the longest time that it is
	// valid.
	MaxGrantCalls = 10_000
	MaxGrantTime  = 7 * 24 * time.Hour
	// MaxSessionCap is the largest cap, in sessions.
	MaxSessionCap = 1_000_000
	// MaxChain is the largest number of principals behind a caller.
	MaxChain = 4
	// MaxLimits is the largest number of limits of one call: as many as one reservation can have.
	MaxLimits = 64
)

// MethodToolsCall is the method that calls a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document: rules for the servers that it applies to.
type Document struct {
	// Name is unique among the documents of a set: a letter or digit, then letters, digits, `_`, `.` and `-`, at most
	// [MaxNameBytes].
	Name string
	// Server is a pattern for the servers that the document applies to. Empty: every server.
	Server string
	// Default is the action for calls that no rule with an action matches.
	Default Default
	// Rules are the rules. Their order does not matter.
	Rules []Rule
}

// A Rule says what happens to the calls that it matches. It has either a Name or a Tool.
type Rule struct {
	// Name is unique in the document, in the form of a document's name. It must not start with "tools.", which names
	// entries.
	Name string
	// Tool makes the rule the entry of the tool with that name. Match is then empty.
	Tool string
	// Match says which calls the rule matches.
	Match Match
	// Action is what the rule does with the calls.
	Action Action
	// Reason is shown to the caller if the rule decides and does not hide.
	Reason string
	// Limits apply to every matching call that is not denied: at most [MaxRuleLimits].
	Limits []RateLimit
	// Approvers are the groups whose members may approve. Empty: any approver. Only for [ActionRequireApproval].
	Approvers []string
	// Quorum is how many distinct people must approve: 1 to [MaxQuorum], 0 means 1. Only for [ActionRequireApproval].
	Quorum int
	// DecideWithin is how long people have to decide, and ExecuteWithin how long the approved call may wait to be made:
	// [MinTime] to [MaxTime], 0 means the configured time. Only for [ActionRequireApproval].
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm lets the person at the agent confirm. Only for [ActionRequireApproval], without Approvers and Grant,
	// and with a quorum of 1.
	SelfConfirm bool
	// Grant makes one approval cover more calls. Only for [ActionRequireApproval], and only in rules about calls of
	// tools.
	Grant Grant
	// Idempotent says that a call with an unknown outcome may be sent again. Only for [ActionAllow] and
	// [ActionRequireApproval].
	Idempotent bool
}

// Grant is an approval that covers more than one call. The zero Grant means none.
type Grant struct {
	// Calls is the number of calls: 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long the grant is valid, from the decision: [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical says that the grant also covers calls of the most dangerous tools: destructive or financial ones, those
	// of critical risk, and those without a class.
	Critical bool
	// Where is a condition on the arguments, in the language of package condition. The grant covers calls for which it
	// holds, and only such a call can start a grant. Empty: all calls of the tool.
	Where string
	// ExtraArgs says that Where also holds for calls that have other spellings of the keys that it reads. It has no
	// effect without Where.
	ExtraArgs bool
}

// Condition returns Where and ExtraArgs as one text, which is also a condition: ExtraArgs becomes a comment in it.
// Empty: all calls of the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// extraArgsNote is the comment for ExtraArgs.
const extraArgsNote = " // extra_args: allow"

// Match matches if each of its lists does. An empty list always matches; another matches if one of its patterns does.
// A pattern is anchored at both ends and case-sensitive: `*` matches any run of characters, `?` one, and `\` before a
// character that character itself. Square and curly brackets have no meaning and are refused without `\`.
type Match struct {
	// Method are patterns for the MCP method of a request, including unknown methods. Policy is not asked about methods
	// that always pass. Unlike other lists, an empty Method matches only [MethodToolsCall]. Keys about a tool, its name
	// or its properties, match no other method. Approval can be required for prompts/get and resources/read as the only
	// other methods, by rules that name them without wildcards or by prompt or URI.
	Method []string
	// Tool are patterns for the tool's name.
	Tool []string
	// Prompt are patterns for the name of a prompt, and URI for the URI of a resource or for the template of a
	// completion. A rule with Prompt concerns prompts/get and completion/complete. A rule with URI concerns
	// resources/read, resources/subscribe, resources/unsubscribe and completion/complete. Method, if set, restricts
	// these.
	//
	// A rule that allows matches only URIs that have a single spelling; see package locator. Any other rule also
	// matches URIs that a reader could take for one that it names, in any case, and every URI for which that is
	// unknown. A rule that requires approval opens what it would match if it allowed; it adds approval to the rest if
	// other rules allow that.
	Prompt, URI []string
	// Server are patterns for the server's name, in addition to the document's.
	Server []string
	// Agent are patterns for the name of the agent that calls; people have none.
	Agent []string
	// Principal are patterns for the subject.
	Principal []string
	// Groups are patterns. One of them must match one of the subject's groups.
	Groups []string
	// Tenant are patterns for the subject's tenant.
	Tenant []string

	// Category and Risk are values of [Categories] and [Risks] that the catalog gives the tool; Tags are tags of which
	// the tool has one. They are not patterns.
	Category, Risk, Tags []string
	// Annotations are the hints of the tool by name, which only count from trusted servers.
	//
	// If a property of a tool is not known, Category, Risk, Tags and Annotations match in every rule except one that
	// allows.
	Annotations map[string]bool
}

// methods returns the patterns for the method, with the defaults applied.
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

// about reports whether the match concerns calls of tools, and whether it concerns other methods.
func (m *Match) about() (tools, methods bool) {
	if m.named() {
		named := promptMethods
		if len(m.URI) > 0 {
			named = uriMethods
		}
		return false, len(m.Tool) == 0 && !m.classed() && slices.ContainsFunc(named, compilePatterns(m.methods()).match)
	}
	for _, g := range compilePatterns(m.methods()) {
		tools = tools || g.match(MethodToolsCall)
		methods = methods || !g.exact || g.prefix != MethodToolsCall
	}
	return tools, methods && len(m.Tool) == 0 && !m.classed()
}

// RateLimit allows at most Max calls in any period of Window.
type RateLimit struct {
	// Max is 1 to [MaxLimit].
	Max int64
	// Window is [MinWindow] to [MaxWindow].
	Window time.Duration
	// Per is what the limit is counted by, each dimension once, at least one. The tenant always counts. No two limits
	// of a rule have the same Window and the same Per.
	Per []Dimension
}

// Action is what a rule does. A greater action is stricter and wins.
type Action uint8

// The actions.
const (
	// ActionNone decides nothing; the rule's limits apply if something else allows the call.
	ActionNone Action = iota
	// ActionAllow allows the call.
	ActionAllow
	// ActionRequireApproval lets the call wait until people approve.
	ActionRequireApproval
	// ActionDeny refuses the call. With a reason the tool stays listed.
	ActionDeny
	// ActionHide refuses the call as a call of an unknown tool. The tool is never listed.
	ActionHide
)

var actionNames = [...]string{"none", "allow", "require_approval", "deny", "hide"}

// String returns the action as documents write it.
func (a Action) String() string { return nameOf(actionNames[:], int(a), "Action") }

// ParseAction returns the action that documents write as name, and whether there is such an action.
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

// Default is the action if no rule with an action matches. A greater default is stricter and wins.
type Default uint8

// The defaults.
const (
	// DefaultNone leaves the decision to other documents.
	DefaultNone Default = iota
	// DefaultAllow allows calls.
	DefaultAllow
	// DefaultByRisk decides by the tool's risk. If the classification is confirmed, low risk is allowed, medium 30
	// times a minute in each session, high 10 times, and critical or unknown risk requires approval. Otherwise low risk
	// is allowed 30 times a minute, and all others require approval. An uncertain class requires approval in both
	// cases.
	DefaultByRisk
	// DefaultDeny refuses calls.
	DefaultDeny
)

// String returns the default as documents write it.
func (d Default) String() string {
	return nameOf([]string{"none", "allow", "by_risk", "deny"}, int(d), "Default")
}

// Dimension is a property that a limit is counted by.
type Dimension uint8

// The dimensions.
const (
	// PerSession counts each session of a principal separately.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each subject separately.
	PerPrincipal
	// PerAgent counts each agent's name separately, and people, who have none, together.
	PerAgent
	// PerTenant counts all principals of a tenant together. It adds nothing to other dimensions, because every limit is
	// counted per tenant.
	PerTenant
	// PerServer counts each server separately.
	PerServer
	// PerTool counts each tool's name separately, and each other method.
	PerTool
	// PerOwner counts each person separately, together with all principals that work for that person: agents that the
	// person made, agents that those made, and all tokens with that owner. A principal without an owner is its own
	// owner.
	PerOwner
)

// dimensionNames are in the order of the values, which are part of the identities of buckets.
var dimensionNames = [...]string{"none", "session", "principal", "agent", "tenant", "server", "tool", "owner"}

// String returns the dimension as documents write it.
func (d Dimension) String() string { return nameOf(dimensionNames[:], int(d), "Dimension") }

// ParseDimension returns the dimension that documents write as name, and whether there is such a dimension.
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
