package advice

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

const (
	read        = mcpv1.Category_CATEGORY_READ
	write       = mcpv1.Category_CATEGORY_WRITE
	execute     = mcpv1.Category_CATEGORY_EXECUTE
	destructive = mcpv1.Category_CATEGORY_DESTRUCTIVE
	financial   = mcpv1.Category_CATEGORY_FINANCIAL
)

// A measure is the recommended rule for a kind of tool.
type measure struct {
	// rule is the YAML value of an entry under `tools`, on one line. If the rule has a limit, rule contains %d in place of
	// the number of calls.
	rule string
	// maxCalls is the maximum number of calls per minute, or 0 for no limit.
	maxCalls int
	// text recommends the rule in one sentence.
	text string
}

const (
	limited      = "{action: allow, rate_limit: {max: %d, window: 60}}"
	limitText    = "A policy should limit how often it is called"
	approvalText = "A policy should have a person decide on each call."
)

var measures = map[mcpv1.Category]measure{
	read:        {"{action: allow}", 0, "A policy can let it pass."},
	write:       {limited, 30, limitText + ": many small changes make a large one."},
	execute:     {limited, 10, limitText + ", and a person should check its arguments."},
	destructive: {"{action: require_approval, reason: it removes or overwrites for good}", 0, approvalText},
	financial:   {"{action: require_approval, reason: it moves money}", 0, approvalText},
}

const certainFrom = 0.5

// Rule returns the recommended rule for a tool with the classification c. The rule is the YAML value of an entry under
// `tools`, on one line. It requires approval in these cases: the classification is uncertain, the risk is critical or
// unknown, the category is Destructive or Financial, or the category is Write and the risk is high.
func Rule(c *policyv1.Classification) string { return RuleFor(c, 0) }

// RuleFor is like [Rule], except that a limit in the rule is at least busiest, in calls per minute.
func RuleFor(c *policyv1.Classification, busiest int) string {
	m := measureFor(c)
	if m.maxCalls == 0 {
		return m.rule
	}
	return fmt.Sprintf(m.rule, max(m.maxCalls, busiest))
}

// NeedsApproval reports whether the rule that [Rule] returns requires approval.
func NeedsApproval(c *policyv1.Classification) bool { return ApprovalReason(c) != "" }

// ApprovalReason returns the reason that the rule from [Rule] gives for requiring approval, or "" if the rule does not
// require approval.
func ApprovalReason(c *policyv1.Classification) string {
	reason, approval := strings.CutPrefix(measureFor(c).rule, "{action: require_approval, reason: ")
	if !approval {
		return ""
	}
	return strings.TrimSuffix(reason, "}")
}

func measureFor(c *policyv1.Classification) measure {
	own, known := measures[c.GetCategory()]
	switch {
	case isUncertain(c) && c.GetCategory() == destructive:
		return measure{"{action: require_approval, reason: it may remove or overwrite for good}", 0, approvalText}
	case isUncertain(c) && c.GetCategory() == financial:
		return measure{"{action: require_approval, reason: it may move money}", 0, approvalText}
	case !known, isUncertain(c):
		return measure{"{action: require_approval, reason: its definition leaves open what it does}", 0, approvalText}
	case c.GetCategory() < destructive && isCritical(c):
		return measure{"{action: require_approval, reason: a wrong call of it can be as bad as any}", 0, approvalText}
	case c.GetCategory() == write && c.GetRisk() >= policyv1.Risk_RISK_HIGH:
		return measure{"{action: require_approval, reason: it can change much or for good}", 0, approvalText}
	default:
		return own
	}
}

// isUncertain reports whether the confidence of the classification is too low. NaN counts as too low.
func isUncertain(c *policyv1.Classification) bool {
	certain := c.GetConfidence() >= certainFrom
	return !certain
}

func isCritical(c *policyv1.Classification) bool {
	return c.GetRisk() == policyv1.Risk_RISK_CRITICAL || c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED
}

// These regular expressions match the valid names of servers, tools and documents.
var (
	serverName   = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	toolName     = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)
	documentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
)

// NamesTool reports whether a string can be the name of an entry under `tools`.
func NamesTool(name string) bool { return toolName.MatchString(name) }

// document returns a policy document for one tool, or "" if a document can't name the server or the tool. The document
// has no default, so it can be active together with any other document.
func document(server, tool string, c *policyv1.Classification) string {
	if !serverName.MatchString(server) || !NamesTool(tool) {
		return ""
	}
	return fmt.Sprintf("version: 1\nname: %s\nserver: %s\ntools:\n  %s: %s\n",
		Quoted(documentNameFor(server, tool)), Quoted(server), Quoted(tool), Rule(c))
}

// documentNameFor returns the name of the document for a tool. The name consists of the names of the server and the
// tool. Different tools get different names, because a server's name never contains `_`. If the combined name is not
// valid, documentNameFor uses a digest instead.
func documentNameFor(server, tool string) string {
	name := server + "_" + tool
	if documentName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "tool-" + hex.EncodeToString(sum[:16])
}

// Quoted returns an ASCII YAML scalar for a string. The scalar is quoted unless all YAML parsers read the unquoted text
// as a string. The string must be valid UTF-8.
func Quoted(text string) string {
	if plain.MatchString(text) && !reserved[strings.ToLower(text)] {
		return text
	}
	return strconv.QuoteToASCII(text)
}

var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// reserved contains the words that some YAML parsers read as a boolean, null or a number unless they are quoted.
var reserved = map[string]bool{
	"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true,
	"true": true, "false": true, "null": true, "nan": true, "inf": true,
}
