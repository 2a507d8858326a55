package document

import (
	"encoding"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/observe"
	"github.com/sluice-mesh/sluice/services/policy/internal/condition"
	"github.com/sluice-mesh/sluice/services/policy/internal/engine"
)

// Schema returns the JSON Schema for documents, which editors can use. The schema accepts every document that can be
// loaded. It rejects unknown keys, values of the wrong type, and unknown names, for example of actions. It does not
// check conditions, patterns, or dependencies between keys.
//
// The schema uses draft 7 because all versions of the YAML language server support it.
func Schema() []byte {
	root := object("document", reflect.TypeFor[form]())
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "Sluice policy"
	root["description"] = "A policy document of Sluice, version 1"
	out, err := json.Marshal(root, json.Deterministic(true), jsontext.WithIndent("  "), jsontext.EscapeForHTML(false))
	if err != nil {
		panic("document: marshal the schema: " + err.Error()) // can't happen: a schema has only JSON types
	}
	return append(out, '\n')
}

// A schema is a JSON Schema.
type schema = map[string]any

// structNames contains the names for structs in the keys of [keywords].
var structNames = map[reflect.Type]string{
	reflect.TypeFor[form]():          "document",
	reflect.TypeFor[namedRule]():     "rule",
	reflect.TypeFor[terms]():         "rule",
	reflect.TypeFor[match]():         "match",
	reflect.TypeFor[grant]():         "grant",
	reflect.TypeFor[stepUp]():        "approve_with",
	reflect.TypeFor[rateLimit]():     "limit",
	reflect.TypeFor[redact]():        "redact",
	reflect.TypeFor[redactPart]():    "replaced",
	reflect.TypeFor[record]():        "record",
	reflect.TypeFor[testForm]():      "test",
	reflect.TypeFor[testCall]():      "call",
	reflect.TypeFor[testCaller]():    "caller",
	reflect.TypeFor[testPrincipal](): "caller",
	reflect.TypeFor[testTool]():      "tool",
	reflect.TypeFor[testWant]():      "want",
}

// object returns the schema for a struct without the omitted keys.
func object(name string, t reflect.Type, omitted ...string) schema {
	properties, required := make(schema), make([]string, 0)
	addProperties(properties, &required, t, omitted)
	if name == "chain" {
		required = append(required, "subject")
	}
	out := schema{"type": "object", "additionalProperties": false, "properties": properties}
	if slices.Sort(required); len(required) > 0 {
		out["required"] = required
	}
	return out
}

func addProperties(properties schema, required *[]string, t reflect.Type, omitted []string) {
	for f := range t.Fields() {
		key, options, _ := strings.Cut(f.Tag.Get("yaml"), ",")
		if options == "inline" {
			addProperties(properties, required, f.Type, omitted)
			continue
		}
		if slices.Contains(omitted, key) {
			continue
		}
		k := keywords[structNames[t]+"."+key]
		property := value(key, f.Type, k)
		property["description"] = k.text
		properties[key] = property
		if k.required {
			*required = append(*required, key)
		}
	}
}

// value returns the schema for the value of a key.
func value(key string, t reflect.Type, k keyword) schema {
	switch {
	case t == reflect.TypeFor[*yaml.Node]():
		return schema{"type": "object"}
	case t.Kind() == reflect.Pointer:
		return value(key, t.Elem(), k)
	case t == reflect.TypeFor[window]():
		return schema{"anyOf": []schema{
			{"type": "integer", "minimum": 1},
			{"type": "string", "pattern": `^([0-9]+d|([0-9]*[.]?[0-9]+(ns|us|µs|ms|s|m|h))+)$`},
		}}
	case t == reflect.TypeFor[moment](), t == reflect.TypeFor[observe.Until]():
		return schema{"type": "string", "pattern": `^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt].+)?$`}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[yaml.Unmarshaler]()), reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return schema{"type": "string"}
	case t == reflect.TypeFor[terms]() && key == "otherwise":
		return object(key, t, "when", "extra_args", "otherwise", "mode", "until")
	case t == reflect.TypeFor[redact](), t == reflect.TypeFor[redactPart](), t == reflect.TypeFor[stepUp]():
		out := object(key, t)
		out["minProperties"] = 1
		return out
	case t.Kind() == reflect.Struct:
		return object(key, t)
	case t.Kind() == reflect.Map:
		out := schema{"type": "object", "additionalProperties": value(key, t.Elem(), keyword{}), "minProperties": 1}
		maps.Copy(out, k.limits)
		return out
	case t.Kind() == reflect.Slice:
		list := schema{"type": "array", "items": value(key, t.Elem(), k), "minItems": 1}
		if strings.HasPrefix(t.Name(), "OneOrMany[") {
			return schema{"anyOf": []schema{value(key, t.Elem(), k), list}}
		}
		return list
	}
	out := schema{"type": map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
	}[t.Kind()]}
	maps.Copy(out, k.limits)
	return out
}

// A keyword describes a key in documents.
type keyword struct {
	// text is the description that editors show.
	text string
	// limits contains schema keywords that restrict the value in addition to its type. For a list, they restrict the
	// items.
	limits   schema
	required bool
}

const (
	documentNamePattern = `^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`
	toolNamePattern     = `^[A-Za-z0-9_./-]{1,128}$`
	scopePattern        = `^[\x21\x23-\x5b\x5d-\x7e]{1,128}$`
)

func oneOf(names []string) schema { return schema{"enum": names} }

var modes = oneOf([]string{observe.Observe, observe.Enforce})

func between(low, high int64) schema { return schema{"minimum": low, "maximum": high} }

// conditionLimits contains the schema keywords for conditions.
var conditionLimits = schema{"maxLength": condition.MaxBytes, "pattern": `\S`}

func atMost(bytes int) schema { return schema{"minLength": 1, "maxLength": bytes} }

// patternLimits contains the schema keywords for patterns. A schema limits characters, but the engine limits bytes. A
// pattern never has more characters than bytes, so the schema accepts all valid patterns.
var patternLimits = atMost(engine.MaxPatternBytes)
