package inputschema

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

const (
	// maxArgumentValues limits the total number of values and names in the arguments.
	maxArgumentValues = 100_000
	// maxSteps limits the number of steps in a check. The package comment defines steps. A step takes less than a
	// microsecond.
	maxSteps = 1_000_000
	// maxNesting limits the number of nested applications of schemas. Only a schema with endless recursion exceeds this
	// limit.
	maxNesting = 1_000
)

// errTooMuchWork means that a check needs more than maxSteps steps.
var errTooMuchWork = errors.New("the check against the tool's input schema takes too long: send fewer or shorter arguments")

// Check returns an error if the arguments of a call are not valid. The params of the call must be a JSON object whose
// member `arguments` is a JSON object. If params is empty or has no such member, the arguments are an empty object. The
// error describes one problem. It contains names and kinds, but no values from the arguments or the schema.
func (s *Schema) Check(params string) error {
	arguments, err := readArguments(params)
	if err != nil {
		return err
	}
	c := checker{schema: s, remaining: maxSteps}
	f := c.apply(s.root, arguments)
	switch {
	case c.endless:
		return unusable("it refers to itself without end")
	case c.remaining < 0:
		return errTooMuchWork
	case f != nil:
		return f
	}
	return c.undeclared(arguments)
}

// readArguments parses the arguments in the params of a call.
func readArguments(params string) (*value, error) {
	if params == "" {
		return &value{kind: kindObject, size: 1}, nil
	}
	dec := jsontext.NewDecoder(strings.NewReader(params))
	if token, err := dec.ReadToken(); err != nil || token.Kind() != '{' {
		return nil, errors.New("the params are not a JSON object")
	}
	arguments := &value{kind: kindObject, size: 1}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return nil, fmt.Errorf("read the params: %w", err)
		}
		member, isArguments := jsontext.Value(nil), name.String() == "arguments"
		if member, err = dec.ReadValue(); err != nil {
			return nil, fmt.Errorf("read the params: %w", err)
		}
		if !isArguments {
			continue
		}
		switch arguments, err = parse(member, maxArgumentValues); {
		case errors.Is(err, errTooManyValues):
			return nil, fmt.Errorf("the arguments have more than %d values", maxArgumentValues)
		case err != nil:
			return nil, fmt.Errorf("read the arguments: %w", err)
		case arguments.kind != kindObject:
			return nil, errors.New("the arguments are not a JSON object")
		}
	}
	if token, err := dec.ReadToken(); err != nil || token.Kind() != '}' {
		return nil, errors.New("the params are not a JSON object")
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the params")
	}
	return arguments, nil
}

// A checker checks the arguments of one call.
type checker struct {
	schema *Schema
	// remaining is the number of steps that the check may still take. If it is negative, the check returns
	// [errTooMuchWork], or an [UnusableError] if endless is true.
	remaining int
	work      gosched.Work
	// nesting is the number of schemas that are currently being applied inside each other.
	nesting int
	// endless is true if nesting exceeded [maxNesting].
	endless bool
	// path leads to the value that is being checked.
	path []segment
	// marks lists the parts of values that schemas have evaluated so far. If a value does not match a schema, the marks
	// that the schema added are removed.
	marks []mark
}

// A mark means that a schema has evaluated a part of an object or array.
type mark struct {
	of *value
	// part is the index of the evaluated member or item, or else [allParts] or [restriction].
	part int
}

const (
	// allParts means that all members or items were evaluated.
	allParts = -1
	// restriction means that the object must not have undeclared members.
	restriction = -2
)

// spend subtracts steps from the remaining steps, and reports whether there were enough.
func (c *checker) spend(steps int) bool {
	c.work.Step()
	c.remaining -= min(steps, maxSteps+1)
	if c.remaining < 0 {
		c.remaining = -1
		return false
	}
	return true
}

// apply returns nil if the value satisfies the schema. If the remaining steps run out, the caller must ignore the
// result.
func (c *checker) apply(n *node, v *value) *failure {
	if !c.spend(1) {
		return nil
	}
	if c.nesting++; c.nesting > maxNesting {
		c.endless, c.remaining = true, -1
		return nil
	}
	start := len(c.marks)
	f := c.applyKeywords(n, v, start)
	if f != nil {
		c.marks = c.marks[:start]
	}
	c.nesting--
	return f
}

// holds reports whether a value satisfies a schema.
func (c *checker) holds(n *node, v *value) bool { return c.apply(n, v) == nil }

func (c *checker) applyKeywords(n *node, v *value, start int) *failure {
	if n.never {
		return c.fail("is not allowed by the schema")
	}
	if f := c.checkKind(n, v); f != nil {
		return f
	}
	if f := c.checkEnum(n, v); f != nil {
		return f
	}
	var f *failure
	switch v.kind {
	case kindString:
		f = c.checkString(n, v)
	case kindNumber:
		f = c.checkNumber(n, v)
	case kindArray:
		f = c.checkArray(n, v)
	case kindObject:
		f = c.checkObject(n, v)
	case kindNull, kindBoolean, kindInteger:
	}
	if f != nil {
		return f
	}
	if f := c.combine(n, v); f != nil {
		return f
	}
	return c.checkUnevaluated(n, v, start)
}

