package hook_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A home is a user's home directory.
type home struct {
	t       *testing.T
	dir     string
	program string
	env     []string
	calls   int
}

// newHome creates a home directory without a keychain. When the test ends, newHome's cleanup stops the mesh that runs
// in that directory.
func newHome(t *testing.T) *home {
	t.Helper()
	dir := t.TempDir()
	h := &home{t: t, dir: dir, program: stack.Program(t, "sluice")}
	h.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + t.TempDir(), "CODEX_HOME=" + filepath.Join(dir, ".codex"),
		"XDG_CONFIG_HOME=" + filepath.Join(dir, ".config"), "XDG_DATA_HOME=" + filepath.Join(dir, ".local", "share"),
		"DBUS_SESSION_BUS_ADDRESS=unix:path=" + filepath.Join(dir, "no-bus"),
	}
	t.Cleanup(func() {
		if pid := h.mesh(); pid > 0 {
			h.end(pid, syscall.SIGTERM)
		}
	})
	return h
}

// mesh returns the process id of the mesh, or 0 if no mesh is running.
func (h *home) mesh() int {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.dir, ".local", "share", "sluice", "addresses.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0
	}
	var m struct{ PID int }
	if err != nil || json.Unmarshal(raw, &m) != nil {
		h.t.Fatalf("%s: %v", raw, err)
	}
	return m.PID
}

func (h *home) end(pid int, signal syscall.Signal) {
	h.t.Helper()
	if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		h.t.Fatal(err)
	}
	eventually.Holds(h.t, "the mesh ends", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func (h *home) path(name string) string { return filepath.Join(h.dir, name) }

func (h *home) write(name, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(h.path(name)), 0o700); err != nil {
		h.t.Fatal(err)
	}
	stack.WriteFile(h.t, h.path(name), text)
}

// An output is what the program printed, together with its exit code.
type output struct {
	code           int
	stdout, stderr string
}

func (h *home) start(input string, args ...string) (*exec.Cmd, func() output) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = h.dir, h.env, strings.NewReader(input), &stdout, &stderr
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	return cmd, func() output {
		err := cmd.Wait()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			h.t.Fatal(err)
		}
		return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	}
}

func (h *home) run(input string, args ...string) output {
	h.t.Helper()
	_, wait := h.start(input, args...)
	return wait()
}

// must calls run with the given arguments and returns what the program printed. The test fails if the program fails.
func (h *home) must(args ...string) string {
	h.t.Helper()
	out := h.run("", args...)
	if out.code != 0 {
		h.t.Fatalf("%v: %+v", args, out)
	}
	return out.stdout
}

// event returns an event that Claude Code or Codex sends before a call, with a new id.
func (h *home) event(tool, input string) string {
	h.calls++
	return fmt.Sprintf(`{"session_id":"s1","turn_id":"t1","cwd":%q,"hook_event_name":"PreToolUse","tool_name":%q,"tool_input":%s,"tool_use_id":"call-%d"}`, h.dir, tool, input, h.calls)
}

// denial returns the reason with which an output of Claude Code or Codex denies a call, or "" if the output does not
// deny the call.
func (o output) denial() string {
	var got struct {
		Output struct {
			Decision string `json:"permissionDecision"`
			Reason   string `json:"permissionDecisionReason"`
		} `json:"hookSpecificOutput"`
	}
	if o.code == 0 && json.Unmarshal([]byte(o.stdout), &got) == nil && got.Output.Decision == "deny" {
		return got.Output.Reason
	}
	return ""
}

// approveOne waits until exactly one approval is pending, and approves it.
func (h *home) approveOne() {
	h.t.Helper()
	h.must("approvals", "approve", h.onlyApproval(), "--yes")
}

// onlyApproval waits until exactly one approval is pending, and returns its id. A real client may need some time before
// it makes a call.
func (h *home) onlyApproval() string {
	h.t.Helper()
	var open []struct {
		ID string `json:"id"`
	}
	eventually.Within(h.t, clientLimit, "an approval is open", func() bool {
		out := h.run("", "approvals", "list", "-o", "json")
		return out.code == 0 && json.Unmarshal([]byte(out.stdout), &open) == nil && len(open) == 1
	})
	return open[0].ID
}

// silent checks that an output is empty, which leaves the decision to the client.
func (h *home) silent(what string, o output) {
	h.t.Helper()
	if o != (output{}) {
		h.t.Errorf("%s: %+v", what, o)
	}
}

// denies checks that an output denies a call, and that the reason contains the string fragment.
func (h *home) denies(what string, o output, fragment string) {
	h.t.Helper()
	if reason := o.denial(); reason == "" || !strings.Contains(reason, fragment) {
		h.t.Errorf("%s: %+v, want a denial with %q", what, o, fragment)
	}
}

// blocks checks that an output blocks a call because the hook could not have it evaluated.
func (h *home) blocks(what string, o output, fragment string) {
	h.t.Helper()
	if o.code != 2 || o.stdout != "" || !strings.Contains(o.stderr, fragment) {
		h.t.Errorf("%s: %+v, want exit code 2 with %q", what, o, fragment)
	}
}
