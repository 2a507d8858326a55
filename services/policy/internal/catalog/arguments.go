package catalog

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxArguments limits the number of argument names that are stored for a definition. maxArgumentBytes limits their
// total length. These limits are necessary because the server chooses the names, and the names stay in memory.
const (
	maxArguments     = 128
	maxArgumentBytes = 2 << 10
)

// openKeywords contains the JSON Schema keywords with which an object can have members that are not in `properties`.
var openKeywords = []string{"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "unevaluatedProperties"}

// argumentNames returns the sorted names of the arguments that the schema in a tool definition declares. It returns nil
// if there is no schema, if the schema may allow other names, or if there are too many names. If the schema does not
// contain `additionalProperties`, argumentNames assumes that other names are not allowed.
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
