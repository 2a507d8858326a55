package catalogpages

import (
	"fmt"
	"slices"
	"strings"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

type question struct {
	// Slug is the name of the question in links.
	Slug   string
	Title  prose
	Answer []prose
	// Rule is a YAML policy document for the answer. It may be empty.
	Rule string
}

// questionsOf returns the six questions of a tool's page.
func questionsOf(v *view) []question {
	tool, server := v.headName(), name(v.GetServer())
	return []question{
		{"what", say("What does the ", tool, " tool do?"), whatItDoes(v), ""},
		enforce(v),
		{"risk", say("What risk level is ", tool, "?"), howRisky(v), ""},
		withRule(question{
			"limit", say("Can I rate-limit ", tool, "?"), []prose{say(
				"Yes. Add ", code("rate_limit"), " to its entry in the policy. With the entry below, an agent session can make at most 10 calls in any 60 seconds. "+
					"Further calls are refused, and the response says when to try again.")}, limited(v.GetServer(), v.GetName()),
		}),
		withRule(question{
			"block", say("How do I block ", tool, " completely?"), []prose{say(
				"Set ", code("action: deny"), ". A call is refused before it reaches ", server, ", and the agent gets the reason. With ",
				code("action: hide"), " agents don't see the tool at all.")}, denied(v.GetServer(), v.GetName()),
		}),
		{"server", say("What MCP server provides ", tool, "?"), []prose{say(
			"It is a tool of the MCP server ", server, ". The gateway of Sluice serves it at ", code(gatewayPath(v.GetServer())),
			", and applies policies before a call reaches the server.")}, ""},
	}
}

func whatItDoes(v *view) []prose {
	var out []prose
	if said := strings.TrimSpace(v.GetDescription()); said != "" {
		out = append(out, say("In its server's words: “", quote(short(said, 2*maxSummary)), "”"))
	}
	return append(out, say("It is classified as a "+v.Category.Label+" tool of the MCP server ", name(v.GetServer()), ", which means that it "+v.Category.Means+". "+v.Category.Advice))
}

func enforce(v *view) question {
	server := name(v.GetServer())
	q := question{
		"enforce", say("How do I enforce a policy on ", v.headName(), "?"), []prose{say(
			"Register the MCP server ", server, " with Sluice, and let your MCP client connect to ", code(gatewayPath(v.GetServer())),
			" of the gateway instead. Then write a rule for the tool: allow, deny, limit its rate, or require approval. The rule applies to every call before the call reaches ",
			server, ". You don't need to install anything on the server.")}, v.GetAdvice().GetRecommendedRule(),
	}
	if q.Rule == "" {
		q.Answer = append(q.Answer, say("The catalog recommends no rule for it."))
	} else {
		q.Answer = append(q.Answer, say("The catalog recommends this rule:"))
	}
	return q
}

func howRisky(v *view) []prose {
	out := []prose{say(v.headName(), " is a "+v.Category.Label+" tool of ", riskName(v.GetClassification().GetRisk()), ". "+v.Risk.Advice)}
	if because := raisedOf(v.tool); because != nil {
		out = append(out, because)
	}
	return out
}

func riskName(r policyv1.Risk) string {
	if risk := riskOf(r); risk.Slug != "unknown" {
		return risk.Slug + " risk"
	}
	return "unknown risk"
}

// withRule adds a sentence to the answer of a question without a rule. The sentence says why there is no rule.
func withRule(q question) question {
	if q.Rule == "" {
		q.Answer = append(q.Answer, say("A policy document can't name this tool, because a name under ", code("tools"), " has 1 to 128 letters, digits and ", code("_ . / -"),
			". With the default ", code("deny"), ", it can't be called."))
	}
	return q
}

// raisedOf returns the reason why a tool's risk is higher than usual for its category, or nil if the risk is not
// higher.
func raisedOf(t *tool) prose {
	c := t.GetClassification()
	category := categoryOf(c.GetCategory())
	if category.Usual == policyv1.Risk_RISK_UNSPECIFIED || c.GetRisk() <= category.Usual {
		return nil
	}
	return say("Its risk is higher than that of most " + category.Label + " tools, because " + reasonOf(t) + ".")
}

// reasonOf returns the reason for a raised risk, as the end of a sentence.
func reasonOf(t *tool) string {
	c := t.GetClassification()
	switch {
	case t.GetOverride().GetRisk() != policyv1.Risk_RISK_UNSPECIFIED:
		return "a person has set the risk"
	case slices.Contains(c.GetTags(), tagSpeaks):
		return "its definition instructs the model"
	case slices.Contains(c.GetTags(), tagHidden):
		return "its definition hides text"
	case c.GetSensitivity() == policyv1.Axis_AXIS_HIGH:
		return "its results can be very sensitive"
	case c.GetCategory() != mcpv1.Category_CATEGORY_READ && c.GetBlastRadius() == policyv1.Axis_AXIS_HIGH:
		return "one call can affect many things"
	default:
		return "the server itself says that the tool may be destructive"
	}
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
