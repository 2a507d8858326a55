package mcpschema

import (
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// schema checks the JSON Schema of an object. The schemas of tools' arguments and results describe objects.
var schema = members{
	required: map[string]check{"type": oneOf("object")},
	optional: map[string]check{"properties": each(anyObject), "required": list(text)},
}

var icons = list(members{
	required: map[string]check{"src": text},
	optional: map[string]check{"mimeType": text, "sizes": list(text), "theme": oneOf("light", "dark")},
}.check)

// resourceAnnotations checks the annotations of resources (MCP 2025-11-25, Resources, Annotations).
var resourceAnnotations = members{optional: map[string]check{
	"audience": list(oneOf("user", "assistant")), "priority": priority, "lastModified": date,
}}

var lists = map[string]check{
	"tools": members{
		required: map[string]check{"name": text, "inputSchema": schema.check},
		optional: map[string]check{
			"title": text, "description": text, "outputSchema": schema.check, "icons": icons, "_meta": anyObject,
			"annotations": members{optional: map[string]check{
				"title": text, "readOnlyHint": boolean, "destructiveHint": boolean, "idempotentHint": boolean, "openWorldHint": boolean,
			}}.check,
			"execution": members{optional: map[string]check{"taskSupport": oneOf("required", "optional", "forbidden")}}.check,
		},
	}.check,
	"prompts": members{
		required: map[string]check{"name": text},
		optional: map[string]check{
			"title": text, "description": text, "icons": icons, "_meta": anyObject,
			"arguments": list(members{
				required: map[string]check{"name": text},
				optional: map[string]check{"title": text, "description": text, "required": boolean},
			}.check),
		},
	}.check,
	"resources": members{
		required: map[string]check{"uri": text, "name": text},
		optional: map[string]check{
			"title": text, "description": text, "mimeType": text, "size": number, "icons": icons, "_meta": anyObject,
			"annotations": resourceAnnotations.check,
		},
	}.check,
	"resourceTemplates": members{
		required: map[string]check{"uriTemplate": text, "name": text},
		optional: map[string]check{
			"title": text, "description": text, "mimeType": text, "icons": icons, "_meta": anyObject,
			"annotations": resourceAnnotations.check,
		},
	}.check,
}

func priority(value jsontext.Value) (jsontext.Value, *fault) {
	if n, err := strconv.ParseFloat(string(value), 64); value.Kind() != '0' || err != nil || n < 0 || n > 1 {
		return nil, &fault{what: "is not a number from 0 to 1"}
	}
	return value, nil
}

// date checks that a value is a string with a date and a time in ISO 8601 format.
func date(value jsontext.Value) (jsontext.Value, *fault) {
	decoded, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		return nil, &fault{what: "is not a string"}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04Z07:00"} {
		if _, err := time.Parse(layout, string(decoded)); err == nil {
			return value, nil
		}
	}
	return nil, &fault{what: "is not a date with a time"}
}
