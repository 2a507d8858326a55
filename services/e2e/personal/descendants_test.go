package personal_test

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// When Copilot CLI and OpenCode exit, they terminate all descendants of their servers. A mesh that one of these servers
// has started keeps running for other clients.
func TestStdio_TheMeshIsNotItsDescendant(t *testing.T) {
	t.Parallel()
	h := newOwnMesh(t)
	cmd := exec.Command(h.program, "stdio", "--server", "notes", "--as", "cursor")
	cmd.Dir, cmd.Env = h.dir, h.env
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	m, found := h.mesh()
	if !found {
		t.Fatal("no mesh runs")
	}
	for pid := m.PID; pid > 1; pid = parentOf(t, pid) {
		if pid == cmd.Process.Pid {
			t.Fatalf("the mesh %d is a descendant of stdio, which is %d", m.PID, pid)
		}
	}
}

func parentOf(t *testing.T, pid int) (parent int) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ps", "-o", "ppid=", "-p", fmt.Sprint(pid)).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &parent)
	}
	if err != nil {
		t.Fatalf("read the parent of %d: %v", pid, err)
	}
	return parent
}
