// Package classify says what a tool does to the world, from its definition alone: its category
// and risk, how sure that is, and the words it was taken from. It uses no model, no network and
// no list of known servers, and answers the same for the same definition.
//
// A definition is the server's word. Whoever wants to be held harmless can write one that reads
// so, so what is made of it is advice: what policy enforces by it, it enforces for servers that
// are trusted or whose classification a person has accepted (see docs/policy.md).
package classify

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxParameters and maxValues bound what is looked at of a schema: parameters, and values that
// one may have.
const (
	maxParameters = 256
	maxValues     = 64
)

// ErrDefinition means that a definition can't be read.
var ErrDefinition = errors.New("this is no definition of a tool")

// Tool is a tool's definition, as far as it tells what the tool does.
type Tool struct {
	Name        string
	Description string
	// Parameters are the properties of the input schema, in its order, at most 256.
	Parameters []Parameter
	// Hints are the annotations that are there.
	Hints map[string]bool
	// Texts are all texts of the definition, keys too, in its order.
	Texts []Text

	definition jsontext.Value
}

// Parameter is a property of an input schema.
type Parameter struct {
	Name        string
	Description string
	Types       []string
	Required    bool
	// Values are those that the schema names, where they are texts: at most 64.
	Values []string
}

// Read reads a definition as `tools/list` has it (MCP, Tools, Data Types). Members that say
// nothing of what a tool does are left alone, whatever they hold; so is a schema that is none.
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
	t := Tool{Name: in.Name, Description: in.Description, Parameters: in.InputSchema.parameters(), Hints: make(map[string]bool)}
	t.Texts, t.definition = textsIn(definition), definition
	for name, value := range in.Annotations {
		if hint, ok := value.(bool); ok {
			t.Hints[name] = hint
		}
	}
	return t, nil
}

// schema is an input schema. What is written otherwise than JSON Schema has it counts as absent:
// the tool is judged by the rest.
type schema struct {
	properties []property
	required   map[string]bool
	// shared are definitions that properties refer to, by their pointers.
	shared map[string]jsontext.Value
}

type property struct {
	name  string
	value jsontext.Value
}

// UnmarshalJSONFrom keeps the properties' order.
func (s *schema) UnmarshalJSONFrom(dec *jsontext.Decoder) error {
	value, err := dec.ReadValue()
	if err != nil {
		return err
	}
	s.required, s.shared = make(map[string]bool), make(map[string]jsontext.Value)
	for _, member := range members(value) {
		switch member.name {
		case "properties":
			s.properties = members(member.value)
		case "$defs", "definitions":
			for _, one := range members(member.value) {
				s.shared["#/"+member.name+pointer(one.name)] = one.value
			}
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

// members are an object's, in their order; none of what is no object.
func members(object jsontext.Value) []property {
	if object.Kind() != '{' {
		return nil
	}
	dec := jsontext.NewDecoder(strings.NewReader(string(object)))
	if _, err := dec.ReadToken(); err != nil {
		return nil
	}
	var out []property
	for dec.PeekKind() == '"' && len(out) < maxParameters {
		name, err := dec.ReadToken()
		if err != nil {
			return out
		}
		key := name.String()
		value, err := dec.ReadValue()
		if err != nil {
			return out
		}
		out = append(out, property{key, value.Clone()})
	}
	return out
}

func (s *schema) parameters() []Parameter {
	out := make([]Parameter, 0, len(s.properties))
	for _, p := range s.properties {
		one := Parameter{Name: p.name, Required: s.required[p.name]}
		described := members(p.value)
		for _, member := range described {
			if to := texts(member.value); member.name == "$ref" && len(to) == 1 {
				described = append(described, members(s.shared[to[0]])...)
			}
		}
		for _, member := range described {
			switch member.name {
			case "description":
				_ = json.Unmarshal(member.value, &one.Description) // no text counts as none
			case "type":
				one.Types = append(one.Types, texts(member.value)...)
			case "enum", "const":
				one.Values = append(one.Values, texts(member.value)...)
			case "anyOf", "oneOf":
				var alternatives []jsontext.Value
				if json.Unmarshal(member.value, &alternatives) != nil {
					continue
				}
				for _, alternative := range alternatives {
					for _, inner := range members(alternative) {
						switch inner.name {
						case "enum", "const":
							one.Values = append(one.Values, texts(inner.value)...)
						case "type":
							one.Types = append(one.Types, texts(inner.value)...)
						}
					}
				}
			}
		}
		one.Values = one.Values[:min(len(one.Values), maxValues)]
		out = append(out, one)
	}
	return out
}

// texts are the texts of a list, or the one that stands there alone.
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
