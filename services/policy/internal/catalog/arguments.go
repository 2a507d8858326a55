package catalog

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxArguments is the largest number of argument names that are stored of a definition, and maxArgumentBytes their
// largest total length. The names stay in memory, and the server chooses them.
const (
	maxArguments     = 128
	maxArgumentBytes = 2 << 10
)

// openKeywords are the keywords of JSON Schema with which an object may have members that `properties` does not name.
var openKeywords = []string{"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "unevaluatedProperties"}

// argumentNames returns the names of the arguments in the definition of a tool, sorted. It returns nil if the schema may
// allow other names too, if there is no schema, or if there are too many names. A schema that does not mention `additionalProperties` counts as one
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
	names := slices.Sorted(maps.Keys(properties))
	if len(strings.Join(names, "")) > maxArgumentBytes {
		return nil
	}
	return names
}
