// Package classify classifies a tool by its definition alone: its category and risk, the confidence, and the words
// that are the evidence. The policy service uses it. It uses no model, no network and no list of known servers, and is
// deterministic.
//
// A definition is only the server's statement. A malicious server can write one that looks harmless, so a
// classification is advice: policy relies on it only for trusted servers and for classifications that a person has
// accepted (see docs/policy-reference.md).
package classify

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Bounds of what is read of a schema: members of an object, values of a parameter, parameters inside of others, and
// the depth of those.
const (
	maxParameters = 256
	maxValues     = 64
	maxNested     = 1024
	maxDepth      = 16
	maxParsed     = 8 << 20 // in bytes, because deep or shared parts are parsed more than once
)

// ErrDefinition means that a definition can't be read.
var ErrDefinition = errors.New("this is not the definition of a tool")

// Tool is the part of a tool's definition that shows what the tool does.
type Tool struct {
	Name        string
	Description string
	// Parameters are the properties of the input schema, in its order, at most 256.
	Parameters []Parameter
	// Nested are the properties inside of parameters, at most 1024, at most 16 deep.
	Nested []Parameter
	// Cut is the first parameter that was left out because of these bounds; its Path is empty if none was.
	Cut Parameter
	// Hints are the annotations of the definition.
	Hints map[string]bool
	// Texts are all texts of the definition, including keys, in its order.
	Texts []Text

	definition jsontext.Value
}

// Parameter is a property of an input schema.
type Parameter struct {
	Name        string
	Description string
	Types       []string
	Required    bool
	// Values are the string values that the schema allows, at most 64; empty if it does not list them.
	Values []string
	// Cut reports whether the schema may list more values.
	Cut bool
	// Path is a JSON Pointer into the definition, which ends with the parameter's name.
	Path string
}

// Read reads a definition from `tools/list` (MCP, Tools, Data Types). It ignores members that do not show what a tool
// does, with any content, and an invalid schema.
func Read(definition jsontext.Value) (Tool, error) {
	var in struct {
		Name        string         `json:"name"`
		Description string         `json:"description"`
		InputSchema schema         `json:"inputSchema"`
		Annotations map[string]any `json:"annotations"`
	}
	if err := json.Unmarshal(definition, &in); err != nil {
		return Tool{}, fmt.Errorf("%w: %w", ErrDefinition, err)
	}
	if in.Name == "" {
		return Tool{}, fmt.Errorf("%w: it has no name", ErrDefinition)
	}
	t := Tool{Name: in.Name, Description: in.Description, Hints: make(map[string]bool)}
	t.Parameters = in.InputSchema.parameters()
	t.Nested, t.Cut = in.InputSchema.nested, in.InputSchema.cut
	t.Texts, t.definition = textsIn(definition), definition
	for name, value := range in.Annotations {
		if hint, ok := value.(bool); ok {
			t.Hints[name] = hint
		}
	}
	return t, nil
}

// schema is an input schema. Parts that are not valid JSON Schema count as absent, and the tool is classified by the
// rest.
type schema struct {
	properties []property
	choices    []property // anyOf, oneOf and allOf of the schema itself
	next       string     // the first property beyond the bound
	required   map[string]bool
	// shared are definitions that properties refer to, by their pointers.
	shared map[string]jsontext.Value

	nested   []Parameter
	cut      Parameter
	expanded map[string]bool
	parsed   int // bytes of schemas that were parsed for parameters
}

type property struct {
	name  string
	value jsontext.Value
}

// UnmarshalJSONFrom keeps the order of the properties.
func (s *schema) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	value, err := dec.ReadValue()
	if err != nil {
		return err
	}
	s.required, s.shared, s.expanded = make(map[string]bool), make(map[string]jsontext.Value), make(map[string]bool)
	for _, member := range members(value) {
		switch member.name {
		case "properties":
			s.properties, s.next = firstMembers(member.value)
		case "$defs", "definitions":
			for _, one := range members(member.value) {
				s.shared["#/"+member.name+pointer(one.name)] = one.value
			}
		case "anyOf", "oneOf", "allOf":
			s.choices = append(s.choices, member)
		case "required":
			var names []string
			if json.Unmarshal(member.value, &names) == nil {
				for _, name := range names {
					s.required[name] = true
				}
			}
		}
	}
	return nil
}

// members returns an object's members in their order, at most maxParameters; nil if the value is not an object.
func members(object jsontext.Value) []property {
	out, _ := firstMembers(object)
	return out
}

