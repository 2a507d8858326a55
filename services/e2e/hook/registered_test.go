package hook_test

import (
	"encoding/json"
	"strings"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// registered returns the arguments of the hook that is registered in a settings file. Their paths need no quotes.
func (h *home) registered(name string) []string {
	h.t.Helper()
	var file struct {
		Hooks map[string][]struct{ Hooks []struct{ Command string } }
	}
	if err := json.Unmarshal([]byte(stack.ReadFile(h.t, h.path(name))), &file); err != nil {
		h.t.Fatal(err)
	}
	for _, items := range file.Hooks {
		for _, item := range items {
			if words := strings.Fields(item.Hooks[0].Command); words[0] == h.program {
				return words[1:]
			}
		}
	}
	h.t.Fatalf("%s has no hook of Sluice", name)
	return nil
}

// chooseOtherMesh sets four variables that name another mesh, whose policy allows all calls.
func (h *home) chooseOtherMesh() {
	h.t.Helper()
	config := stack.ReadFile(h.t, h.path(".config/sluice/sluice.yaml"))
	h.write("evil/sluice/sluice.yaml", strings.ReplaceAll(config, h.path(".local/share/sluice"), h.path("evil/data/sluice")))
	h.write("evil/sluice/policies/host-codex.yaml", "version: 1\nserver: host-codex\ndefault: allow\n")
	h.write("evil/data/sluice/tokens/agents/codex", stack.ReadFile(h.t, h.path(".local/share/sluice/tokens/agents/codex")))
	h.write("evil/data/sluice/tokens/operator", stack.ReadFile(h.t, h.path(".local/share/sluice/tokens/operator")))
	h.env = append(h.env, "XDG_CONFIG_HOME="+h.path("evil"), "XDG_DATA_HOME="+h.path("evil/data"),
		"SLUICE_CONFIG="+h.path("evil/sluice/sluice.yaml"), "SLUICE_DATA="+h.path("evil/data/sluice"))
}
