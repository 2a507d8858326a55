package hook_test

import (
	"os"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Gemini CLI from npm runs what policy allows, and what a person approves, if its own rules allow the call. It runs
// nothing if the hook denies a call or reports an error.
func TestRealClients_GeminiObeysTheHook(t *testing.T) {
	t.Parallel()
	c := gemini("--yolo", "--skip-trust")
	h := behindHook(t, c, geminiSettings)
	h.obeys(c)
}

// Gemini CLI runs all calls if the hook is late, missing or off.
func TestRealClients_GeminiRunsAllCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	c := gemini("--yolo", "--skip-trust")
	h := behindHook(t, c, geminiSettings)
	h.begin(c, "denied")()
	h.ran("denied", false)
	settings := stack.ReadFile(t, h.settings(c))
	if err := os.Remove(h.path("bin/sluice")); err != nil {
		t.Fatal(err)
	}
	h.runs(c, "missing")
	stack.ReplaceInFile(t, h.settings(c), h.path("bin/sluice")+" hook gemini", "kill -KILL $$")
	h.runs(c, "crashed")
	stack.ReplaceInFile(t, h.settings(c), "kill -KILL $$", "sleep 60")
	stack.ReplaceInFile(t, h.settings(c), "300000", "1000")
	h.runs(c, "late")
	h.write(".gemini/settings.json", settings)
	stack.ReplaceInFile(t, h.settings(c), `{"security"`, `{"hooksConfig": {"enabled": false}, "security"`)
	h.runs(c, "off")
}

// trying
func TestRealClients_GeminiTrust(t *testing.T) {
	c := gemini("--yolo", "--skip-trust")
	h := behindHook(t, c, geminiSettings)
	for _, v := range []string{`"security": {"folderTrust": {"enabled": true}, `, `"security": {"folderTrust": {"enabled": false}, `} {
		h.write(".gemini/settings.json", stack.ReadFile(t, h.settings(c)))
		stack.ReplaceInFile(t, h.settings(c), `"security": {`, v)
		t.Log(h.begin(gemini(), "unasked")())
		t.Log(h.begin(gemini("--skip-trust"), "unasked")())
		t.Log(h.begin(gemini("--yolo"), "denied")())
	}
}
