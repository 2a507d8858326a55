package engine

import (
	"fmt"
	"slices"
	"time"
)

// Bounds on what documents say. Whoever needs more needs another tool.
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
	// MaxGrantCalls is the most calls that a grant covers, and MaxGrantTime the
	// longest that it holds.
	MaxGrantCalls = 10_000
	MaxGrantTime  = 7 * 24 * time.Hour
	// MaxSessionCap is the largest cap, in sessions.
	MaxSessionCap = 1_000_000
	// MaxChain is how many principals may stand behind a caller.
	MaxChain = 4
	// MaxLimits is how many limits may bear on one call: what one reservation
	// holds.
	MaxLimits = 64
)

// MethodToolsCall is the method that calls a tool (MCP, Tools, Calling Tools).
const MethodToolsCall = "tools/call"

// A Document is a policy document: rules for the servers that it applies to.
type Document struct {
	// Name is unique among the documents of a set: a letter or digit, then letters,
	// digits, `_`, `.` and `-`, at most [MaxNameBytes].
	Name string
	// Server is a pattern for the servers that the document is about. Empty: every
	// server.
	Server string
	// Default is what holds for calls that no rule with an action matches.
	Default Default
	// Rules are in no order that matters.
	Rules []Rule
}

// A Rule says what holds for the calls that it matches. It has a Name or is the
// entry of a Tool, not both.
type Rule struct {
	// Name is unique in the document, formed as a document's, and does not start
	// with "tools.", which is how entries are named.
	Name string
	// Tool makes the rule the entry of the one tool of that name. Match is then
	// empty.
	Tool string
	// Match says which calls the rule is about.
	Match Match
	// Action is what happens to them.
	Action Action
	// Reason is shown to the caller where the rule decides and does not hide.
	Reason string
	// Limits apply wherever the call is not denied: at most [MaxRuleLimits].
	Limits []RateLimit
	// Approvers are the groups whose members may approve. Empty: whoever may
	// approve at all. For [ActionRequireApproval] only.
	Approvers []string
	// Quorum is how many distinct people must approve: 1 to [MaxQuorum], 0 means 1.
	// For [ActionRequireApproval] only.
	Quorum int
	// DecideWithin is how long people have to decide, and ExecuteWithin how long the
	// approved call may wait to run: [MinTime] to [MaxTime], 0 means the configured
	// time. For [ActionRequireApproval] only.
	DecideWithin, ExecuteWithin time.Duration
	// SelfConfirm lets the person at the agent confirm. For [ActionRequireApproval]
	// only, without Approvers and Grant, and with a quorum of 1.
	SelfConfirm bool
	// Grant makes one approval cover more calls. For [ActionRequireApproval] only, and of
	// rules about calls of tools alone.
	Grant Grant
	// Idempotent says that a call whose outcome is unknown may be sent again. For
	// [ActionAllow] and [ActionRequireApproval] only.
	Idempotent bool
}

// Grant is an approval for more than one call. The zero Grant is none.
type Grant struct {
	// Calls is how many: 1 to [MaxGrantCalls].
	Calls int64
	// Within is how long it holds, from the decision: [MinTime] to [MaxGrantTime].
	Within time.Duration
	// Critical says that it covers calls of the most dangerous tools too: those that
	// destroy or move money, those of critical risk, and those of which neither is known.
	Critical bool
	// Where is a condition on the arguments, as package condition has them: the
	// grant covers calls for which it holds, and only such a call can ask for one.
	// Empty: all calls of the tool.
	Where string
	// ExtraArgs says that Where holds whatever other spellings of the keys that it
	// reads a call has; has no use without Where.
	ExtraArgs bool
}

// Condition is what Grant says of arguments, in one text, which is a condition too:
// that extra keys pass is a comment in it. Empty: all calls of the tool.
func (g Grant) Condition() string {
	if g.ExtraArgs {
		return g.Where + extraArgsNote
	}
	return g.Where
}

// extraArgsNote says in a condition that extra keys pass.
const extraArgsNote = " // extra_args: allow"

