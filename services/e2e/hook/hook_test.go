package hook_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

const settings = "{\n  // mine\n  \"hooks\": {\"PreToolUse\": [{\"matcher\": \"Bash\", \"hooks\": [{\"type\": \"command\", \"command\": \"true\"}]}]},\n}\n"

// A user installs the hook of Claude Code. Until the user removes the hook, the policy applies to the client's tool
// calls.
func TestClaudeCode_CallsFollowThePolicy(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".claude/settings.json", settings)
	if out := h.run("", "hook", "install", "claude-code"); out.code != 1 || !strings.Contains(out.stderr, "add --yes") ||
		!strings.Contains(out.stdout, `"timeout": 300`) || stack.ReadFile(t, h.path(".claude/settings.json")) != settings {
		t.Errorf("install without a terminal and without --yes: %+v", out)
	}
	h.must("hook", "install", "claude-code", "--yes")
	if again := h.must("hook", "install", "claude-code", "--yes"); !strings.Contains(again, "had the hook already") {
		t.Errorf("a second install: %s", again)
	}
	h.must("hook", "status", "claude-code")
	h.write("p/.claude/settings.local.json", `{"disableAllHooks": true}`)
	if out := h.run("", "hook", "status", "claude-code", "--project", h.path("p")); out.code != 1 {
		t.Errorf("the hook is not registered in the project: %+v", out)
	}
	h.write(".claude/settings.local.json", `{"disableAllHooks": true}`)
	if out := h.run("", "hook", "status", "claude-code"); out.code != 1 || !strings.Contains(out.stdout, "~/.claude/settings.local.json: calls pass without the mesh, because disableAllHooks is true") {
		t.Errorf("a project's settings switch off the hooks: %+v", out)
	}
	if err := os.Remove(h.path(".claude/settings.local.json")); err != nil {
		t.Fatal(err)
	}
	hook := func(event string, flags ...string) output {
		t.Helper()
		return h.run(event, append([]string{"hook", "claude-code"}, flags...)...)
	}

	h.silent("a command", hook(h.event("Bash", `{"command":"ls"}`)))
	h.denies("a command that can approve a call", hook(h.event("Bash", `{"command":"sluice approvals approve 0198b2c4 --yes"}`), "--hold", "1ms"), "names sluice")
	h.must("approvals", "deny", h.onlyApproval())
	h.silent("a file of the person", hook(h.event("Write", `{"file_path":"`+h.path("a.txt")+`","content":"a"}`)))
	for _, guarded := range []string{".claude/settings.json", ".config/sluice/policies/host-claude-code.yaml", ".config/x/../sluice/sluice.yaml", ".local/share/sluice/tokens/operator", ".claude/agents/a.md"} {
		h.denies(guarded, hook(h.event("Edit", `{"file_path":"`+h.path(guarded)+`","old_string":"a","new_string":"b"}`)), "belongs to Sluice")
	}
	h.denies("a token", hook(h.event("Read", `{"file_path":"`+h.path(".local/share/sluice/tokens/operator")+`"}`)), "tokens or secrets")
	h.silent("a policy", hook(h.event("Read", `{"file_path":"`+h.path(".config/sluice/policies/host-claude-code.yaml")+`"}`)))
	h.write("app/.claude/x", "")
	if err := os.Symlink(".claude", h.path("app/link")); err != nil {
		t.Fatal(err)
	}
	for _, project := range []string{"app/.claude/settings.local.json", "app/link/settings.json", h.path("other/.mcp.json"), ".claude/../.CODEX/config.toml"} {
		h.denies(project, hook(h.event("Write", `{"file_path":"`+project+`","content":"{}"}`)), "belongs to Sluice")
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

// A rate limit of the policy applies to the tools of a client. A call counts once, even if two hooks report it.
func TestCodex_LimitsAndPermissionRequests(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/policies/host-codex.yaml", "version: 1\nserver: host-codex\ndefault: deny\ntools:\n"+
		"  view_image: {action: allow, rate_limit: {max: 2, window: 600}}\n  Bash: {action: require_approval}\n")
	h.must("hook", "install", "codex", "--yes")
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
	h.end(h.mesh(), syscall.SIGTERM)
	h.chooseOtherMesh()
	h.denies("in an environment that names another mesh", h.run(h.event("apply_patch", `{"command":"x"}`), h.registered(".codex/hooks.json")...), "no rule allows this call")
	h.env = h.env[:len(h.env)-4]

	h.must("hook", "remove", "codex")
	if _, err := os.Stat(h.path(".codex/hooks.json")); err == nil {
		t.Error("hooks.json stays")
	}
}

