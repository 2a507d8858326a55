package hook_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// claudePolicy allows three commands, and holds two others for a person.
const claudePolicy = `version: 1
server: host-claude-code
default: deny
rules:
  - name: passes
    match: {tool: Bash}
    when: 'args.command in ["touch passes", "touch unasked", "touch closed"]'
    action: allow
  - name: waits
    match: {tool: Bash}
    when: 'args.command in ["touch waits", "touch killed"]'
    action: require_approval
`

// claude runs Claude Code with a model that asks for these calls. Its own rules allow the commands in rules. It returns
// the results of the calls.
func (h *home) claude(rules []string, calls ...toolCall) func() []string {
	h.t.Helper()
	modules := os.Getenv("SLUICE_TEST_CLIENTS")
	ctx, cancel := context.WithTimeout(h.t.Context(), 2*time.Minute)
	m := &model{t: h.t, calls: calls}
	args := append([]string{"-p", "go", "--allowedTools"}, rules...)
	cmd := exec.CommandContext(ctx, filepath.Join(modules, "@anthropic-ai/claude-code-linux-x64/claude"), args...)
	cmd.Dir, cmd.WaitDelay = h.path("project"), 5*time.Second
	cmd.Env = append(slices.Clone(h.env), "ANTHROPIC_BASE_URL="+m.serve(), "ANTHROPIC_API_KEY=none", "DISABLE_AUTOUPDATER=1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1")
	var printed strings.Builder
	cmd.Stdout, cmd.Stderr = &printed, &printed
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return func() []string {
		h.t.Helper()
		defer cancel()
		err := cmd.Wait()
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil || len(m.results) != len(calls) {
			h.t.Fatalf("Claude Code made %d of %d calls: %v: %s", len(m.results), len(calls), err, printed.String())
		}
		return m.results
	}
}

// ran checks whether the command `touch NAME` has run.
func (h *home) ran(name string, want bool) {
	h.t.Helper()
	if _, err := os.Stat(h.path("project/" + name)); (err == nil) != want {
		h.t.Errorf("touch %s ran: %v, want %v", name, err == nil, want)
	}
}

// Claude Code from npm runs what policy allows, and what a person approves. It runs nothing if the hook denies a call
// or can't answer.
func TestRealClients_ClaudeCodeObeysTheHook(t *testing.T) {
	t.Parallel()
	if os.Getenv("SLUICE_TEST_CLIENTS") == "" {
		t.Skip("run make test-clients, which sets SLUICE_TEST_CLIENTS")
	}
	h := newHome(t)
	h.write(".config/sluice/policies/host-claude-code.yaml", claudePolicy)
	h.write("project/README", "")
	h.must("hook", "install", "claude-code", "--yes")

	wait := h.claude([]string{"Bash(touch passes)", "Bash(touch denied)", "Bash(touch killed)"},
		command("touch passes"), command("touch denied"), command("touch unasked"), command("touch waits"), command("touch killed"))
	h.approveOne()
	eventually.Holds(t, "the last call waits for a person", func() bool {
		return strings.Contains(h.run("", "approvals", "list", "-o", "json").stdout, "pending")
	})
	h.end(h.mesh(), syscall.SIGKILL)
	results := wait()
	for name, want := range map[string]bool{"passes": true, "denied": false, "unasked": false, "waits": true, "killed": false} {
		h.ran(name, want)
	}
	for i, fragment := range map[int]string{1: "Denied by policy", 2: "needs approval", 4: "ask the mesh"} {
		if !strings.Contains(results[i], fragment) {
			t.Errorf("the model reads %s, want %q", results[i], fragment)
		}
	}

	closed := func(fragment string) {
		t.Helper()
		results := h.claude([]string{"Bash(touch closed)"}, command("touch closed"))()
		h.ran("closed", false)
		if !strings.Contains(results[0], fragment) {
			t.Errorf("the model reads %s, want %q", results[0], fragment)
		}
	}
	settings := stack.ReadFile(t, h.path(".claude/settings.json"))
	h.write(".claude/settings.json", strings.Replace(settings, h.program, h.program+"-that-is-missing", 1))
	closed(`blocking because onFailure is \"block\"`)
	h.write(".claude/settings.json", strings.NewReplacer(h.program+" hook claude-code", "sleep 60", "300", "1").Replace(settings))
	closed("timed out; blocking")
	h.write(".claude/settings.json", settings)
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))+"nonsense: 1\n")
	closed("unknown key")
}
