package catalogpages

import (
	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

type category struct {
	// Slug is the name of the category in file names, CSS classes and rules.
	Slug string
	// Label is the name of the category on pages.
	Label string
	// Meaning describes the tools in the category.
	Meaning string
	// Usual is the risk of tools in this category if nothing else is known about them.
	Usual policyv1.Risk
	// Means completes the sentence "which means that it …".
	Means string
	// Advice is a sentence that recommends a rule for tools in this category.
	Advice string
	// Why is the reason why tools in this category need a policy. It is used if the catalog has no explanation for a tool.
	Why  string
	does func(tool, server name) prose
}

// categories contains the categories of sluice.mcp.v1. The index of a category is its number. The first category is
// "Not classified".
var categories = [...]category{
	mcpv1.Category_CATEGORY_UNSPECIFIED: {
		Slug: "unknown", Label: "Not classified", Usual: policyv1.Risk_RISK_UNSPECIFIED,
		Meaning: "Tools that are not classified. Each is treated as a tool of the strictest category.",
		Means:   "is treated as a tool of the strictest category",
		Advice:  "Require a person to approve each call until it is known what the tool does.",
		Why:     "It is not known what it does. A tool that is not classified can do anything that its server can do.",
		does: func(tool, server name) prose {
			return say("It is not known what ", tool, " does on ", server, ". Until this is known, it is treated as a tool of the strictest category.")
		},
	},
	mcpv1.Category_CATEGORY_READ: {
		Slug: "read", Label: "Read", Usual: policyv1.Risk_RISK_LOW,
		Meaning: "Tools that retrieve, look up, compute or check, and change nothing.",
		Means:   "retrieves data and changes nothing",
		Advice:  "Consider who may see what it returns.",
		Why:     "It changes nothing. But what it returns goes to the model, and from there to wherever the model writes next.",
		does: func(tool, server name) prose {
			return say("AI agents call ", tool, " to get information from ", server, ". It changes nothing there. "+
				"Most often this is a first step, in which an agent gathers what it needs before it acts elsewhere.")
		},
	},
	mcpv1.Category_CATEGORY_WRITE: {
		Slug: "write", Label: "Write", Usual: policyv1.Risk_RISK_MEDIUM,
		Meaning: "Tools that create or update data in a way that can be reversed.",
		Means:   "creates or changes data",
		Advice:  "Limit its rate, so that a loop can't write without end.",
		Why:     "Every call changes something. The change can be undone, but a person has to notice it first.",
		does: func(tool, server name) prose {
			return say("AI agents use ", tool, " to create or update something on ", server, ". "+
				"Most often this is the step that acts, after an agent has gathered what it needs. Every call changes real data.")
		},
	},
	mcpv1.Category_CATEGORY_EXECUTE: {
		Slug: "execute", Label: "Execute", Usual: policyv1.Risk_RISK_HIGH,
		Meaning: "Tools that run code or commands, or start work whose effect depends on what the caller passes.",
		Means:   "runs code, or starts work whose effect depends on its arguments",
		Advice:  "Limit its rate, and look at its arguments.",
		Why:     "What it does depends on the arguments of the agent, which may be derived from untrusted text.",
		does: func(tool, server name) prose {
			return say("AI agents use ", tool, " to run code or to start work on ", server, ". "+
				"What a call does depends on its arguments: the same tool can do little or much.")
		},
	},
	mcpv1.Category_CATEGORY_DESTRUCTIVE: {
		Slug: "destructive", Label: "Destructive", Usual: policyv1.Risk_RISK_CRITICAL,
		Meaning: "Tools that remove, overwrite or end something permanently.",
		Means:   "removes, overwrites or ends something permanently",
		Advice:  "Require a person to approve each call.",
		Why:     "What it removes can't be restored, and an agent makes mistakes as fast as it works.",
		does: func(tool, server name) prose {
			return say("AI agents use ", tool, " to remove, overwrite or end something on ", server, ". What a call removes can't be restored.")
		},
	},
	mcpv1.Category_CATEGORY_FINANCIAL: {
		Slug: "financial", Label: "Financial", Usual: policyv1.Risk_RISK_CRITICAL,
		Meaning: "Tools that move money, promise it, or take it back.",
		Means:   "moves money, promises it, or takes it back",
		Advice:  "Require a person to approve each call.",
		Why:     "A wrong call costs money immediately.",
		does: func(tool, server name) prose {
			return say("AI agents use ", tool, " to move money through ", server, ", to promise it, or to take it back. A wrong call costs money immediately.")
		},
	},
}

type risk struct {
	Slug, Label string
	// Steps is the position of the risk on a scale of four.
	Steps int
	// Advice is a sentence that recommends a rule for tools with this risk.
	Advice string
}

var risks = [...]risk{
	policyv1.Risk_RISK_UNSPECIFIED: {"unknown", "Not classified", 4, "A tool that is not classified is treated as a tool of the highest risk: require a person to approve each call."},
	policyv1.Risk_RISK_LOW:         {"low", "Low", 1, "Tools of low risk can mostly be allowed."},
	policyv1.Risk_RISK_MEDIUM:      {"medium", "Medium", 2, "Limit the rate of tools of medium risk, so that a loop can't change much before a person notices."},
	policyv1.Risk_RISK_HIGH:        {"high", "High", 3, "Limit the rate of tools of high risk, and look at their arguments."},
	policyv1.Risk_RISK_CRITICAL:    {"critical", "Critical", 4, "Require a person to approve each call to a tool of critical risk."},
}

// categoryOf returns the description of a category. Unknown numbers mean "Not classified".
func categoryOf(c mcpv1.Category) *category {
	if c < 0 || int(c) >= len(categories) {
		c = mcpv1.Category_CATEGORY_UNSPECIFIED
	}
	return &categories[c]
}

// riskOf returns the description of a risk. Unknown numbers mean "Not classified".
func riskOf(r policyv1.Risk) *risk {
	if r < 0 || int(r) >= len(risks) {
		r = policyv1.Risk_RISK_UNSPECIFIED
	}
	return &risks[r]
}

// A degree describes one property of a tool, such as the sensitivity of its results, on a scale.
type degree struct {
	Name, About string
	// Level is low, medium, high, or not judged.
	Level string
	// Slug is the name of the level in CSS classes, and Steps is the position of the level on a scale of three.
	Slug  string
	Steps int
}

// degreeOf describes a property of a tool. A property that was not judged is at the highest position on the scale.
func degreeOf(what, about string, a policyv1.Axis) degree {
	d := degree{Name: what, About: about, Level: "not judged", Slug: "unknown", Steps: 3}
	switch a {
	case policyv1.Axis_AXIS_LOW:
		d.Level, d.Slug, d.Steps = "low", "low", 1
	case policyv1.Axis_AXIS_MEDIUM:
		d.Level, d.Slug, d.Steps = "medium", "medium", 2
	case policyv1.Axis_AXIS_HIGH:
		d.Level, d.Slug, d.Steps = "high", "high", 3
	case policyv1.Axis_AXIS_UNSPECIFIED:
	}
	return d
}

func degreesOf(c *policyv1.Classification) []degree {
	return []degree{
		degreeOf("Sensitivity", "how sensitive its results can be", c.GetSensitivity()),
		degreeOf("Open world", "how far it reaches outside its own server", c.GetOpenWorld()),
		degreeOf("Irreversibility", "how hard it is to undo its effect", c.GetIrreversibility()),
		degreeOf("Blast radius", "how much one call can affect", c.GetBlastRadius()),
	}
}