// Gemini CLI has no hook output that approves a call. Therefore the hook prints nothing for a call that is allowed or
// approved, and the client's own rules apply to it. A call that needs an approval and does not get one is denied in
// JSON.
func TestGemini_ApprovedCallsAreLeftToTheClient(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/policies/host-gemini.yaml", "version: 1\nserver: host-gemini\ndefault: deny\ntools:\n"+
		"  run_shell_command: {action: require_approval}\n  read_file: {action: allow}\n")
	if out := h.must("hook", "install", "gemini", "--yes"); !strings.Contains(out, "folders that are not trusted") {
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

// Regardless of what goes wrong, the call is denied in a form that the client understands.
func TestHooks_DenyWhenSomethingFails(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.blocks("no mesh at all", h.run(h.event("Bash", `{"command":"ls"}`), "hook", "claude-code"), "you have no mesh")
	h.must("hook", "install", "claude-code", "--yes")
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

// The hook prints no decision for calls to MCP servers behind the mesh. It denies calls to other servers, even if their
// configuration entries look like the entries that Sluice writes.
func TestHooks_LeaveServersBehindTheMeshToTheMesh(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write(".config/sluice/sluice.yaml", `{listen: "127.0.0.1:0", grpc: "127.0.0.1:0", data: "`+h.path(".local/share/sluice")+`", servers: {notes: {stdio: {command: ["`+h.program+`", demo-server, --stdio]}}}}`)
	relay := func(command, rest string) string {
		return `{"command": "` + command + `", "args": ["stdio", "--server", "notes", "--as", "claude-code", "--config", "` + h.path(".config/sluice/sluice.yaml") + `"]` + rest + `}`
	}
	shared := func(command string) string {
		return `{"command": "` + command + `", "args": ["stdio", "--server", "notes", "--as", "claude-code"]}`
	}
	h.write("sluice-evil", "#!/bin/sh\nexit 1\n")
	h.write(".claude.json", `{"mcpServers": {"my notes": `+relay(h.program, "")+`, "evil": `+relay(h.path("sluice-evil"), "")+`,
		"other mesh": `+relay(h.program, `, "env": {"XDG_CONFIG_HOME": "/tmp/x"}`)+`, "claude.ai Gmail": `+relay(h.program, "")+`,
		"other arguments": {"command": "`+h.program+`", "args": ["stdio", "--config", "/tmp/x.yaml", "--as", "claude-code"]},
		"unknown": {"command": "`+h.program+`", "args": ["stdio", "--server", "gone", "--as", "claude-code", "--config", "`+h.path(".config/sluice/sluice.yaml")+`"]},
		"of the environment": `+shared(h.program)+`,
		"direct": {"command": "npx"}, "off": {"command": "npx", "disabled": true}, "both": `+relay(h.program, "")+`},
		"projects": {"/elsewhere": {"mcpServers": {"my notes": {"command": "npx"}}}}}`)
	h.write("app/.mcp.json", `{"mcpServers": {"both": {"command": "npx"}, "shared": `+shared("sluice")+`, "cloned": `+shared("./sluice-evil")+`, "plugin_x_y": `+shared(h.program)+`}}`)
	event := func(tool string) string {
		return strings.Replace(h.event(tool, `{}`), `"cwd":"`+h.dir, `"cwd":"`+h.path("app/src"), 1)
	}
	path := os.Getenv("PATH") // it contains the program
	h.env[0] = "PATH=/usr/bin:/bin"
	h.silent("wrapped", h.run(event("mcp__my_notes__list"), "hook", "claude-code"))
	for tool, reason := range map[string]string{
		"direct": "sluice init claude-code", "both": "without the mesh", "evil": "and not this program", "other_mesh": "XDG_CONFIG_HOME", "other_arguments": "does not name the configuration", "of_the_environment": "does not name the configuration",
		"unknown": `does not have`, "shared": "not in PATH", "cloned": "not an absolute path", "plugin_x_y": "plugin", "claude_ai_Gmail": "account", "missing": "not in the files",
	} {
		h.denies(tool, h.run(event("mcp__"+tool+"__list"), "hook", "claude-code"), reason)
	}
	read := func(server string) string {
		return strings.Replace(event("ReadMcpResourceTool"), `"tool_input":{}`, `"tool_input":{"server":"`+server+`","uri":"n://1"}`, 1)
	}
	h.silent("a resource of a wrapped server", h.run(read("my notes"), "hook", "claude-code"))
	for server, reason := range map[string]string{"direct": "sluice init claude-code", "plugin:x:y": "plugin", "evil": "and not this program"} {
		h.denies("a resource of "+server, h.run(read(server), "hook", "claude-code"), reason)
	}
	h.env[0] = "PATH=" + filepath.Dir(h.program) + ":" + path
	h.silent("shared, with the program in PATH", h.run(event("mcp__shared__list"), "hook", "claude-code"))
	if h.mesh() != 0 {
		t.Error("calls of MCP servers start the mesh")
	}
}

// Gemini CLI sends the server's name and command in the event. Both must match the configuration entry of a server
// behind the mesh.
func TestHooks_CompareTheCommandOfGeminiWithTheEntry(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.must("hook", "install", "gemini", "--yes")
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(t, h.path(".config/sluice/sluice.yaml"))+`servers: {notes: {stdio: {command: ["`+h.program+`", demo-server, --stdio]}}}`+"\n")
	args := `["stdio","--server","notes","--as","gemini","--config","` + h.path(".config/sluice/sluice.yaml") + `"]`
	h.write(".gemini/settings.json", `{"mcpServers": {"n": {"command": "`+h.program+`", "args": `+args+`}}}`)
	event := func(name, command, args string) string {
		return `{"hook_event_name":"BeforeTool","tool_name":"mcp_n_list","tool_input":{},"mcp_context":{"server_name":"` + name + `","tool_name":"list","command":"` + command + `","args":` + args + `}}`
	}
	h.silent("behind the mesh", h.run(event("n", h.program, args), "hook", "gemini"))
	for name, text := range map[string]string{
		"another program": event("n", "/usr/bin/sluice", args), "other arguments": event("n", h.program, `["stdio"]`), "no command": event("n", "", "[]"), "another name": event("m", h.program, args),
	} {
		if out := h.run(text, "hook", "gemini"); !strings.Contains(out.stdout, `"decision":"deny"`) {
			t.Errorf("%s: %+v", name, out)
		}
	}
}

// One of a project's files is a device that never ends, or a pipe without a writer. The hook denies the call at once. A
// hook that receives a signal while it reads its input exits with code 2.
func TestHooks_DenyAtOnceIfAFileCannotBeRead(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.write("pipe/x", "")
	h.write("zero/x", "")
	if err := syscall.Mkfifo(h.path("pipe/.mcp.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", h.path("zero/.mcp.json")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"pipe", "zero"} {
		event := strings.Replace(h.event("mcp__n__list", `{}`), `"cwd":"`+h.dir, `"cwd":"`+h.path(dir), 1)
		h.blocks(dir, h.run(event, "hook", "claude-code"), "not a regular file")
	}
	cmd := exec.CommandContext(t.Context(), h.program, "hook", "claude-code")
	cmd.Env, cmd.Dir = h.env, h.dir
	in, err := cmd.StdinPipe() // stays open
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write(make([]byte, 1<<17)); err != nil { // more than a pipe holds, so the hook reads it
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the exit code is compared
	h.blocks("stopped", output{cmd.ProcessState.ExitCode(), "", stderr.String()}, "the hook was stopped")
}
