package classify

import (
	"cmp"
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// Unsure is the minimum confidence of a certain classification. The category of an uncertain classification is the
// strictest category for which there is evidence. `default: by_risk` requires approval for calls to the tool.
const Unsure = 0.5

// Classify classifies a tool. The server's annotations can make the classification stricter. If the server is trusted,
// they can also make it less strict.
func Classify(t Tool, trusted bool) *policyv1.Classification {
	c := &finding{tool: t, trusted: trusted, name: ownWords(t.Name), text: textWords(t.Description)}
	c.byVerbs()
	c.byActions()
	c.byPhrases()
	c.byLaterClauses()
	c.byParameters()
	c.byParameterPairs()
	c.byUnreadParts()
	c.byOutputLocations()
	c.byRemovalParameters()
	c.byStartedWork()
	c.byMoney()
	c.byRetractions()
	c.byHints()
	tags := c.tags()
	category, confidence := c.weigh()
	out := &policyv1.Classification{
		Category: category, Confidence: confidence, Evidence: c.evidence, DependsOnArgument: c.dependsOn, Tags: tags,
		Sensitivity: c.sensitivity(), OpenWorld: c.openWorld(), Irreversibility: c.irreversibility(category), BlastRadius: c.blastRadius(),
	}
	out.Risk = c.risk(out)
	return out
}

// finding collects the evidence about one tool.
type finding struct {
	tool    Tool
	trusted bool
	name    []word
	text    []word

	// inName is the leading verb of the tool's name, and inText is the leading verb of the description. They are nil if
	// there is no leading verb.
	inName, inText *foundVerb
	evidence       []*policyv1.Evidence
	dependsOn      string
}

// foundVerb is a verb in a tool's name or description.
type foundVerb struct {
	word

	base string
	sense
}

func (c *finding) add(e *policyv1.Evidence) { c.evidence = append(c.evidence, e) }

// support returns the strength of the evidence for each category, from 0 to 1. It combines the weights of the evidence
// as if they were independent probabilities.
func (c *finding) support() map[mcpv1.Category]float64 {
	out := make(map[mcpv1.Category]float64)
	for _, e := range c.evidence {
		if e.GetCategory() != unknown {
			out[e.GetCategory()] = 1 - (1-out[e.GetCategory()])*(1-e.GetWeight())
		}
	}
	return out
}

// weigh returns the category and the confidence. The category is the strictest one for which the evidence is more than
// half as strong as the strongest evidence. If the confidence is below [Unsure], weigh instead returns the strictest
// category with any evidence. Without any evidence, weigh returns Execute, because the tool may do anything.
func (c *finding) weigh() (mcpv1.Category, float64) {
	support := c.support()
	if len(support) == 0 {
		return execute, 0
	}
	most := 0.0
	for _, s := range support {
		most = max(most, s)
	}
	choose := func(share float64) mcpv1.Category {
		out := unknown
		for category, s := range support {
			if s > share*most {
				out = max(out, category)
			}
		}
		return out
	}
	chosen := choose(0.5)
	others := 0.0
	for category, s := range support {
		if category != chosen {
			others = max(others, s)
		}
	}
	confidence := max(0, support[chosen]-others/3)
	if confidence < Unsure {
		chosen = choose(0)
	}
	slices.SortStableFunc(c.evidence, func(a, b *policyv1.Evidence) int { return cmp.Compare(b.GetWeight(), a.GetWeight()) })
	return chosen, confidence
}
