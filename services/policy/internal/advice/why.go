package advice

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/internal/enum"
	"github.com/sluice-mesh/sluice/services/internal/viewtext"
)

// does says what tools of a category do.
var does = map[mcpv1.Category]string{
	read:        "This tool reads: it retrieves something and leaves nothing changed.",
	write:       "This tool writes: it creates or changes something.",
	execute:     "This tool executes: it runs code or commands, or starts work whose effect depends on what it is given.",
	destructive: "This tool destroys: it removes, overwrites or ends something for good.",
	financial:   "This tool deals with money: it moves it, promises it, or takes it back.",
}

// why returns why the tool needs a policy, in sentences.
func why(c *policyv1.Classification) string {
	if does[c.GetCategory()] == "" {
		return "Nothing is known of what this tool does, so it may do any harm. " + askOf
	}
	said := []string{
		does[c.GetCategory()], spoken(c), doubt(c), denied(c), stricter(c), dependence(c), degrees(c), signs(c), lifted(c), against(c).need,
	}
	return strings.Join(slices.DeleteFunc(said, func(sentence string) bool { return sentence == "" }), " ")
}

// doubt says that the class is uncertain.
func doubt(c *policyv1.Classification) string {
	if !unsure(c) {
		return ""
	}
	return "That is not sure: the definition leaves it open, and the strictest holds that anything in it speaks for."
}

// denials say what a tool does not do if it is not of the category, the mildest first.
var denials = []struct {
	category mcpv1.Category
	text     string
}{
	{write, "does not change data"},
	{execute, "does not run code"},
	{destructive, "does not delete data"},
	{financial, "does not move money"},
}

// denied says which stricter things the tool does not do, if its class is certain and there is no evidence for them.
// It says nothing for executing tools, which may do anything, and for dishonest definitions. For a tool with a raised
// risk it does not deny that the tool deletes data.
func denied(c *policyv1.Classification) string {
	if unsure(c) || c.GetCategory() == execute || dishonest(c) {
		return ""
	}
	var not []string
	for _, d := range denials {
		if d.category > c.GetCategory() && !speaksFor(c, d.category) && (d.category != destructive || !raisedRisk(c)) {
			not = append(not, fmt.Sprintf("%s (not %s)", d.text, named(d.category)))
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

// dependence says that an argument chooses what is done.
func dependence(c *policyv1.Classification) string {
	switch {
	case c.GetDependsOnArgument() != "":
		return fmt.Sprintf("What a call does depends on its argument %s; the category is that of the worst it can do.", quote(c.GetDependsOnArgument()))
	case chosen(c):
		return "What a call does depends on an argument; the category is that of the worst it can do."
	default:
		return ""
	}
}

// degrees says what the axes add. An axis that was not rated adds nothing.
func degrees(c *policyv1.Classification) string {
	var said []string
	add := func(is, at policyv1.Axis, sentence string) {
		if is == at {
			said = append(said, sentence)
		}
	}
	add(c.GetSensitivity(), policyv1.Axis_AXIS_MEDIUM, "What comes back can be personal or internal.")
	add(c.GetSensitivity(), policyv1.Axis_AXIS_HIGH, "What comes back can be secret, such as passwords and keys.")
	add(c.GetOpenWorld(), policyv1.Axis_AXIS_HIGH, "It reaches outside its own server, so data can leave and untrusted texts can come in.")
	if c.GetCategory() != read {
		add(c.GetBlastRadius(), policyv1.Axis_AXIS_HIGH, "One call can touch much at once.")
	}
	if c.GetCategory() == write || c.GetCategory() == execute {
		if !raisedRisk(c) {
			add(c.GetIrreversibility(), policyv1.Axis_AXIS_LOW, "Its effect can be taken back.")
		}
		add(c.GetIrreversibility(), policyv1.Axis_AXIS_MEDIUM, "Its effect is hard to take back.")
		add(c.GetIrreversibility(), policyv1.Axis_AXIS_HIGH, "Its effect can't be taken back.")
	}
	return strings.Join(said, " ")
}

// signs says what the tags mean.
func signs(c *policyv1.Classification) string {
	var said, others []string
	for _, tag := range c.GetTags() {
		switch tag {
		case tagSpeaks:
			said = append(said, "Its definition tells its reader what to do or what to hide, instead of what the tool does.")
		case tagHidden:
			said = append(said, "Its definition has characters that show nothing, or text in another script than the rest.")
		case tagDepends: // said already
		default:
			others = append(others, viewtext.Line(tag))
		}
	}
	if len(others) > 0 {
		said = append(said, "It is tagged "+strings.Join(others, ", ")+".")
	}
	return strings.Join(said, " ")
}

// dishonest reports whether the definition has text for a model or hidden text.
func dishonest(c *policyv1.Classification) bool { return tagged(tagSpeaks, tagHidden)(c) }

// usual is the risk of a category alone.
var usual = map[mcpv1.Category]policyv1.Risk{
	read: policyv1.Risk_RISK_LOW, write: policyv1.Risk_RISK_MEDIUM, execute: policyv1.Risk_RISK_HIGH,
	destructive: policyv1.Risk_RISK_CRITICAL, financial: policyv1.Risk_RISK_CRITICAL,
}

// raisedRisk reports whether the risk is higher than that of the category alone, or not known.
func raisedRisk(c *policyv1.Classification) bool {
	return c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED || c.GetRisk() > usual[c.GetCategory()]
}

// lifted says that the risk is raised.
func lifted(c *policyv1.Classification) string {
	switch {
	case c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED:
		return "How bad a wrong call can be is not known, so it counts as the worst."
	case raisedRisk(c):
		return fmt.Sprintf("Its risk is %s, and not %s as that of most %s tools.", named(c.GetRisk()), named(usual[c.GetCategory()]), named(c.GetCategory()))
	default:
		return ""
	}
}

// named returns an enumeration value in the form of pages, for example "Destructive".
func named(of protoreflect.Enum) string {
	name := enum.Name(of)
	return strings.ToUpper(name[:1]) + name[1:]
}
