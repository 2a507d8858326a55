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

// Short names of the categories.
const (
	read        = mcpv1.Category_CATEGORY_READ
	write       = mcpv1.Category_CATEGORY_WRITE
	execute     = mcpv1.Category_CATEGORY_EXECUTE
	destructive = mcpv1.Category_CATEGORY_DESTRUCTIVE
	financial   = mcpv1.Category_CATEGORY_FINANCIAL
)

// A measure is what is recommended against the harm that a tool can do.
type measure struct {
	// rule are the terms of an entry under `tools`, as YAML on one line; of a limit it lacks
	// how many calls.
	rule string
	// most is how many calls the limit lets pass in a minute; 0 where there is none.
	most int
	// need says the same in a sentence for people.
	need string
}

const (
	limited = "{action: allow, rate_limit: {max: %d, window: 60}}"
	limitIt = "A policy should limit how often it is called"
	askOf   = "A policy should have a person decide on each call."
)

// measures are those for each category.
var measures = map[mcpv1.Category]measure{
	read:        {"{action: allow}", 0, "A policy can let it pass."},
	write:       {limited, 30, limitIt + ": many small changes make a large one."},
	execute:     {limited, 10, limitIt + ", and somebody should look at what it is given."},
	destructive: {"{action: require_approval, reason: it removes or overwrites for good}", 0, askOf},
	financial:   {"{action: require_approval, reason: it moves money}", 0, askOf},
}

// surely is the confidence from which a classification counts as sure.
const surely = 0.5

// Rule is what is recommended for a tool that is held to be c: the terms of an entry under
// `tools`, as YAML on one line. People are asked about a tool of which it is not sure what it
// does, about one of critical or unknown risk, whatever its category, and about one that writes
// and whose risk is high: an edit that may ruin something is no better than a write that may.
func Rule(c *policyv1.Classification) string { return RuleFor(c, 0) }

// RuleFor is [Rule] for a tool of which a session made so many calls in a minute: where there
// is a limit, that many pass.
func RuleFor(c *policyv1.Classification, busiest int) string {
	m := against(c)
	if m.most == 0 {
		return m.rule
	}
	return fmt.Sprintf(m.rule, max(m.most, busiest))
}

// against is the measure for a tool that is held to be c.
func against(c *policyv1.Classification) measure {
	own, known := measures[c.GetCategory()]
	switch {
	case !known, unsure(c):
		return measure{"{action: require_approval, reason: its definition leaves open what it does}", 0, askOf}
	case c.GetCategory() < destructive && worst(c):
		return measure{"{action: require_approval, reason: a wrong call of it can be as bad as any}", 0, askOf}
	case c.GetCategory() == write && c.GetRisk() >= policyv1.Risk_RISK_HIGH:
		return measure{"{action: require_approval, reason: what it changes can be much or not come back}", 0, askOf}
	default:
		return own
	}
}

// unsure reports whether it is not sure what the tool does. A confidence that is no number is
// none.
func unsure(c *policyv1.Classification) bool {
	sure := c.GetConfidence() >= surely
	return !sure
}

// worst reports whether the risk is the highest. One that is not known counts as that.
func worst(c *policyv1.Classification) bool {
	return c.GetRisk() == policyv1.Risk_RISK_CRITICAL || c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED
}

// What names of servers, tools and documents may be.
var (
	serverName   = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)
	toolName     = regexp.MustCompile(`^[A-Za-z0-9_./-]{1,128}$`)
	documentName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)
)

// NamesTool reports whether an entry under `tools` can have that name.
func NamesTool(name string) bool { return toolName.MatchString(name) }

// document is a policy for that one tool; empty where it can't name the server or the tool. It
// has no default: it says nothing of other tools, and may stand beside any other document.
func document(server, tool string, c *policyv1.Classification) string {
	if !serverName.MatchString(server) || !NamesTool(tool) {
		return ""
	}
	return fmt.Sprintf("version: 1\nname: %s\nserver: %s\ntools:\n  %s: %s\n",
		Quoted(titled(server, tool)), Quoted(server), Quoted(tool), Rule(c))
}

// titled is the name of that document: another one for each tool, so that those of several
// tools can be active together. No server's name has a `_`, so the first one ends it; where
// the two are no document's name together, a digest stands for them, without any `_`.
func titled(server, tool string) string {
	name := server + "_" + tool
	if documentName.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "tool-" + hex.EncodeToString(sum[:16])
}

// Quoted is a text as a scalar of YAML: as it stands where every reader of YAML takes that for
// a text, else in quotes, in ASCII. The text is UTF-8.
func Quoted(text string) string {
	if plain.MatchString(text) && !reserved[strings.ToLower(text)] {
		return text
	}
	return strconv.QuoteToASCII(text)
}

var plain = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_-]*$`)

// reserved are words that some readers of YAML take for something else than a text.
var reserved = map[string]bool{
	"y": true, "n": true, "yes": true, "no": true, "on": true, "off": true,
	"true": true, "false": true, "null": true, "nan": true, "inf": true,
}
