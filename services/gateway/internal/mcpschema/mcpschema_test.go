package mcpschema_test

import (
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpschema"
)

// An invalid element is refused with a reason. Optional members that are null are removed.
func TestConform(t *testing.T) {
	t.Parallel()
	const ok = `"inputSchema":{"type":"object"}`
	for name, tt := range map[string]struct{ list, element, want, why string }{
		"whole":                      {"tools", `{"name":"a", ` + ok + ` }`, `{"name":"a", ` + ok + ` }`, ""},
		"no type":                    {"tools", `{"name":"a","inputSchema":{}}`, "", "inputSchema.type is missing"},
		"properties alone":           {"tools", `{"name":"a","inputSchema":{"properties":{}}}`, "", "inputSchema.type is missing"},
		"a list as type":             {"tools", `{"name":"a","inputSchema":{"type":["object"]}}`, "", "inputSchema.type is not one of: object"},
		"another type":               {"tools", `{"name":"a","inputSchema":{"type":"string"}}`, "", "inputSchema.type is not one of: object"},
		"a boolean property":         {"tools", `{"name":"a","inputSchema":{"type":"object","properties":{"x":true}}}`, "", "inputSchema.properties of a member is not an object"},
		"a null property":            {"tools", `{"name":"a","inputSchema":{"type":"object","properties":{"x":null}}}`, "", "inputSchema.properties of a member is not an object"},
		"properties as a list":       {"tools", `{"name":"a","inputSchema":{"type":"object","properties":[]}}`, "", "inputSchema.properties is not an object"},
		"required as a text":         {"tools", `{"name":"a","inputSchema":{"type":"object","required":"a"}}`, "", "inputSchema.required is not a list"},
		"required of numbers":        {"tools", `{"name":"a","inputSchema":{"type":"object","required":[1]}}`, "", "inputSchema.required of an element is not a string"},
		"no schema":                  {"tools", `{"name":"a"}`, "", "inputSchema is missing"},
		"a null schema":              {"tools", `{"name":"a","inputSchema":null}`, "", "inputSchema is not an object"},
		"another spelling":           {"tools", `{"name":"a","INPUTSCHEMA":{},` + ok + `}`, "", "inputSchema is present in two spellings"},
		"no name":                    {"tools", `{` + ok + `}`, "", "name is missing"},
		"no object":                  {"tools", `[]`, "", "it is not an object"},
		"nulls":                      {"tools", `{"title":null,"name":"a","description":null,"annotations":null,"outputSchema":null,"_meta":null,"icons":null,"execution":null,` + ok + `}`, `{"name":"a",` + ok + `}`, ""},
		"nulls inside":               {"tools", `{"name":"a","annotations":{"title":null,"readOnlyHint":true,"x":null},"inputSchema":{"type":"object","properties":null,"required":null,"x":null}}`, `{"name":"a","annotations":{"readOnlyHint":true,"x":null},"inputSchema":{"type":"object","x":null}}`, ""},
		"results without a type":     {"tools", `{"name":"a","outputSchema":{},` + ok + `}`, "", "outputSchema.type is missing"},
		"results that are a list":    {"tools", `{"name":"a","outputSchema":{"type":"array"},` + ok + `}`, "", "outputSchema.type is not one of: object"},
		"a hint as text":             {"tools", `{"name":"a","annotations":{"readOnlyHint":"true"},` + ok + `}`, "", "annotations.readOnlyHint is neither true nor false"},
		"a title as number":          {"tools", `{"name":"a","title":1,` + ok + `}`, "", "title is not a string"},
		"a description as list":      {"tools", `{"name":"a","description":["x"],` + ok + `}`, "", "description is not a string"},
		"icons as object":            {"tools", `{"name":"a","icons":{},` + ok + `}`, "", "icons is not a list"},
		"an icon without source":     {"tools", `{"name":"a","icons":[{"mimeType":"image/png"}],` + ok + `}`, "", "icons.src of an element is missing"},
		"_meta as list":              {"tools", `{"name":"a","_meta":[],` + ok + `}`, "", "_meta is not an object"},
		"a prompt":                   {"prompts", `{"name":"a","title":null,"arguments":[{"name":"x","required":null,"description":null}]}`, `{"name":"a","arguments":[{"name":"x"}]}`, ""},
		"a prompt's null arguments":  {"prompts", `{"name":"a","arguments":null}`, `{"name":"a"}`, ""},
		"a prompt's arguments":       {"prompts", `{"name":"a","arguments":{}}`, "", "arguments is not a list"},
		"an argument without name":   {"prompts", `{"name":"a","arguments":[{}]}`, "", "arguments.name of an element is missing"},
		"a resource":                 {"resources", `{"uri":"a:b","name":"a","mimeType":null,"size":null,"annotations":null}`, `{"uri":"a:b","name":"a"}`, ""},
		"a resource's size":          {"resources", `{"uri":"a:b","name":"a","size":"3"}`, "", "size is not a number"},
		"a resource without name":    {"resources", `{"uri":"a:b"}`, "", "name is missing"},
		"a resource's audience":      {"resources", `{"uri":"a:b","name":"a","annotations":{"audience":"user"}}`, "", "annotations.audience is not a list"},
		"a resource's priority":      {"resources", `{"uri":"a:b","name":"a","annotations":{"priority":2}}`, "", "annotations.priority is not a number from 0 to 1"},
		"a resource's date":          {"resources", `{"uri":"a:b","name":"a","annotations":{"lastModified":"yesterday"}}`, "", "annotations.lastModified is not a date with a time"},
		"a template":                 {"resourceTemplates", `{"uriTemplate":"a:{b}","name":"a","description":null}`, `{"uriTemplate":"a:{b}","name":"a"}`, ""},
		"a template without its URI": {"resourceTemplates", `{"uri":"a:b","name":"a"}`, "", "uriTemplate is missing"},
		"another list":               {"roots", `{}`, "", "elements of this list are unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, why := mcpschema.Conform(tt.list, []byte(tt.element))
			if string(got) != tt.want || why != tt.why {
				t.Errorf("got %s, %q\nwant %s, %q", got, why, tt.want, tt.why)
			}
		})
	}
}

// FuzzConform checks that a returned element is valid JSON, and that Conform accepts it again.
func FuzzConform(f *testing.F) {
	f.Add(`{"name":"a","title":null,"inputSchema":{"type":"object","properties":{"x":{}}}}`)
	f.Fuzz(func(t *testing.T, element string) {
		if !jsontext.Value(element).IsValid() {
			return
		}
		for _, list := range []string{"tools", "prompts", "resources", "resourceTemplates"} {
			got, why := mcpschema.Conform(list, []byte(element))
			if (got == nil) != (why != "") || got != nil && !jsontext.Value(got).IsValid() {
				t.Fatalf("%s became %s, %q", element, got, why)
			}
			if second, why := mcpschema.Conform(list, got); got != nil && (why != "" || string(second) != string(got)) {
				t.Errorf("%s became %s, and that %s, %q", element, got, second, why)
			}
		}
	})
}
