package inputschema

import (
	"cmp"
	"math/big"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// kindInteger is the kind of numbers that are integers. It is used only in node.kinds. No value has this kind, because
// the kind of every number is kindNumber.
const kindInteger kind = 1 << 7

// A node is a part of a compiled schema. A nil field means that the schema does not have the keyword.
type node struct {
	// never is true if the schema is the boolean false.
	never bool
	// kinds is the set of kinds that `type` allows. It is zero if the schema has no `type`.
	kinds kind
	// enum contains the keys from [value.appendKey] for the values in `enum` and `const`. enumKinds contains the kinds of
	// these values. Both have one element for each of the two keywords that is present.
	enum      []map[string]bool
	enumKinds []kind

	ref                 *node
	allOf, anyOf, oneOf []*node
	not                 *node
	cond, then, els     *node

	minProperties, maxProperties *int
	required                     []string
	propertyNames                *node
	properties                   map[string]*node
	patterns                     []patternNode
	additional                   *node
	unevaluated                  *node
	dependentRequired            []dependency[[]string]
	dependentSchemas             []dependency[*node]
	// restricts is true if the schema has `properties` or `patternProperties`, so that undeclared members are refused.
	restricts bool

	minItems, maxItems       *int
	prefix                   []*node
	items                    *node
	contains                 *node
	minContains, maxContains *int
	// containsEvaluates is true if items that match `contains` count as evaluated. This is the case from draft 2020-12 on.
	containsEvaluates bool
	unique            bool
	unevaluatedItems  *node

	minLength, maxLength *int
	pattern              *pattern

	minimum, maximum, above, below, multipleOf *big.Rat
}

// A patternNode is one pattern of patternProperties and its schema.
type patternNode struct {
	pattern *pattern
	node    *node
}

// A dependency is a requirement for objects that have a member with the given name.
type dependency[T any] struct {
	name string
	then T
}

// A converter converts schemas of package jsonschema into nodes. It creates exactly one node for each schema, so
// schemas that refer to each other become nodes that refer to each other.
type converter struct {
	nodes map[*jsonschema.Schema]*node
	// queue contains the schemas that have not been converted yet.
	queue       []*jsonschema.Schema
	tracksItems bool
	err         error
}

func convert(root *jsonschema.Schema) (*Schema, error) {
	c := &converter{nodes: make(map[*jsonschema.Schema]*node)}
	out := &Schema{root: c.node(root)}
	for len(c.queue) > 0 && c.err == nil {
		next := c.queue[0]
		c.queue = c.queue[1:]
		c.fill(c.nodes[next], next)
	}
	out.tracksItems, out.size = c.tracksItems, 1024*len(c.nodes)
	return out, c.err
}

// node returns the node for a schema, or nil if the schema is nil.
func (c *converter) node(of *jsonschema.Schema) *node {
	if of == nil {
		return nil
	}
	if known := c.nodes[of]; known != nil {
		return known
	}
	n := new(node)
	c.nodes[of] = n
	c.queue = append(c.queue, of)
	return n
}

func (c *converter) list(of []*jsonschema.Schema) []*node {
	var out []*node
	for _, s := range of {
		out = append(out, c.node(s))
	}
	return out
}

// either returns the node for the value of a keyword, which may be nil, a boolean or a schema.
func (c *converter) either(of any) *node {
	switch of := of.(type) {
	case bool:
		return &node{never: !of}
	case *jsonschema.Schema:
		return c.node(of)
	}
	return nil
}

func (c *converter) fill(n *node, s *jsonschema.Schema) {
	if s.DynamicRef != nil || s.RecursiveRef != nil {
		c.err = unusable("it has $dynamicRef or $recursiveRef, which are not supported")
		return
	}
	n.never = s.Bool != nil && !*s.Bool
	n.ref = c.node(s.Ref)
	n.kinds = kindsOf(s.Types)
	if s.Enum != nil {
		n.addEnum(s.Enum.Values)
	}
	if s.Const != nil {
		n.addEnum([]any{*s.Const})
	}
	n.allOf, n.anyOf, n.oneOf, n.not = c.list(s.AllOf), c.list(s.AnyOf), c.list(s.OneOf), c.node(s.Not)
	n.cond, n.then, n.els = c.node(s.If), c.node(s.Then), c.node(s.Else)
	n.minLength, n.maxLength = s.MinLength, s.MaxLength
	n.pattern, _ = s.Pattern.(*pattern)
	n.minimum, n.maximum, n.above, n.below, n.multipleOf = s.Minimum, s.Maximum, s.ExclusiveMinimum, s.ExclusiveMaximum, s.MultipleOf
	c.fillObject(n, s)
	c.fillArray(n, s)
}

func kindsOf(types *jsonschema.Types) kind {
	if types == nil {
		return 0
	}
	var all kind
	for _, name := range types.ToStrings() {
		all |= kindsByName[name]
	}
	return all
}

var kindsByName = map[string]kind{
	"null": kindNull, "boolean": kindBoolean, "number": kindNumber, "integer": kindInteger, "string": kindString,
	"array": kindArray, "object": kindObject,
}

func (n *node) addEnum(values []any) {
	keys, kinds := make(map[string]bool, len(values)), kind(0)
	for _, of := range values {
		v := fromPlain(of)
		keys[string(v.appendKey(nil))] = true
		kinds |= v.kind
	}
	n.enum, n.enumKinds = append(n.enum, keys), append(n.enumKinds, kinds)
}

func (c *converter) fillObject(n *node, s *jsonschema.Schema) {
	n.minProperties, n.maxProperties, n.required = s.MinProperties, s.MaxProperties, s.Required
	n.propertyNames, n.additional, n.unevaluated = c.node(s.PropertyNames), c.either(s.AdditionalProperties), c.node(s.UnevaluatedProperties)
	n.restricts = s.Properties != nil || s.PatternProperties != nil
	if len(s.Properties) > 0 {
		n.properties = make(map[string]*node, len(s.Properties))
		for name, property := range s.Properties {
			n.properties[name] = c.node(property)
		}
	}
	for re, property := range s.PatternProperties {
		compiled, _ := re.(*pattern)
		n.patterns = append(n.patterns, patternNode{compiled, c.node(property)})
	}
	slices.SortFunc(n.patterns, func(a, b patternNode) int { return cmp.Compare(a.pattern.String(), b.pattern.String()) })
	for name, names := range s.DependentRequired {
		n.dependentRequired = append(n.dependentRequired, dependency[[]string]{name, names})
	}
	for name, dependent := range s.DependentSchemas {
		n.dependentSchemas = append(n.dependentSchemas, dependency[*node]{name, c.node(dependent)})
	}
	for name, either := range s.Dependencies {
		switch then := either.(type) {
		case []string:
			n.dependentRequired = append(n.dependentRequired, dependency[[]string]{name, then})
		case *jsonschema.Schema:
			n.dependentSchemas = append(n.dependentSchemas, dependency[*node]{name, c.node(then)})
		}
	}
	slices.SortFunc(n.dependentRequired, func(a, b dependency[[]string]) int { return cmp.Compare(a.name, b.name) })
	slices.SortFunc(n.dependentSchemas, func(a, b dependency[*node]) int { return cmp.Compare(a.name, b.name) })
}

func (c *converter) fillArray(n *node, s *jsonschema.Schema) {
	n.minItems, n.maxItems, n.unique = s.MinItems, s.MaxItems, s.UniqueItems
	n.contains, n.minContains, n.maxContains = c.node(s.Contains), s.MinContains, s.MaxContains
	n.containsEvaluates = s.DraftVersion >= 2020
	n.prefix, n.items = c.list(s.PrefixItems), c.node(s.Items2020)
	switch items := s.Items.(type) { // drafts before 2020-12
	case *jsonschema.Schema:
		n.items = c.node(items)
	case []*jsonschema.Schema:
		n.prefix, n.items = c.list(items), c.either(s.AdditionalItems)
	}
	if s.UnevaluatedItems != nil {
		n.unevaluatedItems, c.tracksItems = c.node(s.UnevaluatedItems), true
	}
}
