package advice

import (
	"slices"

	mcpv1 "github.com/sluice-mesh/sluice/gen/sluice/mcp/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
)

// An access is a kind of tools, and how much an attack gains from them.
type access struct {
	gain gain
	// traits are what such a tool has, all of them. None: every tool is meant.
	traits []trait
}

// gain orders attacks: what gains more from a tool is more relevant to it.
type gain int

// The gains. The zero value means that the attack has nothing to do with the tool.
const (
	// some: the attack works with such a tool too.
	some gain = iota + 1
	// much: such a tool makes the attack easy.
	much
	// all: such a tool is what the attack is made for.
	all
	// seen: the classification says that the attack may be under way.
	seen
)

func (a access) fits(c *policyv1.Classification) bool {
	return !slices.ContainsFunc(a.traits, func(has trait) bool { return !has(c) })
}

// from is what the attack gains from such a tool at the most.
func (e *Entry) from(c *policyv1.Classification) gain {
	var best gain
	for _, a := range e.about {
		if a.fits(c) {
			best = max(best, a.gain)
		}
	}
	return best
}

// A trait is something that a tool is held to be.
type trait func(*policyv1.Classification) bool

// is: one of these categories. What is not classified may be any.
func is(categories ...mcpv1.Category) trait {
	return func(c *policyv1.Classification) bool {
		return c.GetCategory() == mcpv1.Category_CATEGORY_UNSPECIFIED || slices.Contains(categories, c.GetCategory())
	}
}

// An axis is one of the degrees beside the category.
type axis func(*policyv1.Classification) policyv1.Axis

// The axes that attacks look at.
var (
	sensitivity axis = (*policyv1.Classification).GetSensitivity
	openWorld   axis = (*policyv1.Classification).GetOpenWorld
	blastRadius axis = (*policyv1.Classification).GetBlastRadius
)

// high: the degree is high, or was not judged, which counts as that.
func high(of axis) trait {
	return func(c *policyv1.Classification) bool {
		return of(c) == policyv1.Axis_AXIS_HIGH || of(c) == policyv1.Axis_AXIS_UNSPECIFIED
	}
}

// raised: the degree is not low.
func raised(of axis) trait {
	return func(c *policyv1.Classification) bool { return of(c) != policyv1.Axis_AXIS_LOW }
}

// tagged: it has one of these tags.
func tagged(tags ...string) trait {
	return func(c *policyv1.Classification) bool {
		return slices.ContainsFunc(c.GetTags(), func(tag string) bool { return slices.Contains(tags, tag) })
	}
}

// risky: the risk is high, critical or not known.
func risky(c *policyv1.Classification) bool {
	return c.GetRisk() >= policyv1.Risk_RISK_HIGH || c.GetRisk() == policyv1.Risk_RISK_UNSPECIFIED
}

// Tags of the catalogue.
const (
	tagSpeaks  = "speaks-to-the-model"
	tagHidden  = "hidden-text"
	tagDepends = "depends-on-argument"
)

// chosen: an argument chooses what it does.
func chosen(c *policyv1.Classification) bool {
	return c.GetDependsOnArgument() != "" || tagged(tagDepends)(c)
}
