package hook_test

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const settings = "{\n  // mine\n  \"hooks\": {\"PreToolUse\": [{\"matcher\": \"Bash\", \"hooks\": [{\"type\": \"command\", \"command\": \"true\"}]}]},\n}\n"

// A person installs the hook of Claude Code, and policy decides about calls to the client's tools until the person
// removes the hook.
func TestClaudeCode_CallsFollowThePolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".claude/settings.json", settings)
	h.must("hook", "install", "claude-code")
	if again := h.must("hook", "install", "claude-code"); !strings.Contains(again, "had the hook already") {
		t.Errorf("a second install: %s", again)
	}
	h.must("hook", "status", "claude-code")
	hook := func(event string, flags ...string) output {
		t.Helper()
		return h.run(event, append([]string{"hook", "claude-code"}, flags...)...)
	}

	h.silent("a command", hook(h.event("Bash", `{"command":"ls"}`)))
	h.denies("a command that can approve a call", hook(h.event("Bash", `{"command":"sluice approvals approve 0198b2c4 --yes"}`), "--hold", "1ms"), "names sluice")
	h.must("approvals", "deny", h.onlyApproval())
	h.silent("a file of the person", hook(h.event("Write", `{"file_path":"`+h.path("a.txt")+`","content":"a"}`)))
	for _, guarded := range []string{".claude/settings.json", ".config/sluice/policies/host-claude-code.yaml", ".config/x/../sluice/sluice.yaml", ".local/share/sluice/tokens/operator"} {
		h.denies(guarded, hook(h.event("Edit", `{"file_path":"`+h.path(guarded)+`","old_string":"a","new_string":"b"}`)), "belongs to Sluice")
	}
	records := h.must("decisions", "tail", "-o", "json")
	if !strings.Contains(records, "host_executed") && !strings.Contains(records, "HOST_EXECUTED") {
		t.Errorf("no record says that the client executes a call:\n%s", records)
	}

	_, wait := h.start(h.event("Rocket", `{"to":"moon"}`), "hook", "claude-code")
	h.approveOne()
	if out := wait(); !strings.Contains(out.stdout, `"permissionDecision":"allow"`) {
		t.Errorf("approved while it waits: %+v", out)
	}
	h.denies("no person decides", hook(h.event("Rocket", `{"to":"mars"}`), "--hold", "1ms"), "The approval's id is ")
	h.approveOne()
	if out := hook(h.event("Rocket", `{"to":"mars"}`), "--hold", "1ms"); !strings.Contains(out.stdout, `"permissionDecision":"allow"`) {
		t.Errorf("repeated after the approval: %+v", out)
	}
	h.denies("repeated twice", hook(h.event("Rocket", `{"to":"mars"}`), "--hold", "1ms"), "a person must approve this call")

	h.must("hook", "remove", "claude-code")
	if got := stack.ReadFile(t, h.path(".claude/settings.json")); got != settings {
		t.Errorf("the settings after remove:\n%s", got)
	}
	if out := h.run("", "hook", "status", "claude-code"); out.code != 1 {
		t.Errorf("status after remove: %+v", out)
	}
}

// A limit of the policy holds for the tools of a client, and counts a call once.
func TestCodex_LimitsAndPermissionRequests(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/policies/host-codex.yaml", "version: 1\nserver: host-codex\ndefault: deny\ntools:\n"+
		"  view_image: {action: allow, rate_limit: {max: 2, window: 600}}\n  Bash: {action: require_approval}\n")
	h.must("hook", "install", "codex")
	if raw := stack.ReadFile(t, h.path(".codex/hooks.json")); strings.Count(raw, "hook codex") != 2 {
		t.Errorf("hooks.json is\n%s", raw)
	}
	first := h.event("view_image", `{"path":"a.png"}`)
	h.silent("the first", h.run(first, "hook", "codex"))
	h.silent("the first, by a second hook", h.run(first, "hook", "codex"))
	h.silent("the second", h.run(h.event("view_image", `{"path":"a.png"}`), "hook", "codex"))
	h.denies("the third", h.run(h.event("view_image", `{"path":"a.png"}`), "hook", "codex"), "Rate limit reached")
	h.denies("a tool without an entry", h.run(h.event("apply_patch", `{"command":"x"}`), "hook", "codex"), "no rule allows this call")

	permission := strings.Replace(h.event("Bash", `{"command":"make","description":"why"}`), "PreToolUse", "PermissionRequest", 1)
	h.silent("before an approval", h.run(permission, "hook", "codex"))
	_, wait := h.start(h.event("Bash", `{"command":"make"}`), "hook", "codex")
	h.approveOne()
	h.silent("Codex has no allow before a call", wait())
	if out := h.run(permission, "hook", "codex"); out.stdout != `{"hookSpecificOutput":{"hookEventName":"PermissionRequest","decision":{"behavior":"allow"}}}`+"\n" {
		t.Errorf("after the approval: %+v", out)
	}
	h.silent("an approval counts once", h.run(permission, "hook", "codex"))
	h.must("hook", "remove", "codex")
	if _, err := os.Stat(h.path(".codex/hooks.json")); err == nil {
		t.Error("hooks.json stays")
	}
}

