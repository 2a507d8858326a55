package realclients_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A home is a user's home directory, together with the mesh and the client that run there.
type home struct {
	dir    string
	sluice string
}

// newHome creates a home directory without a keychain. When the test ends, newHome's cleanup stops the mesh that runs
// in that directory.
func newHome(t *testing.T) *home {
	t.Helper()
	h := &home{dir: t.TempDir(), sluice: stack.Program(t, "sluice")}
	for _, dir := range []string{h.project(), filepath.Join(h.dir, "tmp")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { h.endMesh(t) })
	return h
}

func (h *home) project() string { return filepath.Join(h.dir, "project") }

func (h *home) env(more ...string) []string {
	return append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir, "TMPDIR=" + filepath.Join(h.dir, "tmp"), "NO_COLOR=1",
		"XDG_CONFIG_HOME=" + filepath.Join(h.dir, ".config"), "XDG_DATA_HOME=" + filepath.Join(h.dir, ".local", "share"),
		"DBUS_SESSION_BUS_ADDRESS=unix:path=" + filepath.Join(h.dir, "no-bus"),
	}, more...)
}

// mesh returns the process id in the file addresses.json, which a running mesh writes. If this file does not exist,
// mesh returns 0.
func (h *home) mesh(t *testing.T) (pid int) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.dir, ".local/share/sluice/addresses.json"))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	var mesh struct{ PID int }
	if err == nil {
		err = json.Unmarshal(raw, &mesh)
	}
	if err != nil {
		t.Fatal(err)
	}
	return mesh.PID
}

// endMesh stops the mesh if it is running, and waits until its process has exited.
func (h *home) endMesh(t *testing.T) {
	t.Helper()
	pid := h.mesh(t)
	if pid == 0 {
		return
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	eventually.Holds(t, "the mesh ends", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// write writes a file in the home directory.
func (h *home) write(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	stack.WriteFile(t, path, text)
}

// run runs a `sluice` command and returns its output. The test fails if the command fails.
func (h *home) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), h.sluice, args...)
	cmd.Dir, cmd.Env = h.dir, h.env()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

// approve waits until one call waits for a person's approval, and approves it. It returns true if it approved a call
// before done was closed.
func (h *home) approve(t *testing.T, done <-chan struct{}) bool {
	t.Helper()
	var open []struct {
		ID string `json:"id"`
	}
	eventually.Within(t, clientLimit, "a call waits for a person, or the client has ended", func() bool {
		select {
		case <-done:
			return true
		default:
		}
		if h.mesh(t) == 0 {
			return false // the client has not started it yet
		}
		list := h.run(t, "approvals", "list", "-o", "json")
		return json.Unmarshal([]byte(list), &open) == nil && len(open) == 1
	})
	if len(open) != 1 {
		return false
	}
	h.run(t, "approvals", "approve", open[0].ID, "--yes")
	return true
}

// clientLimit is the maximum duration of one run of a client.
const clientLimit = 2 * time.Minute

// client runs a client's command in the project, and returns its output.
func (h *home) client(ctx context.Context, env, command []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, clientLimit)
	defer cancel()
	if strings.HasSuffix(command[0], ".js") {
		command = append([]string{"node"}, command...)
	}
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env, cmd.WaitDelay = h.project(), h.env(env...), 5*time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}
