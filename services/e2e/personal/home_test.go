package personal_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A home is a user's home directory together with the programs that run there.
type home struct {
	t       *testing.T
	dir     string
	program string
	env     []string
}

// newHome creates a home directory without a keychain. When the test ends, newHome's cleanup stops the mesh that runs
// in that directory.
func newHome(t *testing.T) *home {
	t.Helper()
	dir := t.TempDir()
	h := &home{t: t, dir: dir, program: stack.Program(t, "sluice")}
	h.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + t.TempDir(),
		"XDG_CONFIG_HOME=" + filepath.Join(dir, ".config"), "XDG_DATA_HOME=" + filepath.Join(dir, ".local", "share"),
		"DBUS_SESSION_BUS_ADDRESS=unix:path=" + filepath.Join(dir, "no-bus"),
	}
	t.Cleanup(func() {
		if m, found := h.mesh(); found {
			h.end(m, syscall.SIGTERM)
		}
	})
	return h
}

func (h *home) data() string { return filepath.Join(h.dir, ".local", "share", "sluice") }

// A mesh contains the address and the process id that a running mesh has written to its data directory.
type mesh struct {
	MCP string
	PID int
}

// mesh returns the address and the process id in the file addresses.json. found is false if this file does not exist.
// A mesh removes the file when it stops, but a killed mesh leaves the file behind.
func (h *home) mesh() (m mesh, found bool) {
	h.t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.data(), "addresses.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return m, false
	}
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	return m, true
}

// end sends a signal to a mesh, and waits until its process has exited.
func (h *home) end(m mesh, signal syscall.Signal) {
	h.t.Helper()
	if err := syscall.Kill(m.PID, signal); err != nil {
		h.t.Fatal(err)
	}
	eventually.Holds(h.t, "the mesh ends", func() bool { return errors.Is(syscall.Kill(m.PID, 0), syscall.ESRCH) })
}

func (h *home) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		h.t.Fatal(err)
	}
	stack.WriteFile(h.t, path, text)
}

func (h *home) read(name string) string {
	h.t.Helper()
	return stack.ReadFile(h.t, filepath.Join(h.dir, name))
}

// run runs the program and returns its exit code and its output.
func (h *home) run(args ...string) (code int, out string) {
	h.t.Helper()
	cmd := exec.CommandContext(h.t.Context(), h.program, args...)
	cmd.Dir, cmd.Env = h.dir, h.env
	raw, err := cmd.CombinedOutput()
	if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		h.t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(raw)
}

// check runs the program, and checks that it exits with the given code and that its output contains all fragments.
func (h *home) check(code int, args []string, fragments ...string) string {
	h.t.Helper()
	got, out := h.run(args...)
	if got != code {
		h.t.Errorf("%v exits with %d, want %d:\n%s", args, got, code, out)
	}
	for _, want := range fragments {
		if !strings.Contains(out, want) {
			h.t.Errorf("%v does not print %q, but\n%s", args, want, out)
		}
	}
	return out
}

// connect starts the command from an entry in a client's configuration, as that client would, and connects to it.
func (h *home) connect(command string, args ...string) *mcp.ClientSession {
	h.t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir, cmd.Env = h.dir, h.env
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(h.t.Context(), &mcp.CommandTransport{Command: cmd, TerminateDuration: 5 * time.Second}, nil)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = session.Close() })
	return session
}

// call calls a tool and returns the text of the result.
func (h *home) call(s *mcp.ClientSession, tool string, args map[string]any) (text string, isError bool) {
	h.t.Helper()
	if args == nil {
		args = make(map[string]any)
	}
	result, err := s.CallTool(h.t.Context(), &mcp.CallToolParams{Name: tool, Arguments: args})
	if err != nil {
		h.t.Fatal(err)
	}
	raw, err := json.Marshal(result.Content)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(raw), result.IsError
}

// approveOne waits until an approval is pending, and approves it.
func (h *home) approveOne() {
	h.t.Helper()
	var open []struct {
		ID string `json:"id"`
	}
	eventually.Holds(h.t, "an approval is open", func() bool {
		code, out := h.run("approvals", "list", "-o", "json")
		return code == 0 && json.Unmarshal([]byte(out), &open) == nil && len(open) == 1
	})
	h.check(0, []string{"approvals", "approve", open[0].ID, "--yes"})
}
