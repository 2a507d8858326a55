package hook_test

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// registered returns the arguments of the hook that is registered in a settings file. The parameter name is the path of
// that file. The paths in the arguments must not need quotes.
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

// chooseOtherMesh creates the files of another mesh, whose policy allows all calls, and sets four environment variables
// that select that mesh.
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

// `hook status` prints why a hook does not work. `init --undo` also removes hooks, because hooks without a mesh would
// deny all calls.
func TestGemini_StatusAndUndo(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	const before = "{\n  \"ui\": {\"theme\": \"dark\"}\n}\n"
	h.write(".gemini/settings.json", before)
	status := func(code int, fragment string, args ...string) {
		t.Helper()
		if out := h.run("", append([]string{"hook", "status"}, args...)...); out.code != code || !strings.Contains(out.stdout, fragment) {
			t.Errorf("hook status %v: %+v, want exit code %d and %q", args, out, code, fragment)
		}
	}
	status(1, "Gemini CLI: the hook is not registered")
	h.must("hook", "install", "gemini", "--yes")
	status(0, "Gemini CLI: the hook is registered")
	status(0, "Codex: the hook is not registered")
	h.end(h.mesh(), syscall.SIGTERM)
	status(0, "the hook is registered", "gemini")

	const differs = "host-gemini.yaml differs from the policy of this version of Sluice"
	if out := h.must("hook", "status", "gemini"); strings.Contains(out, differs) {
		t.Errorf("hook status after an installation: %s", out)
	}
	policy := h.path(".config/sluice/policies/host-gemini.yaml")
	stack.WriteFile(t, policy, stack.ReadFile(t, policy)+"# of an earlier version\n")
	status(0, differs, "gemini")
	if err := os.Remove(policy); err != nil {
		t.Fatal(err)
	}
	h.must("hook", "install", "gemini", "--yes")
	if out := h.must("hook", "status", "gemini"); strings.Contains(out, differs) {
		t.Errorf("hook status after the policy was written again: %s", out)
	}

	registered := stack.ReadFile(t, h.path(".gemini/settings.json"))
	narrow := regexp.MustCompile(`\{\s*"hooks": \[\s*\{\s*"name"`).ReplaceAllString(registered, `{"matcher": "none", "hooks": [{"name"`)
	h.write(".gemini/settings.json", narrow)
	status(1, `calls pass without the mesh, because the hook for BeforeTool has the additional member "matcher"`, "gemini")
	if out := h.must("hook", "install", "gemini", "--yes"); strings.Contains(out, "had the hook already") {
		t.Errorf("install leaves the matcher: %s", out)
	}
	status(0, "the hook is registered", "gemini")

	h.write(".gemini/settings.json", strings.Replace(stack.ReadFile(t, h.path(".gemini/settings.json")), "{", `{"hooksConfig": {"disabled": ["sluice"]},`, 1))
	status(1, "~/.gemini/settings.json: calls pass without the mesh, because hooksConfig.disabled contains sluice", "gemini")
	token := h.path(".local/share/sluice/tokens/agents/gemini")
	content := stack.ReadFile(t, token)
	if err := os.Remove(token); err != nil {
		t.Fatal(err)
	}
	status(1, "all calls are denied: the client has no token", "gemini")
	stack.WriteFile(t, token, content)
	config := stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))
	h.end(h.mesh(), syscall.SIGTERM)
	h.write(".config/sluice/sluice.yaml", config+"nonsense: 1\n")
	status(1, "all calls are denied", "gemini")
	h.write(".config/sluice/sluice.yaml", config)

	for _, step := range []string{"", "after hook remove"} {
		if step != "" {
			h.must("hook", "remove", "codex")
			h.silent("the mesh starts again", h.run(`{"hook_event_name":"PreToolUse","tool_name":"list_directory","tool_input":{}}`, "hook", "gemini"))
		} else {
			h.must("hook", "install", "codex", "--yes")
		}
		if out := h.must("doctor"); strings.Contains(out, "warning  server host-") || strings.Contains(out, "warning  tools of host-") {
			t.Errorf("doctor %s: %s", step, out)
		}
	}
	if out := h.must("init", "--undo", "--yes"); !strings.Contains(out, "Gemini CLI has the hook of Sluice in ~/.gemini/settings.json") {
		t.Errorf("undo: %s", out)
	}
	if got, want := stack.ReadFile(t, h.path(".gemini/settings.json")), strings.Replace(before, "{", `{"hooksConfig": {"disabled": ["sluice"]},`, 1); strings.Join(strings.Fields(got), "") != strings.Join(strings.Fields(want), "") {
		t.Errorf("the settings after undo: %s, want %s", got, want)
	}
	if out := h.must("init", "--undo", "--yes"); !strings.Contains(out, "Nothing to undo") {
		t.Errorf("a second undo: %s", out)
	}
}