// Match holds where each of its lists does. An empty list always holds; another
// holds where one of its patterns matches. A pattern is anchored at both ends and
// case-sensitive: `*` stands for any run of characters, `?` for one, `\` before a
// character for that character itself. Square and curly brackets have no meaning
// and are refused without `\`.
type Match struct {
	// Method are patterns for the MCP method of a request, unknown ones too; some always
	// pass, and nobody asks about them. Empty is the one exception to what an empty list
	// means: the rule is about [MethodToolsCall] alone. What a rule wants of a tool, by its
	// name or by what it is, no other method has. Of other methods people are asked about
	// prompts/get and resources/read alone, by rules that name them so.
	Method []string
	// Tool are patterns for the tool's name.
	Tool []string
	// Prompt are patterns for the name of a prompt, and URI for the URI of a resource, or for
	// the template of which a completion is. A rule with one of them is about the methods that
	// name such a thing, and of those about the ones that Method names, where it does: for a
	// prompt prompts/get and completion/complete, for a URI resources/read,
	// resources/subscribe, resources/unsubscribe and completion/complete.
	//
	// A rule that allows is about URIs that have one spelling alone; see package locator. Any
	// other is also about URIs that a reader could take for one that it names, and letters of
	// any case, and about every URI of which that can't be told. One that asks people opens
	// what a rule that allows would be about, and of the rest what other rules allow.
	Prompt, URI []string
	// Server are patterns for the server's name, beside the document's.
	Server []string
	// Agent are patterns for the name of the agent that calls; people have none.
	Agent []string
	// Principal are patterns for the subject.
	Principal []string
	// Groups are patterns of which one must match one of the subject's groups.
	Groups []string
	// Tenant are patterns for the subject's tenant.
	Tenant []string

	// Category and Risk are, of [Categories] and [Risks], those that the catalogue
	// holds the tool to be of; Tags those of which it has one. They are no patterns.
	Category, Risk, Tags []string
	// Annotations are the hints of the tool, by name, as trusted servers give them.
	//
	// Of what is not known of a tool, these four lists hold in every rule but one that
	// allows.
	Annotations map[string]bool
}

// methods are the patterns for the method, as they count.
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

// about reports whether the match is about calls of tools, and whether about other methods.
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

// RateLimit is never more than Max calls in any stretch of Window.
type RateLimit struct {
	// Max is 1 to [MaxLimit].
	Max int64
	// Window is [MinWindow] to [MaxWindow].
	Window time.Duration
	// Per says what the limit is counted by, each dimension once, at least one.
	// The tenant always counts. No two limits of a rule have the same Window and
	// the same Per.
	Per []Dimension
}

// Action is what a rule does. A greater one is stricter and wins.
type Action uint8

// The actions.
const (
	// ActionNone decides nothing; the rule's limits apply where something allows.
	ActionNone Action = iota
	// ActionAllow lets the call through.
	ActionAllow
	// ActionRequireApproval holds the call until people approve.
	ActionRequireApproval
	// ActionDeny refuses the call. With a reason the tool stays listed.
	ActionDeny
	// ActionHide refuses the call as that of an unknown tool, which is never
	// listed.
	ActionHide
)

var actionNames = [...]string{"none", "allow", "require_approval", "deny", "hide"}

// String returns the action as documents write it.
func (a Action) String() string { return nameOf(actionNames[:], int(a), "Action") }

// ParseAction returns the action that documents write as name, and whether there
// is one.
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

// Default is what holds where no rule with an action matched. A greater one is
// stricter and wins.
type Default uint8

// The defaults.
const (
	// DefaultNone leaves the matter to other documents.
	DefaultNone Default = iota
	// DefaultAllow lets calls through.
	DefaultAllow
	// DefaultByRisk does what is recommended for tools of such a risk: a tool of low
	// risk is allowed, one of medium 30 times a minute in each session, one of high 10
	// times, and people are asked about one of critical or of no known risk. Where
	// nobody vouches for what the server says of its tools, one of low risk is allowed
	// 30 times a minute, and people are asked about all others.
	DefaultByRisk
	// DefaultDeny refuses them.
	DefaultDeny
)

// String returns the default as documents write it.
func (d Default) String() string {
	return nameOf([]string{"none", "allow", "by_risk", "deny"}, int(d), "Default")
}

// Dimension is something that a limit is counted by.
type Dimension uint8

// The dimensions.
const (
	// PerSession counts each session of a principal by itself.
	PerSession Dimension = iota + 1
	// PerPrincipal counts each subject by itself.
	PerPrincipal
	// PerAgent counts each agent's name by itself; people, who have none, together.
	PerAgent
	// PerTenant counts all of a tenant together. It adds nothing to others, for
	// every limit is kept by tenant.
	PerTenant
	// PerServer counts each server by itself.
	PerServer
	// PerTool counts each tool's name by itself, and each other method.
	PerTool
	// PerOwner counts each person by itself, with all principals that work for that person: agents that the person
	// made, agents that those made, and all tokens with that owner. A principal without an owner is its own.
	PerOwner
)

// dimensionNames stand in the order of the values, which are part of the identities of buckets.
var dimensionNames = [...]string{"none", "session", "principal", "agent", "tenant", "server", "tool", "owner"}

// String returns the dimension as documents write it.
func (d Dimension) String() string { return nameOf(dimensionNames[:], int(d), "Dimension") }

// ParseDimension returns the dimension that documents write as name, and whether
// there is one.
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
