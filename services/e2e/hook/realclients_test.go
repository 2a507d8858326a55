package hook_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// commandPolicy returns a policy that allows some commands of a client, and requires approval for two others.
func commandPolicy(c client) string {
	return `version: 1
server: host-` + c.id + `
default: deny
rules:
  - name: passes
    match: {tool: ` + c.host + `}
    when: 'args.command in ["sh", "touch passes", "touch unasked", "touch closed", "touch error"]'
    action: allow
  - name: waits
    match: {tool: ` + c.host + `}
    when: 'args.command in ["touch waits", "touch killed"]'
    action: require_approval
`
}

// ran checks whether the command `touch NAME` has run. The parameter want is the expected result.
func (h *home) ran(name string, want bool) {
	h.t.Helper()
	if _, err := os.Stat(h.path("project/" + name)); (err == nil) != want {
		h.t.Errorf("touch %s ran: %v, want %v", name, err == nil, want)
	}
}

// Claude Code from npm runs the calls that the policy allows and those that a person approves. It runs nothing if the
// hook denies a call or can't answer.
func TestRealClients_ClaudeCodeObeysTheHook(t *testing.T) {
	t.Parallel()
	needsClients(t)
	h := newHome(t)
	h.write(".config/sluice/policies/host-claude-code.yaml", commandPolicy(claudeCode()))
	h.write("project/README", "")
	h.must("hook", "install", "claude-code", "--yes")

	wait := h.begin(claudeCode("Bash(touch passes)", "Bash(touch denied)", "Bash(touch killed)"), "passes", "denied", "unasked", "waits", "killed")
	h.approveOne()
	eventually.Within(t, clientLimit, "the last call waits for a person", func() bool {
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
}

// Claude Code from npm does not run a call if the hook is missing, too slow or killed, or if the hook can't reach a
// mesh. It runs all calls if hooks are switched off.
func TestRealClients_ClaudeCodeRunsNothingWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	needsClients(t)
	h := newHome(t)
	h.write(".config/sluice/policies/host-claude-code.yaml", commandPolicy(claudeCode()))
	h.write("project/README", "")
	h.must("hook", "install", "claude-code", "--yes")
	settings := stack.ReadFile(t, h.path(".claude/settings.json"))
	command, c := h.program+" hook claude-code", claudeCode("Bash(touch closed)", "Bash(touch off)")
	for _, tt := range []struct{ old, new, timeout, fragment string }{
		{h.program, h.program + "-that-is-missing", "300", `blocking because onFailure is \"block\"`},
		{command, "sleep 60 #", "1", "timed out; blocking"},
		{command, "kill -KILL $$ #", "300", "blocking because onFailure"},
	} {
		h.write(".claude/settings.json", strings.NewReplacer(tt.old, tt.new, "300", tt.timeout).Replace(settings))
		h.refuses(c, "closed", tt.fragment)
	}
	h.write(".claude/settings.json", strings.Replace(settings, "{", `{"disableAllHooks": true, `, 1))
	h.runs(c, "off")
	h.write(".claude/settings.json", settings)
	h.end(h.mesh(), syscall.SIGTERM)
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))+"nonsense: 1\n")
	h.refuses(c, "closed", "unknown key")
}

// Claude Code from npm runs the commands in a skill without a call to its tool Bash. It sends a separate event for
// these commands, and the hook evaluates that event.
func TestRealClients_ClaudeCodeAsksTheHookAboutCommandsInSkills(t *testing.T) {
	t.Parallel()
	needsClients(t)
	h := newHome(t)
	h.write(".config/sluice/policies/host-claude-code.yaml", commandPolicy(claudeCode()))
	h.must("hook", "install", "claude-code", "--yes")
	load := func(name string) {
		t.Helper()
		h.write("project/.claude/commands/load.md", "---\nallowed-tools: Bash(touch:*)\n---\n!`touch "+name+"`\n")
		c := claudeCode()
		c.args = func(string) []string { return []string{"-p", "/load"} }
		h.beginCalls(c)()
	}
	load("passes")
	h.ran("passes", true)
	load("denied")
	h.ran("denied", false)
	h.end(h.mesh(), syscall.SIGTERM)
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))+"nonsense: 1\n")
	load("closed")
	h.ran("closed", false)
	stack.ReplaceInFile(t, h.path(".claude/settings.json"), "PreSkillShellCommand", "FutureEvent")
	load("free")
	h.ran("free", true)
	h.refuses(claudeCode("Bash(touch closed)"), "closed", "unknown key") // an event that is not known has no effect
}

// refuses checks that a client does not run a call, and that its model receives a text that contains the string
// fragment.
func (h *home) refuses(c client, name, fragment string) {
	h.t.Helper()
	results := h.begin(c, name)()
	h.ran(name, false)
	if !strings.Contains(results[0], fragment) {
		h.t.Errorf("the model reads %s, want %q", results[0], fragment)
	}
}
