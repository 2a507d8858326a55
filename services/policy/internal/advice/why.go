package advice

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/safetext"
)

var categoryTexts = map[mcpv1.Category]string{
	read:        "This tool reads: it retrieves something and leaves nothing changed.",
	write:       "This tool writes: it creates or changes something.",
	execute:     "This tool executes: it runs code or commands, or starts work whose effect depends on what it is given.",
	destructive: "This tool destroys: it removes, overwrites or ends something for good.",
	financial:   "This tool deals with money: it moves it, promises it, or takes it back.",
}

func whyText(c *policyv1.Classification) string {
	if categoryTexts[c.GetCategory()] == "" {
		return "It is not known what this tool does, so it may do any harm. " + approvalText
	}
	sentences := []string{
		categoryTexts[c.GetCategory()], evidenceText(c), uncertaintyText(c), denialText(c), stricterEvidenceText(c), dependenceText(c), ratingTexts(c), tagTexts(c), raisedRiskText(c), measureFor(c).text,
	}
	return strings.Join(slices.DeleteFunc(sentences, func(sentence string) bool { return sentence == "" }), " ")
}

// uncertaintyText returns sentences about the uncertainty of the classification, or "" if it is certain.
func uncertaintyText(c *policyv1.Classification) string {
	if !isUncertain(c) {
		return ""
	}
	return "The category is uncertain, because the definition does not show it clearly. It is the strictest category for which there is evidence."
}

// For each category, denials contains a phrase that says that a tool does not belong to the category. The least strict
// category is first.
var denials = []struct {
	category mcpv1.Category
	text     string
}{
	{write, "does not change data"},
	{execute, "does not run code"},
	{destructive, "does not delete data"},
	{financial, "does not move money"},
}

// denialText returns a sentence that lists the stricter categories for which the definition contains no evidence. It
// returns "" if the classification is uncertain, or if the definition is dishonest. It also returns "" for the category
// Execute, because such a tool can do anything. If the tool's risk is unknown or higher than usual for the category,
// the sentence does not claim that the tool deletes nothing.
func denialText(c *policyv1.Classification) string {
	if isUncertain(c) || c.GetCategory() == execute || isDishonest(c) {
		return ""
	}
	var not []string
	for _, d := range denials {
		if d.category > c.GetCategory() && !hasEvidence(c, d.category) && (d.category != destructive || !hasRaisedRisk(c)) {
			not = append(not, fmt.Sprintf("%s (not %s)", d.text, displayName(d.category)))
		}
	}
	switch last := len(not) - 1; {
	case last < 0:
		return ""
	case last == 0:
		return "As far as its definition tells, it " + not[0] + "."
	default:
		return "As far as its definition tells, it " + strings.Join(not[:last], ", ") + " and " + not[last] + "."
	}
}

// dependenceText returns a sentence that says that the effect of a call depends on an argument, or "" if it does not.
func dependenceText(c *policyv1.Classification) string {
	switch {
	case c.GetDependsOnArgument() != "":
		return fmt.Sprintf("What a call does depends on its argument %s; the category is that of the worst it can do.", quote(c.GetDependsOnArgument()))
	case dependsOnArgument(c):
		return "What a call does depends on an argument; the category is that of the worst it can do."
	default:
		return ""
	}
}

// ratingTexts returns sentences about the tool's ratings. It skips missing ratings.
func ratingTexts(c *policyv1.Classification) string {
	var sentences []string
	add := func(is, at policyv1.Axis, sentence string) {
		if is == at {
			sentences = append(sentences, sentence)
		}
	}
	add(c.GetSensitivity(), policyv1.Axis_AXIS_MEDIUM, "What comes back can be personal or internal.")
	add(c.GetSensitivity(), policyv1.Axis_AXIS_HIGH, "What comes back can be secret, such as passwords and keys.")
	add(c.GetOpenWorld(), policyv1.Axis_AXIS_HIGH, "It reaches outside its own server, so data can leave and untrusted texts can come in.")
	if c.GetCategory() != read {
		add(c.GetBlastRadius(), policyv1.Axis_AXIS_HIGH, "One call can touch much at once.")
	}
	if c.GetCategory() == write || c.GetCategory() == execute {
		if !hasRaisedRisk(c) {
			add(c.GetIrreversibility(), policyv1.Axis_AXIS_LOW, "Its effect can be taken back.")
		}
		add(c.GetIrreversibility(), policyv1.Axis_AXIS_MEDIUM, "Its effect is hard to take back.")
		add(c.GetIrreversibility(), policyv1.Axis_AXIS_HIGH, "Its effect can't be taken back.")
	}
	return strings.Join(sentences, " ")
}

func tagTexts(c *policyv1.Classification) string {
	var sentences, others []string
	for _, tag := range c.GetTags() {
		switch tag {
		case tagSpeaks:
			sentences = append(sentences, "Its definition tells its reader what to do or what to hide, instead of what the tool does.")
		case tagHidden:
			sentences = append(sentences, "Its definition has invisible characters, or text in a script that differs from that of the rest.")
		case tagDepends: // dependenceText writes the sentence
		default:
			others = append(others, safetext.Line(tag))
		}
	}
	if len(others) > 0 {
		sentences = append(sentences, "It is tagged "+strings.Join(others, ", ")+".")
	}
	return strings.Join(sentences, " ")
}

// isDishonest reports whether the definition instructs the model or contains hidden text.
func isDishonest(c *policyv1.Classification) bool { return hasTag(tagSpeaks, tagHidden)(c) }

// usual contains the usual risk of tools in each category.
var usual = map[mcpv1.Category]policyv1.Risk{
	read: policyv1.Risk_RISK_LOW, write: policyv1.Risk_RISK_MEDIUM, execute: policyv1.Risk_RISK_HIGH,
	destructive: policyv1.Risk_RISK_CRITICAL, financial: policyv1.Risk_RISK_CRITICAL,
}

// hasRaisedRisk reports whether the risk is unknown or higher than usual for the category.
func hasRaisedRisk(c *policyv1.Classification) bool {
	return c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED || c.GetRisk() > usual[c.GetCategory()]
}

// raisedRiskText returns a sentence about the risk if the risk is unknown or higher than usual for the category, and
// otherwise "".
func raisedRiskText(c *policyv1.Classification) string {
	switch {
	case c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED:
		return "It is not known how much harm a wrong call can do, so the highest risk is assumed."
	case hasRaisedRisk(c):
		return fmt.Sprintf("Its risk is %s, and not %s as that of most %s tools.", displayName(c.GetRisk()), displayName(usual[c.GetCategory()]), displayName(c.GetCategory()))
	default:
		return ""
	}
}

// displayName returns the name of an enumeration value with an initial capital letter, for example "Destructive".
func displayName(of protoreflect.Enum) string {
	name := enum.Name(of)
	return strings.ToUpper(name[:1]) + name[1:]
}