// firstMembers returns the members of an object, and the name of the first one beyond the bound; empty if there is
// none.
func firstMembers(object jsontext.Value) (out []property, next string) {
	if object.Kind() != '{' {
		return nil, ""
	}
	dec := jsontext.NewDecoder(strings.NewReader(string(object)))
	if _, err := dec.ReadToken(); err != nil {
		return nil, ""
	}
	for dec.PeekKind() == '"' {
		name, err := dec.ReadToken()
		if err != nil {
			return out, ""
		}
		key := name.String()
		if len(out) == maxParameters {
			return out, key
		}
		value, err := dec.ReadValue()
		if err != nil {
			return out, ""
		}
		out = append(out, property{key, value.Clone()})
	}
	return out, ""
}

const rootPath = "/inputSchema"

func (s *schema) parameters() []Parameter {
	out := make([]Parameter, 0, len(s.properties))
	if s.next != "" {
		s.leaveOut(rootPath+"/properties", s.next)
	}
	s.inside(s.choices, rootPath, 1)
	for _, p := range s.properties {
		one := s.parameter(p, rootPath+"/properties", 0)
		one.Required = s.required[p.name]
		out = append(out, one)
	}
	return out
}

// leaveOut records the first parameter that is not read.
func (s *schema) leaveOut(path, name string) {
	if s.cut.Path == "" && len(path)+len(name) <= maxPath {
		s.cut = Parameter{Name: name, Path: path + pointer(name)}
	}
}

// parameter reads a property at a path, and the properties inside of it.
func (s *schema) parameter(p property, path string, depth int) Parameter {
	one := Parameter{Name: p.name, Path: path + pointer(p.name)}
	if s.parsed += len(p.value); s.parsed > maxParsed {
		s.leaveOut(path, p.name)
		return one
	}
	described := members(p.value)
	s.inside(described, one.Path, depth+1)
	for _, member := range described {
		if to := texts(member.value); member.name == "$ref" && len(to) == 1 {
			if s.parsed += len(s.shared[to[0]]); s.parsed > maxParsed {
				s.leaveOut(path, p.name)
				break
			}
			shared := members(s.shared[to[0]])
			if !s.expanded[to[0]] { // a definition may refer to itself
				s.expanded[to[0]] = true
				s.inside(shared, rootPath+strings.TrimPrefix(to[0], "#"), depth+1)
			}
			described = append(described, shared...)
		}
	}
	for _, member := range described {
		switch member.name {
		case "description":
			_ = json.Unmarshal(member.value, &one.Description) // a description that is not a string counts as absent
		case "type":
			one.Types = append(one.Types, texts(member.value)...)
		case "enum", "const":
			one.Values = append(one.Values, texts(member.value)...)
		case "anyOf", "oneOf":
			one.alternatives(member.value)
		}
	}
	if len(one.Values) > maxValues {
		one.Values = one.Values[:maxValues]
		one.Cut = true
	}
	return one
}

// alternatives adds the values and types of alternatives.
func (p *Parameter) alternatives(value jsontext.Value) {
	for _, alternative := range elements(value) {
		for _, inner := range members(alternative) {
			switch inner.name {
			case "enum", "const":
				p.Values = append(p.Values, texts(inner.value)...)
			case "type":
				p.Types = append(p.Types, texts(inner.value)...)
			}
		}
	}
}

// inside reads the parameters inside of a schema, at any place.
func (s *schema) inside(described []property, path string, depth int) {
	for _, member := range described {
		at := path + pointer(member.name)
		if schemas[member.name] {
			if s.parsed += len(member.value); depth > maxDepth || s.parsed > maxParsed || len(at) > maxPath {
				s.leaveOut(path, member.name)
				return
			}
		}
		switch member.name {
		case "properties":
			all, next := firstMembers(member.value)
			for _, p := range all {
				if len(s.nested) == maxNested || len(at)+len(p.name) > maxPath {
					s.leaveOut(at, p.name)
					return
				}
				place := len(s.nested)
				s.nested = append(s.nested, Parameter{})
				one := s.parameter(p, at, depth)
				s.nested[place] = one
			}
			if next != "" {
				s.leaveOut(at, next)
			}
		case "items", "additionalProperties":
			s.inside(members(member.value), at, depth+1)
		case "anyOf", "oneOf", "allOf":
			for i, alternative := range elements(member.value) {
				s.inside(members(alternative), fmt.Sprintf("%s/%d", at, i), depth+1)
			}
		}
	}
}

// schemas are members of a schema that can contain further parameters.
var schemas = set("properties items additionalProperties anyOf oneOf allOf")

// elements returns the elements of an array; nil if the value is not an array.
func elements(value jsontext.Value) (out []jsontext.Value) {
	_ = json.Unmarshal(value, &out) // a value that is not an array has no elements
	return out
}

// texts returns the strings of a list, or a single string.
func texts(value jsontext.Value) []string {
	var all []any
	if json.Unmarshal(value, &all) != nil {
		var single string
		if json.Unmarshal(value, &single) != nil {
			return nil
		}
		return []string{single}
	}
	var out []string
	for _, one := range all {
		if text, ok := one.(string); ok {
			out = append(out, text)
		}
	}
	return out
}
