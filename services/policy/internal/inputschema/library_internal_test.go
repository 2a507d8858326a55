package inputschema

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"pgregory.net/rapid"
)

// names contains the member names in randomly drawn schemas and values. There are few names, so that a schema and a
// value are likely to have the same names.
var names = []string{"a", "b", "xa"}

// drawValue draws a small JSON value.
func drawValue(t *rapid.T, depth int) string {
	form := rapid.IntRange(0, 6).Draw(t, "form")
	if depth == 0 {
		form = min(form, 4)
	}
	switch form {
	case 0:
		return rapid.SampledFrom([]string{"null", "true", "false"}).Draw(t, "word")
	case 1, 2:
		return rapid.SampledFrom([]string{"0", "1", "1.0", "1.5", "3", "-2", "1e1", "15"}).Draw(t, "number")
	case 3, 4:
		return rapid.SampledFrom([]string{`""`, `"a"`, `"xa"`, `"long"`, `"é😀"`}).Draw(t, "string")
	case 5:
		items := make([]string, rapid.IntRange(0, 3).Draw(t, "items"))
		for i := range items {
			items[i] = drawValue(t, depth-1)
		}
		return "[" + strings.Join(items, ",") + "]"
	default:
		return drawObject(t, func() string { return drawValue(t, depth-1) })
	}
}

func drawObject(t *rapid.T, member func() string) string {
	var members []string
	for _, name := range names {
		if rapid.Bool().Draw(t, name) {
			members = append(members, fmt.Sprintf("%q:%s", name, member()))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

// drawSchema draws a schema with up to four keywords. Schemas may refer to each other with $ref.
func drawSchema(t *rapid.T, depth int) string {
	sub := func() string { return drawSchema(t, depth-1) }
	list := func() string {
		parts := make([]string, rapid.IntRange(1, 3).Draw(t, "parts"))
		for i := range parts {
			parts[i] = sub()
		}
		return "[" + strings.Join(parts, ",") + "]"
	}
	value := func() string { return drawValue(t, 1) }
	count := func() string { return rapid.SampledFrom([]string{"0", "1", "2"}).Draw(t, "count") }
	flat := map[string]func() string{
		"type": func() string {
			return rapid.SampledFrom([]string{`"object"`, `"array"`, `"string"`, `"integer"`, `"number"`, `["null","boolean"]`, `["string","integer"]`}).Draw(t, "type")
		},
		"enum": func() string { return "[" + value() + "]" }, "const": value,
		"required": func() string { return rapid.SampledFrom([]string{`["a"]`, `["b","xa"]`}).Draw(t, "required") },
		"minimum":  count, "maximum": count, "exclusiveMinimum": count, "exclusiveMaximum": count, "multipleOf": func() string { return "3" },
		"minLength": count, "maxLength": count, "pattern": func() string { return `"^x|o"` }, "minItems": count, "maxItems": count,
		"uniqueItems": func() string { return "true" }, "minProperties": count, "maxProperties": count,
		"dependentRequired": func() string { return `{"a":["b"]}` }, "$ref": func() string { return rapid.SampledFrom([]string{`"#/$defs/a"`, `"#/$defs/b"`}).Draw(t, "ref") },
		"minContains": count, "maxContains": count,
	}
	deep := map[string]func() string{
		"properties": func() string { return drawObject(t, sub) }, "patternProperties": func() string { return `{"^x":` + sub() + `}` },
		"additionalProperties": sub, "propertyNames": sub, "unevaluatedProperties": sub, "dependentSchemas": func() string { return drawObject(t, sub) },
		"prefixItems": list, "items": sub, "contains": sub, "unevaluatedItems": sub,
		"allOf": list, "anyOf": list, "oneOf": list, "not": sub, "if": sub, "then": sub, "else": sub,
	}
	var keywords []string
	for name := range flat {
		keywords = append(keywords, name)
	}
	if depth > 0 {
		for name := range deep {
			keywords = append(keywords, name, name)
		}
	} else if rapid.Bool().Draw(t, "boolean") {
		return rapid.SampledFrom([]string{"true", "false"}).Draw(t, "schema")
	}
	chosen := make(map[string]string)
	slices.Sort(keywords) // the order of a map is random
	for range rapid.IntRange(0, 4).Draw(t, "keywords") {
		name := rapid.SampledFrom(keywords).Draw(t, "keyword")
		if make, ok := flat[name]; ok {
			chosen[name] = make()
		} else {
			chosen[name] = deep[name]()
		}
	}
	return objectOf(chosen)
}

// The test draws random schemas and values. If undeclared arguments are not refused, a check has the same result as
// package jsonschema.
func TestApply_AgreesWithLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		root := strings.TrimSuffix(drawRoot(t), "}")
		if root != "{" {
			root += ","
		}
		text := root + `"$defs":{"a":` + drawSchema(t, 1) + `,"b":` + drawSchema(t, 1) + `}}`
		library, err := compileDraft([]byte(text), jsonschema.Draft2020, new(patternCompiler))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		ours, err := convert(library)
		if err != nil {
			t.Fatal(err)
		}
		for range 4 {
			drawn := drawValue(t, 3)
			v, err := parse([]byte(drawn), maxArgumentValues)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := jsonschema.UnmarshalJSON(strings.NewReader(drawn))
			if err != nil {
				t.Fatal(err)
			}
			c := checker{schema: ours, remaining: maxSteps}
			got := c.apply(ours.root, v)
			if c.remaining < 0 { // the drawn schema refers to itself without end
				continue
			}
			if want := library.Validate(plain); (got == nil) != (want == nil) {
				t.Fatalf("%s\nof %s: got %v, and the library %v", text, drawn, got, want)
			}
		}
	})
}

// drawRoot draws a schema that is an object.
func drawRoot(t *rapid.T) string {
	for {
		if s := drawSchema(t, 3); strings.HasPrefix(s, "{") && !strings.Contains(s, `"$defs"`) {
			return s
		}
	}
}

func objectOf(members map[string]string) string {
	var parts []string
	for name, value := range members {
		parts = append(parts, fmt.Sprintf("%q:%s", name, value))
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ",") + "}"
}
