// Package classify determines the category and the risk of a tool from the tool's definition. The evidence for a
// classification consists of words in the definition. Each piece of evidence has a category and a weight. The most
// important evidence is the leading verb. This is the verb in the tool's name or at the beginning of its description
// that describes the tool's action. The confidence says how clear the evidence is. The policy service uses this
// package. The package uses no model, no network and no list of known servers. It always returns the same result for
// the same definition.
//
// A malicious server can write a definition that looks harmless. Therefore policies rely on a classification only if
// the server is trusted or if a person has accepted the classification (see docs/policy-reference.md).
package classify

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// These constants limit the parts of a schema that are read.
const (
	maxParameters = 256     // members of an object
	maxValues     = 64      // values of a parameter
	maxNested     = 1024    // parameters inside other parameters
	maxDepth      = 16      // depth of parameters inside other parameters
	maxParsed     = 8 << 20 // bytes, of which nested and shared parts are parsed and counted more than once
)

// ErrDefinition means that a text is not a valid tool definition.
var ErrDefinition = errors.New("this is not the definition of a tool")

// Tool contains the parts of a definition that describe the tool's action.
type Tool struct {
	Name        string
	Description string
	// Parameters contains the properties of the input schema, in the order of the schema. There are at most 256.
	Parameters []Parameter
	// Nested contains the properties inside other properties. There are at most 1024, at most 16 levels deep.
	Nested []Parameter
	// Cut is the first parameter that was not read because of a limit. Its Path is empty if all parameters were read.
	Cut Parameter
	// Hints contains the boolean annotations in the definition, by name.
	Hints map[string]bool
	// Texts contains all strings in the definition, including the names of members, in order.
	Texts []Text

	definition jsontext.Value
}

// Parameter is a property of an input schema.
type Parameter struct {
	Name        string
	Description string
	Types       []string
	Required    bool
	// Values contains the strings that the schema allows for the parameter, at most 64. It is empty if the schema does not
	// restrict the strings.
	Values []string
	// Cut is true if the schema might contain more values.
	Cut bool
	// Path is a JSON Pointer into the definition. It ends with the parameter's name.
	Path string
}

// Read parses a tool's definition as a server returns it from `tools/list` (MCP, Tools, Data Types). It ignores an
// invalid schema, and all members that do not describe the tool's action.
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

// schema is an input schema. Parts that are not valid JSON Schema are ignored.
type schema struct {
	properties []property
	choices    []property // anyOf, oneOf and allOf of the schema itself
	next       string     // first property that was not read because of maxParameters
	required   map[string]bool
	// shared contains the schemas to which properties can refer, by reference.
	shared map[string]jsontext.Value

	nested   []Parameter
	cut      Parameter
	expanded map[string]bool
	parsed   int // number of bytes that were parsed to find parameters
}

type property struct {
	name  string
	value jsontext.Value
}

// UnmarshalJSONFrom implements json.UnmarshalerFrom. It keeps the properties in order.
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

// members returns the first maxParameters members of an object, in order. It returns nil if the value is not an object.
func members(object jsontext.Value) []property {
	out, _ := firstMembers(object)
	return out
}

// firstMembers returns the first maxParameters members of an object in order. It also returns the name of the first
// omitted member, or "" if no member was omitted.
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

// leaveOut records a parameter that was not read, unless one has already been recorded.
func (s *schema) leaveOut(path, name string) {
	if s.cut.Path == "" && len(path)+len(name) <= maxPath {
		s.cut = Parameter{Name: name, Path: path + pointer(name)}
	}
}

// parameter parses the property at the given path, and the properties inside it.
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
			if !s.expanded[to[0]] { // a shared schema may refer to itself
				s.expanded[to[0]] = true
				s.inside(shared, rootPath+strings.TrimPrefix(to[0], "#"), depth+1)
			}
			described = append(described, shared...)
		}
	}
	for _, member := range described {
		switch member.name {
		case "description":
			_ = json.Unmarshal(member.value, &one.Description) // a description that is not a string is ignored
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

// alternatives adds the values and types in the alternatives of a parameter's schema.
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

// inside parses the parameters inside a schema, at any depth.
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
				index := len(s.nested)
				s.nested = append(s.nested, Parameter{})
				one := s.parameter(p, at, depth)
				s.nested[index] = one
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

// schemas contains the members of a schema that can contain further parameters.
var schemas = set("properties items additionalProperties anyOf oneOf allOf")

// elements returns the elements of an array, or nil if the value is not an array.
func elements(value jsontext.Value) (out []jsontext.Value) {
	_ = json.Unmarshal(value, &out)
	return out
}

// texts returns the strings in an array. For a single string, it returns a list with this string.
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
