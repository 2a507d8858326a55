package inputschema

import (
	"fmt"
	"math/big"
)

func (c *checker) checkString(n *node, v *value) *failure {
	if f := c.checkSize(n.minLength, n.maxLength, v.runes, "character", "characters"); f != nil {
		return f
	}
	if n.pattern != nil && c.spend(n.pattern.steps(v.text)) && !n.pattern.MatchString(v.text) {
		return c.fail("does not match the pattern of the schema")
	}
	return nil
}

// checkSize returns a failure if the size of a value is outside the limits in the schema. The size is a number of
// parts, such as items. The parameters one and many are the singular and the plural word for the parts.
func (c *checker) checkSize(least, most *int, size int, one, many string) *failure {
	name := func(count int) string {
		if count == 1 {
			return one
		}
		return many
	}
	if least != nil && size < *least {
		return c.fail(fmt.Sprintf("must have at least %d %s", *least, name(*least)))
	}
	if most != nil && size > *most {
		return c.fail(fmt.Sprintf("must have at most %d %s", *most, name(*most)))
	}
	return nil
}

func (c *checker) checkNumber(n *node, v *value) *failure {
	if n.minimum == nil && n.maximum == nil && n.above == nil && n.below == nil && n.multipleOf == nil || !c.spend(4+v.size) {
		return nil
	}
	is := v.rat()
	switch {
	case n.minimum != nil && is.Cmp(n.minimum) < 0, n.above != nil && is.Cmp(n.above) <= 0:
		return c.fail("is below the minimum of the schema")
	case n.maximum != nil && is.Cmp(n.maximum) > 0, n.below != nil && is.Cmp(n.below) >= 0:
		return c.fail("is above the maximum of the schema")
	case n.multipleOf == nil || n.multipleOf.Sign() == 0:
		return nil
	case !c.spend(8 * v.size):
		return nil
	case !new(big.Rat).Quo(is, n.multipleOf).IsInt():
		return c.fail("is not a multiple of the number in the schema (multipleOf)")
	}
	return nil
}

func (c *checker) checkArray(n *node, v *value) *failure {
	if f := c.checkSize(n.minItems, n.maxItems, len(v.items), "item", "items"); f != nil {
		return f
	}
	for i, item := range v.items {
		sub := n.items
		if i < len(n.prefix) {
			sub = n.prefix[i]
		}
		if sub == nil {
			continue
		}
		if f := c.within(segment{index: i}, sub, item); f != nil {
			return f
		}
	}
	c.markItems(n, v)
	if n.unique {
		if f := c.checkUnique(v); f != nil {
			return f
		}
	}
	return c.checkContains(n, v)
}

// markItems adds marks for the items to which the keywords items and prefixItems were applied.
func (c *checker) markItems(n *node, v *value) {
	switch {
	case !c.schema.tracksItems:
	case n.items != nil:
		c.marks = append(c.marks, mark{v, allParts})
	default:
		for i := range min(len(n.prefix), len(v.items)) {
			c.marks = append(c.marks, mark{v, i})
		}
	}
}

// within applies a schema to a part of a value. Meanwhile, c.path ends with the given segment.
func (c *checker) within(at segment, n *node, part *value) *failure {
	c.path = append(c.path, at)
	f := c.apply(n, part)
	c.path = c.path[:len(c.path)-1]
	return f
}

func (c *checker) checkUnique(v *value) *failure {
	seen := make(map[string]bool, len(v.items))
	for _, item := range v.items {
		if !c.spend(2 * item.size) {
			return nil
		}
		key := string(item.appendKey(nil))
		if seen[key] {
			return c.fail("has the same item twice")
		}
		seen[key] = true
	}
	return nil
}

