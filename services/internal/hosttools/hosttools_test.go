package hosttools_test

import (
	"slices"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/sluice-mesh/sluice/services/internal/hosttools"
)

func TestTools_EachClientHasDefinitions(t *testing.T) {
	t.Parallel()
	for _, client := range hosttools.Clients() {
		tools, err := hosttools.Tools(client)
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[string]bool)
		for _, tool := range tools {
			var definition struct {
				Description string          `json:"description"`
				InputSchema map[string]any  `json:"inputSchema"`
				Annotations map[string]bool `json:"annotations"`
			}
			if err := json.Unmarshal(tool.Definition, &definition); err != nil {
				t.Fatalf("%s: %s: %v", client, tool.Name, err)
			}
			_, annotated := definition.Annotations["readOnlyHint"]
			if seen[tool.Name] || definition.Description == "" || definition.InputSchema["type"] != "object" || !annotated {
				t.Errorf("%s: the definition of %q is incomplete or repeated: %s", client, tool.Name, tool.Definition)
			}
			seen[tool.Name] = true
			properties, _ := definition.InputSchema["properties"].(map[string]any)
			if _, has := properties[hosttools.ProtectedFile]; has != (hosttools.WritesFiles(tool.Name) || hosttools.ReadsFiles(tool.Name)) {
				t.Errorf("%s: %s has the argument %s: %v", client, tool.Name, hosttools.ProtectedFile, has)
			}
			if definition.InputSchema["additionalProperties"] != true {
				t.Errorf("%s: %s denies arguments of other versions of the client", client, tool.Name)
			}
		}
		if !slices.ContainsFunc(tools, func(tool hosttools.Tool) bool { return tool.Name == hosttools.Other }) {
			t.Errorf("%s has no tool for unknown tools", client)
		}
	}
}

func TestTools_RefusesAnUnknownClient(t *testing.T) {
	t.Parallel()
	if _, err := hosttools.Tools("cursor"); err == nil {
		t.Error("a client without hooks has tools")
	}
}
