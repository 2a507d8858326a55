package advice

import (
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An access is a kind of tool, and how much an attack gains from it.
type access struct {
	gain gain
	// traits are what such a tool has, all of them. Empty: every tool.
	traits []trait
}

// gain orders attacks by how much they gain from a tool.
type gain int

// The gains. The zero value means that the attack does not concern the tool.
const (
	// some: the attack also works with such a tool.
	some gain = iota + 1
	// much: such a tool makes the attack easy.
	much
	// all: the attack needs such a tool.
	all
	// seen: the classification is a sign that the attack is under way.
	seen
)

func (a access) fits(c *policyv1.Classification) bool {
	return !slices.ContainsFunc(a.traits, func(has trait) bool { return !has(c) })
}

// from returns the largest gain of the attack from such a tool.
func (e *Entry) from(c *policyv1.Classification) gain {
	var best gain
	for _, a := range e.about {
		if a.fits(c) {
			best = max(best, a.gain)
		}
	}
	return best
}

// A trait is a property of a classification.
type trait func(*policyv1.Classification) bool

// is reports one of these categories. An unclassified tool may be any.
func is(categories ...mcpv1.Category) trait {
	return func(c *policyv1.Classification) bool {
		return c.GetCategory() == mcpv1.Category_CATEGORY_UNSPECIFIED || slices.Contains(categories, c.GetCategory())
	}
}

// An axis is one of the degrees in addition to the category.
type axis func(*policyv1.Classification) policyv1.Axis

// The axes that attacks depend on.
var (
	sensitivity axis = (*policyv1.Classification).GetSensitivity
	openWorld   axis = (*policyv1.Classification).GetOpenWorld
	blastRadius axis = (*policyv1.Classification).GetBlastRadius
)

// high reports that the degree is high, or not rated, which counts as high.
func high(of axis) trait {
	return func(c *policyv1.Classification) bool {
		return of(c) == policyv1.Axis_AXIS_HIGH || of(c) == policyv1.Axis_AXIS_UNSPECIFIED
	}
}

// raised reports that the degree is not low.
func raised(of axis) trait {
	return func(c *policyv1.Classification) bool { return of(c) != policyv1.Axis_AXIS_LOW }
}

// tagged reports that the tool has one of these tags.
func tagged(tags ...string) trait {
	return func(c *policyv1.Classification) bool {
		return slices.ContainsFunc(c.GetTags(), func(tag string) bool { return slices.Contains(tags, tag) })
	}
}

// risky reports that the risk is high, critical or not known.
func risky(c *policyv1.Classification) bool {
	return c.GetRisk() >= policyv1.Risk_RISK_HIGH || c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED
}

// Tags of the catalog.
const (
	tagSpeaks  = "speaks-to-the-model"
	tagHidden  = "hidden-text"
	tagDepends = "depends-on-argument"
)

// chosen reports that an argument chooses what the tool does.
func chosen(c *policyv1.Classification) bool {
	return c.GetDependsOnArgument() != "" || tagged(tagDepends)(c)
}
