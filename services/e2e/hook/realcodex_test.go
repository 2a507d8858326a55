package hook_test

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/scripted"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// behindHook creates a home directory in which the hook of a client is installed. The hook runs the program through the
// symbolic link bin/sluice.
func behindHook(t *testing.T, c client, settings string) *home {
	t.Helper()
	needsClients(t)
	h := newHome(t)
	h.write(".config/sluice/policies/host-"+c.id+".yaml", commandPolicy(c))
	h.write("project/README", "")
	h.write(map[string]string{"codex": ".codex/config.toml", "gemini": ".gemini/settings.json"}[c.id], settings)
	h.must("hook", "install", c.id, "--yes")
	h.write("bin/README", "")
	if err := os.Symlink(h.program, h.path("bin/sluice")); err != nil {
		t.Fatal(err)
	}
	stack.ReplaceInFile(t, h.settings(c), h.program, h.path("bin/sluice"))
	return h
}

// settings returns the path of the file in which the client's hook is registered.
func (h *home) settings(c client) string {
	return h.path(map[string]string{"codex": ".codex/hooks.json", "gemini": ".gemini/settings.json"}[c.id])
}

// obeys checks that a client runs the calls that the policy allows and those that a person approves, and that its model
// receives the reasons why other calls are refused. It kills the mesh while the last call waits for a person's
// approval.
func (h *home) obeys(c client) {
	h.t.Helper()
	wait := h.begin(c, "passes", "denied", "waits", "killed")
	h.approveOne()
	eventually.Within(h.t, clientLimit, "the last call waits for a person", func() bool {
		return strings.Contains(h.run("", "approvals", "list", "-o", "json").stdout, "pending")
	})
	h.end(h.mesh(), syscall.SIGKILL)
	results := wait()
	for name, want := range map[string]bool{"passes": true, "denied": false, "waits": true, "killed": false} {
		h.ran(name, want)
	}
	for i, fragment := range map[int]string{1: "Denied by policy", 3: "ask the mesh"} {
		if !strings.Contains(results[i], fragment) {
			h.t.Errorf("the model reads %s, want %q", results[i], fragment)
		}
	}
	h.write(".config/sluice/sluice.yaml", stack.ReadFile(h.t, h.path(".config/sluice/sluice.yaml"))+"nonsense: 1\n")
	h.refuses(c, "error", "unknown key")
}

// runs checks that a client runs a call even though the policy denies it.
func (h *home) runs(c client, name string) {
	h.t.Helper()
	h.begin(c, name)()
	h.ran(name, true)
}

// Codex from npm runs the calls that the policy allows and those that a person approves. It does not run a call if the
// hook denies the call or reports an error.
func TestRealClients_CodexObeysTheHook(t *testing.T) {
	t.Parallel()
	h := behindHook(t, codex(), "")
	h.trustHooks()
	h.obeys(codex())
}

// Codex runs all calls if the hook is not trusted, changed, too slow, killed, missing or switched off.
func TestRealClients_CodexRunsAllCallsWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	h := behindHook(t, codex(), "")
	h.runs(codex(), "untrusted")
	h.trustHooks()
	h.refuses(codex(), "denied", "Denied by policy")
	h.runs(codex("--disable", "hooks"), "off")
	if err := os.Remove(h.path("bin/sluice")); err != nil {
		t.Fatal(err)
	}
	h.runs(codex(), "missing")
	h.write(".codex/hooks.json", `{"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "echo not today >&2; exit 2", "timeout": 300}]}]}}`)
	h.runs(codex(), "changed")
	h.trustHooks()
	h.refuses(codex(), "trusted", "not today")
	stack.ReplaceInFile(t, h.settings(codex()), "echo not today >&2; exit 2", "kill -KILL $$")
	h.trustHooks()
	h.runs(codex(), "crashed")
	stack.ReplaceInFile(t, h.settings(codex()), "kill -KILL $$", "sleep 60")
	stack.ReplaceInFile(t, h.settings(codex()), "300", "1")
	h.trustHooks()
	h.runs(codex(), "late")
}

// Codex is configured to ask its user about each call. If a person has approved a call in the mesh, the hook answers
// Codex's question. If the policy merely allows a call, Codex asks its user.
func TestRealClients_CodexAsksOnceAboutACall(t *testing.T) {
	t.Parallel()
	h := behindHook(t, codex(), "")
	h.trustHooks()
	m := scripted.New(t, codex().touch("waits"), codex().touch("passes"))
	s := h.codexServer(m)
	wait := s.begin(h.path("project"))
	h.approveOne()
	wait()
	h.ran("waits", true)
	h.ran("passes", false)
	if len(s.asked) != 1 || !strings.Contains(s.asked[0], "touch passes") {
		t.Errorf("Codex asks %q, want one question about `touch passes`", s.asked)
	}
}

// codeMode contains the flags that select a model for which Codex lets tools be called from JavaScript.
var codeMode = []string{"-c", `model="gpt-6.2-sol"`}

// Codex also runs the hook for calls that its model makes from JavaScript, and for patches.
func TestRealClients_CodexAsksTheHookInCodeMode(t *testing.T) {
	t.Parallel()
	c := codex(codeMode...)
	h := behindHook(t, c, "")
	h.trustHooks()
	script := func(name string) scripted.Call {
		return scripted.Call{Tool: "exec", Args: "try { text(await tools.exec_command({cmd: 'touch " + name + "'})) } catch (e) { text(String(e)) }"}
	}
	patch := scripted.Call{Tool: "exec", Args: "try { text(await tools.apply_patch('*** Begin Patch\\n*** Add File: patched\\n+a\\n*** End Patch\\n')) } catch (e) { text(String(e)) }"}
	results := h.beginCalls(c, script("passes"), script("denied"), patch)()
	h.ran("passes", true)
	h.ran("denied", false)
	h.ran("patched", false)
	for _, result := range results[1:] {
		if !strings.Contains(result, "Denied by policy") {
			t.Errorf("the model reads %s", result)
		}
	}
}

// Codex does not run the hook if the model writes to the standard input of a running command.
func TestRealClients_CodexFiresNoHookForInputOfACommand(t *testing.T) {
	t.Parallel()
	h := behindHook(t, codex(), "")
	h.trustHooks()
	session := regexp.MustCompile(`session ID (\d+)`)
	h.beginCalls(codex(), scripted.Call{Tool: "exec_command", Args: `{"cmd": "sh", "tty": true, "yield_time_ms": 250}`},
		scripted.Call{Tool: "write_stdin", ArgsFrom: func(result string) string {
			id := session.FindStringSubmatch(result)
			if id == nil {
				t.Errorf("the command does not run: %s", result)
				return "{}"
			}
			return `{"session_id": ` + id[1] + `, "chars": "touch denied; exit\n", "yield_time_ms": 10000}`
		}})()
	h.ran("denied", true)
}