func (c *checker) checkContains(n *node, v *value) *failure {
	if n.contains == nil {
		return nil
	}
	count := 0
	for i, item := range v.items {
		if c.within(segment{index: i}, n.contains, item) != nil {
			continue
		}
		count++
		if n.containsEvaluates && c.schema.tracksItems {
			c.marks = append(c.marks, mark{v, i})
		}
	}
	least := 1
	if n.minContains != nil {
		least = *n.minContains
	}
	if count < least || n.maxContains != nil && count > *n.maxContains {
		return c.fail("has too few or too many items of a form that the schema requires (contains)")
	}
	return nil
}

func (c *checker) checkObject(n *node, v *value) *failure {
	for _, name := range n.required {
		if c.spend(1) && v.find(name) == nil {
			return c.failAt(name, "is required")
		}
	}
	if f := c.checkSize(n.minProperties, n.maxProperties, len(v.items), "member", "members"); f != nil {
		return f
	}
	if n.restricts {
		c.marks = append(c.marks, mark{v, restriction})
	}
	if n.properties != nil || n.patterns != nil || n.additional != nil || n.propertyNames != nil {
		for i := range v.items {
			if f := c.checkMember(n, v, i); f != nil {
				return f
			}
		}
	}
	if n.additional != nil {
		c.marks = append(c.marks, mark{v, allParts})
	}
	return c.checkDependencies(n, v)
}

func (c *checker) checkMember(n *node, v *value, i int) *failure {
	if !c.spend(1) {
		return nil
	}
	name, at := v.names[i], segment{name: v.names[i], isName: true}
	if n.propertyNames != nil && c.apply(n.propertyNames, newString(name)) != nil {
		return c.failAt(name, "has a name that the schema does not allow (propertyNames)")
	}
	sub, known := n.properties[name]
	if known {
		if f := c.within(at, sub, v.items[i]); f != nil {
			return f
		}
	}
	for _, p := range n.patterns {
		if !c.spend(p.pattern.steps(name)) || !p.pattern.MatchString(name) {
			continue
		}
		known = true
		if f := c.within(at, p.node, v.items[i]); f != nil {
			return f
		}
	}
	if known {
		c.marks = append(c.marks, mark{v, i})
		return nil
	}
	if n.additional == nil {
		return nil
	}
	return c.applyOther(at, n.additional, v.items[i])
}

// applyOther applies the schema in additionalProperties to a member of an object that has no other schema.
func (c *checker) applyOther(at segment, n *node, part *value) *failure {
	if n.never {
		return c.failAt(at.name, notDeclared)
	}
	return c.within(at, n, part)
}

func (c *checker) checkDependencies(n *node, v *value) *failure {
	for _, d := range n.dependentRequired {
		if v.find(d.name) == nil {
			continue
		}
		for _, name := range d.then {
			if c.spend(1) && v.find(name) == nil {
				return c.failAt(name, "is required together with "+printName(d.name))
			}
		}
	}
	for _, d := range n.dependentSchemas {
		if c.spend(1) && v.find(d.name) != nil {
			if f := c.apply(d.then, v); f != nil {
				return f
			}
		}
	}
	return nil
}

// checkUnevaluated applies the keywords unevaluatedProperties and unevaluatedItems. The parameter start is the number
// of marks before the schema was applied.
func (c *checker) checkUnevaluated(n *node, v *value, start int) *failure {
	sub := n.unevaluatedItems
	if v.kind == kindObject {
		sub = n.unevaluated
	}
	if sub == nil || v.kind != kindObject && v.kind != kindArray {
		return nil
	}
	parts := c.evaluated(v, start)
	for i := range parts {
		if parts[i] {
			continue
		}
		at := segment{index: i}
		if v.kind == kindObject {
			at = segment{name: v.names[i], isName: true}
		}
		if f := c.within(at, sub, v.items[i]); f != nil {
			if sub.never && v.kind == kindObject {
				return c.failAt(at.name, notDeclared)
			}
			return f
		}
	}
	c.marks = append(c.marks, mark{v, allParts})
	return nil
}
