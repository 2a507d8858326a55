package advice

import (
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// A target says how relevant an attack is for one kind of tool.
type target struct {
	relevance relevance
	// traits defines the kind of tool: the tools that have all these traits. If traits is empty, the target applies to
	// every tool.
	traits []trait
}

// relevance is how relevant an attack is for a tool. The zero value means that an attacker can't use the tool.
type relevance int

const (
	// relevanceSome means that an attacker can use the tool but does not need it.
	relevanceSome relevance = iota + 1
	// relevanceMuch means that the tool makes the attack easy.
	relevanceMuch
	// relevanceAll means that the attack requires a tool of this kind.
	relevanceAll
	// relevanceSeen means that the tool's definition suggests an attack in progress.
	relevanceSeen
)

func (a target) matches(c *policyv1.Classification) bool {
	return !slices.ContainsFunc(a.traits, func(has trait) bool { return !has(c) })
}

// relevanceFor returns the highest relevance that the attack has for a tool with the classification c.
func (e *Entry) relevanceFor(c *policyv1.Classification) relevance {
	var best relevance
	for _, a := range e.targets {
		if a.matches(c) {
			best = max(best, a.relevance)
		}
	}
	return best
}

// A trait reports whether a classification has a certain property.
type trait func(*policyv1.Classification) bool

// hasCategory returns the trait of tools with one of the given categories. Unclassified tools also have this trait,
// because they can belong to any category.
func hasCategory(categories ...mcpv1.Category) trait {
	return func(c *policyv1.Classification) bool {
		return c.GetCategory() == mcpv1.Category_CATEGORY_UNSPECIFIED || slices.Contains(categories, c.GetCategory())
	}
}

// An axis returns one rating of a classification, for example the sensitivity.
type axis func(*policyv1.Classification) policyv1.Axis

var (
	sensitivity axis = (*policyv1.Classification).GetSensitivity
	openWorld   axis = (*policyv1.Classification).GetOpenWorld
	blastRadius axis = (*policyv1.Classification).GetBlastRadius
)

// isHigh returns the trait of tools for which the given rating is high or missing.
func isHigh(of axis) trait {
	return func(c *policyv1.Classification) bool {
		return of(c) == policyv1.Axis_AXIS_HIGH || of(c) == policyv1.Axis_AXIS_UNSPECIFIED
	}
}

// isRaised returns the trait of tools for which the given rating is medium, high or missing.
func isRaised(of axis) trait {
	return func(c *policyv1.Classification) bool { return of(c) != policyv1.Axis_AXIS_LOW }
}

func hasTag(tags ...string) trait {
	return func(c *policyv1.Classification) bool {
		return slices.ContainsFunc(c.GetTags(), func(tag string) bool { return slices.Contains(tags, tag) })
	}
}

func isRisky(c *policyv1.Classification) bool {
	return c.GetRisk() >= policyv1.Risk_RISK_HIGH || c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED
}

const (
	tagSpeaks  = "speaks-to-the-model"
	tagHidden  = "hidden-text"
	tagDepends = "depends-on-argument"
)

// dependsOnArgument is the trait of tools whose effect depends on an argument.
func dependsOnArgument(c *policyv1.Classification) bool {
	return c.GetDependsOnArgument() != "" || hasTag(tagDepends)(c)
}
