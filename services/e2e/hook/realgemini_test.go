package hook_test

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"

	"github.com/sluice-mesh/sluice/services/e2e/scripted"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// Gemini CLI from npm runs the calls that the policy allows and those that a person approves, if its own rules allow
// them. It does not run a call if the hook denies the call or reports an error.
func TestRealClients_GeminiObeysTheHook(t *testing.T) {
	t.Parallel()
	c := gemini("--yolo", "--skip-trust")
	h := behindHook(t, c, geminiSettings)
	h.obeys(c)
}

// Gemini CLI runs all calls if the hook is killed, too slow or switched off. It runs none if the hook's program is
// missing.
func TestRealClients_GeminiRunsCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	c := gemini("--yolo", "--skip-trust")
	h := behindHook(t, c, geminiSettings)
	h.refuses(c, "denied", "Denied by policy")
	settings := stack.ReadFile(t, h.settings(c))
	if err := os.Remove(h.path("bin/sluice")); err != nil {
		t.Fatal(err)
	}
	h.refuses(c, "missing", "No such file") // the error of the shell, whose exit code is 127
	stack.ReplaceInFile(t, h.settings(c), h.path("bin/sluice")+" hook gemini", "kill -KILL $$ #")
	h.runs(c, "crashed")
	stack.ReplaceInFile(t, h.settings(c), "kill -KILL $$ #", "sleep 60 #")
	stack.ReplaceInFile(t, h.settings(c), "300000", "1000")
	h.runs(c, "late")
	h.write(".gemini/settings.json", settings)
	stack.ReplaceInFile(t, h.settings(c), `{"security"`, `{"hooksConfig": {"enabled": false}, "security"`)
	h.runs(c, "off")
}

// The mesh evaluates a call first. If the mesh allows the call or a person approves it, Gemini CLI's own rules must
// also allow it.
func TestRealClients_GeminiAppliesItsRulesAfterTheHook(t *testing.T) {
	t.Parallel()
	c := gemini("--skip-trust", "--allowed-tools", "run_shell_command(touch passes)")
	h := behindHook(t, c, geminiSettings)
	wait := h.begin(c, "passes", "unasked", "waits")
	h.approveOne()
	results := wait()
	h.ran("passes", true)
	h.ran("unasked", false)
	h.ran("waits", false)
	for _, result := range results[1:] {
		if !strings.Contains(result, "denied by policy") || strings.Contains(result, "blocked") {
			t.Errorf("the model reads %s, want the refusal of Gemini CLI", result)
		}
	}
}

// If a program such as an editor controls Gemini CLI by ACP, Gemini CLI does not run the hook. It only asks the user of
// that program.
func TestRealClients_GeminiFiresNoHookInEditors(t *testing.T) {
	t.Parallel()
	h := behindHook(t, gemini(), geminiSettings)
	m := scripted.New(t, gemini().touch("denied"))
	s := h.serve(gemini(), m, `{"outcome":{"outcome":"selected","optionId":"proceed_once"}}`, "--acp", "--skip-trust", "-m", "gemini-2.5-flash")
	s.call("initialize", object{"protocolVersion": 1, "clientCapabilities": object{}}, nil)
	var session struct{ SessionID string }
	s.call("session/new", object{"cwd": h.path("project"), "mcpServers": []string{}}, &session)
	s.call("session/prompt", object{"sessionId": session.SessionID, "prompt": []any{object{"type": "text", "text": prompt}}}, nil)
	h.ran("denied", true)
	if len(s.asked) != 1 {
		t.Errorf("Gemini CLI asks %q", s.asked)
	}
}

// In a folder that is not trusted, Gemini CLI runs no hook from the settings. It asks its user about the call, and does
// not start if there is no terminal.
func TestRealClients_GeminiFiresNoHookWithoutTrust(t *testing.T) {
	t.Parallel()
	c := gemini()
	h := behindHook(t, c, geminiSettings)
	h.write(".gemini/trustedFolders.json", `{"`+h.path("project")+`": "DO_NOT_TRUST"}`)
	m := scripted.New(t, c.touch("denied"))
	if out, err := h.command(t.Context(), c, m, c.args(m.URL)).CombinedOutput(); err == nil || !strings.Contains(string(out), "not running in a trusted directory") {
		t.Errorf("without a terminal: %v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cmd := h.command(ctx, c, m, []string{"-m", "gemini-2.5-flash", "-i", prompt})
	cmd.Env = append(cmd.Env, "TERM=xterm-256color")
	screen, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 40, Cols: 120})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it is killed
		_ = screen.Close()
	}()
	go func() { _, _ = io.Copy(io.Discard, screen) }()
	eventually.Within(t, clientLimit, "the command runs", func() bool {
		_, _ = screen.WriteString("\r") // allows the call once
		_, err := os.Stat(h.path("project/denied"))
		return err == nil
	})
}