// Gemini CLI has no output for an approved call: its own rules apply to it. A call without an approval is denied in JSON.
func TestGemini_ApprovedCallsAreLeftToTheClient(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/policies/host-gemini.yaml", "version: 1\nserver: host-gemini\ndefault: deny\ntools:\n"+
		"  run_shell_command: {action: require_approval}\n  read_file: {action: allow}\n")
	if out := h.must("hook", "install", "gemini"); !strings.Contains(out, "folders that are not trusted") {
		t.Errorf("install does not print where Gemini CLI fires no hook: %s", out)
	}
	event := func(tool, input string) string {
		return `{"session_id":"s1","cwd":"` + h.dir + `","hook_event_name":"BeforeTool","tool_name":"` + tool + `","tool_input":` + input + `}`
	}
	denied := func(what string, o output, fragment string) {
		t.Helper()
		if o.code != 0 || o.stderr != "" || !strings.HasPrefix(o.stdout, `{"decision":"deny","reason":"`) || !strings.Contains(o.stdout, fragment) {
			t.Errorf("%s: %+v, want a denial with %q", what, o, fragment)
		}
	}
	h.silent("allowed", h.run(event("read_file", `{"file_path":"a"}`), "hook", "gemini"))
	denied("no rule", h.run(event("write_file", `{"file_path":"a","content":"b"}`), "hook", "gemini"), "no rule allows this call")
	_, wait := h.start(event("run_shell_command", `{"command":"make"}`), "hook", "gemini")
	h.approveOne()
	h.silent("approved while it waits", wait())
	test := event("run_shell_command", `{"command":"make test"}`)
	denied("no person decides", h.run(test, "hook", "gemini", "--hold", "1ms"), "The approval's id is ")
	h.approveOne()
	h.silent("repeated after the approval", h.run(test, "hook", "gemini", "--hold", "1ms"))
	denied("repeated twice", h.run(test, "hook", "gemini", "--hold", "1ms"), "a person must approve this call")
}

// Whatever goes wrong, the call is denied in the way that the client understands.
func TestHooks_DenyWhenSomethingFails(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.blocks("no mesh at all", h.run(h.event("Bash", `{"command":"ls"}`), "hook", "claude-code"), "you have no mesh")
	h.must("hook", "install", "claude-code")
	for _, text := range []string{"", "{", "null", `{"hook_event_name":"PreToolUse","tool_name":"Bash"}`} {
		h.blocks("the input "+text, h.run(text, "hook", "claude-code"), "standard input")
		if out := h.run(text, "hook", "gemini"); !strings.HasPrefix(out.stdout, `{"decision":"deny","reason":`) {
			t.Errorf("the input %q of Gemini CLI: %+v", text, out)
		}
	}
	h.blocks("a large event", h.run(h.event("Bash", `{"command":"`+strings.Repeat("x", 9<<20)+`"}`), "hook", "claude-code"), "8 MiB")
	h.blocks("another client", h.run("{}", "hook", "cursor"), "not one of")
	h.blocks("an unknown flag", h.run("{}", "hook", "claude-code", "--nonsense"), "nonsense")

	_, wait := h.start(h.event("Rocket", `{}`), "hook", "claude-code")
	eventually.Holds(t, "the call waits for a person", func() bool {
		return strings.Contains(h.run("", "approvals", "list", "-o", "json").stdout, `"other"`)
	})
	h.end(h.mesh(), syscall.SIGKILL)
	h.blocks("the mesh is killed while a call waits", wait(), "ask the mesh")
	h.silent("the next call starts another mesh", h.run(h.event("Bash", `{"command":"ls"}`), "hook", "claude-code"))

	h.end(h.mesh(), syscall.SIGTERM)
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))+"nonsense: 1\n")
	h.blocks("the mesh can't start", h.run(h.event("Bash", `{"command":"ls"}`), "hook", "claude-code"), "nonsense")
}

// The mesh decides about tools of MCP servers behind it. Tools of other servers are denied.
func TestHooks_LeaveServersBehindTheMeshToTheMesh(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".claude.json", `{"mcpServers": {"my notes": {"command": "/bin/sluice", "args": ["stdio", "--server", "notes", "--as", "claude-code"]},
		"direct": {"command": "npx"}, "off": {"command": "npx", "disabled": true}, "both": {"command": "/bin/sluice", "args": ["stdio"]}},
		"projects": {"/elsewhere": {"mcpServers": {"my notes": {"command": "npx"}}}}}`)
	h.write("app/.mcp.json", `{"mcpServers": {"both": {"command": "npx"}}}`)
	event := func(tool string) string {
		return strings.Replace(h.event(tool, `{}`), `"cwd":"`+h.dir, `"cwd":"`+h.path("app/src"), 1)
	}
	h.silent("wrapped", h.run(event("mcp__my_notes__list"), "hook", "claude-code"))
	h.denies("direct", h.run(event("mcp__direct__list"), "hook", "claude-code"), "sluice init claude-code")
	h.denies("wrapped for the person, direct in the project", h.run(event("mcp__both__list"), "hook", "claude-code"), "without the mesh")
	h.denies("a plugin", h.run(event("mcp__plugin_x_y__list"), "hook", "claude-code"), "not in the files")
	gemini := func(command string) string {
		return `{"hook_event_name":"BeforeTool","tool_name":"mcp_n_list","tool_input":{},"mcp_context":{"server_name":"n","tool_name":"list","command":"` + command + `","args":["stdio"]}}`
	}
	h.silent("wrapped in Gemini CLI", h.run(gemini("/usr/bin/sluice"), "hook", "gemini"))
	if out := h.run(gemini("npx"), "hook", "gemini"); !strings.Contains(out.stdout, `"decision":"deny"`) {
		t.Errorf("direct in Gemini CLI: %+v", out)
	}
	if h.mesh() != 0 {
		t.Error("calls of MCP servers start the mesh")
	}
}