func (c *checker) checkKind(n *node, v *value) *failure {
	if n.kinds == 0 || n.kinds&v.kind != 0 {
		return nil
	}
	if v.kind == kindNumber && n.kinds&kindInteger != 0 && c.spend(v.size) && v.isInteger() {
		return nil
	}
	f := c.fail("must be " + n.kinds.String() + ", not " + v.kind.String())
	f.kinds, f.is = n.kinds, v.kind
	return f
}

func (c *checker) checkEnum(n *node, v *value) *failure {
	for i, keys := range n.enum {
		if n.enumKinds[i]&v.kind == 0 || c.spend(v.size) && !keys[string(v.appendKey(nil))] {
			return c.fail("must be one of the values that the schema lists")
		}
	}
	return nil
}

// combine applies the subschemas of n, such as those in allOf, that apply to the same value as n itself.
func (c *checker) combine(n *node, v *value) *failure {
	if n.ref != nil {
		if f := c.apply(n.ref, v); f != nil {
			return f
		}
	}
	for _, sub := range n.allOf {
		if f := c.apply(sub, v); f != nil {
			return f
		}
	}
	if f := c.applyAny(n.anyOf, v); f != nil {
		return f
	}
	if f := c.applyOne(n.oneOf, v); f != nil {
		return f
	}
	if n.not != nil && c.holds(n.not, v) {
		return c.fail("has a form that the schema excludes (not)")
	}
	branch := n.els
	if n.cond != nil && c.holds(n.cond, v) {
		branch = n.then
	}
	if n.cond != nil && branch != nil {
		return c.apply(branch, v)
	}
	return nil
}

// applyAny applies the keyword anyOf. It tries all alternatives, because each matching alternative can declare further
// members.
func (c *checker) applyAny(alternatives []*node, v *value) *failure {
	if len(alternatives) == 0 {
		return nil
	}
	var failed []*failure
	for _, sub := range alternatives {
		if f := c.apply(sub, v); f != nil {
			failed = append(failed, f)
		}
	}
	if len(failed) < len(alternatives) {
		return nil
	}
	return c.noneHolds(failed)
}

func (c *checker) applyOne(alternatives []*node, v *value) *failure {
	if len(alternatives) == 0 {
		return nil
	}
	var failed []*failure
	for _, sub := range alternatives {
		if f := c.apply(sub, v); f != nil {
			failed = append(failed, f)
		}
	}
	switch len(alternatives) - len(failed) {
	case 0:
		return c.noneHolds(failed)
	case 1:
		return nil
	}
	return c.fail("fits several of the forms of which the schema allows only one (oneOf)")
}

// undeclared returns an error if an object in the arguments has a member that the schema does not declare.
func (c *checker) undeclared(arguments *value) error {
	arguments.restricted = true
	for _, m := range c.marks {
		switch {
		case m.of.kind != kindObject:
		case m.part == allParts:
			m.of.declaresAll = true
		case m.part == restriction:
			m.of.restricted = true
		default:
			if m.of.declared == nil {
				m.of.declared = make([]bool, len(m.of.items))
			}
			m.of.declared[m.part] = true
		}
	}
	if f := c.findUndeclared(arguments); f != nil {
		return f
	}
	return nil
}

func (c *checker) findUndeclared(v *value) *failure {
	for i, item := range v.items {
		c.work.Step()
		if v.kind == kindArray {
			c.path = append(c.path, segment{index: i})
		} else {
			c.path = append(c.path, segment{name: v.names[i], isName: true})
		}
		if v.kind == kindObject && v.restricted && !v.declaresAll && (v.declared == nil || !v.declared[i]) {
			return c.fail(notDeclared)
		}
		if f := c.findUndeclared(item); f != nil {
			return f
		}
		c.path = c.path[:len(c.path)-1]
	}
	return nil
}

// notDeclared is the message for an argument that the schema does not declare.
const notDeclared = "is not declared by the schema"

// evaluated reports for each part of a value whether a schema has evaluated it. It considers only the marks at or after
// the given index. The result is nil if all parts were evaluated, or if the remaining steps run out.
func (c *checker) evaluated(v *value, first int) []bool {
	if !c.spend(len(c.marks) - first + len(v.items)) {
		return nil
	}
	since := c.marks[first:]
	if slices.Contains(since, mark{v, allParts}) {
		return nil
	}
	parts := make([]bool, len(v.items))
	for _, m := range since {
		if m.of == v && m.part >= 0 {
			parts[m.part] = true
		}
	}
	return parts
}
