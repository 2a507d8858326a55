package catalog

import (
	"maps"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxArguments is the maximum number of argument names that are stored for a definition. maxArgumentBytes is the
// maximum total length of these names. The limits are needed because the names stay in memory and the server chooses
// them.
const (
	maxArguments     = 128
	maxArgumentBytes = 2 << 10
)

// openKeywords are the JSON Schema keywords that may allow an object to have members that `properties` does not list.
var openKeywords = []string{"patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "unevaluatedProperties"}

// argumentNames returns the sorted names of the arguments in a tool's definition. It returns nil if the schema may
// allow other names too, if there is no schema, or if there are too many names. A schema that does not mention
// `additionalProperties` is treated as a schema that allows no other names.
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
