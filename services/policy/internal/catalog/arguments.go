package catalog

import (
	"maps"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxArguments is the largest number of argument names that are stored of a definition.
const maxArguments = 256

// openKeywords are the keywords of JSON Schema with which an object may have members that `properties` does not name.
var openKeywords = []string{"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "unevaluatedProperties"}

// argumentNames returns the names of the arguments in the definition of a tool, sorted. It returns nil if the schema may
// allow other names too, or if there is no schema. A schema that does not mention `additionalProperties` counts as one
// that allows no other names.
func argumentNames(definition string) []string {
	var tool struct {
		InputSchema map[string]jsontext.Value `json:"inputSchema"`
	}
	if json.Unmarshal([]byte(definition), &tool) != nil || tool.InputSchema == nil {
		return nil
	}
	for _, keyword := range openKeywords {
		if _, has := tool.InputSchema[keyword]; has {
			return nil
		}
	}
	if more, has := tool.InputSchema["additionalProperties"]; has && string(more) != "false" {
		return nil
	}
	var properties map[string]jsontext.Value
	if json.Unmarshal(tool.InputSchema["properties"], &properties) != nil || len(properties) == 0 || len(properties) > maxArguments {
		return nil
	}
	return slices.Sorted(maps.Keys(properties))
}
