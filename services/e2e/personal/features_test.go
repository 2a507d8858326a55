package personal_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// The reference server has tools, prompts, resources and completions. After `sluice init`, all of them work behind the
// mesh.
func TestInit_PromptsAndResourcesWork(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	command := npmtest.ServerEverything(t, "stdio")
	file, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"everything": map[string]any{"command": command[0], "args": command[1:]}}})
	if err != nil {
		t.Fatal(err)
	}
	h.write(cursorPath, string(file))
	h.check(0, []string{"init", "--yes"}, "Cursor starts everything behind the mesh.")
	entry, args := h.entry(cursorPath, "everything")
	client := h.connect(entry, args...)
	if text, isError := h.call(client, "echo", map[string]any{"message": "hello"}); isError || !strings.Contains(text, "hello") {
		t.Errorf("echo returns %s", text)
	}
	prompts, err := client.ListPrompts(t.Context(), nil)
	if err != nil || len(prompts.Prompts) == 0 {
		t.Fatalf("the prompts are %v, %v", prompts, err)
	}
	if _, err := client.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "simple-prompt"}); err != nil {
		t.Error(err)
	}
	resources, err := client.ListResources(t.Context(), nil)
	if err != nil || len(resources.Resources) == 0 {
		t.Fatalf("the resources are %v, %v", resources, err)
	}
	if _, err := client.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: resources.Resources[0].URI}); err != nil {
		t.Error(err)
	}
	h.check(0, []string{"init", "--undo", "--yes"}, "byte for byte")
}
