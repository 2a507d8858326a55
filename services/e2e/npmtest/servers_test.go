package npmtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

// start starts a stdio server in a new directory, with only PATH and HOME in its environment, and connects to it.
func start(t *testing.T, command []string) *mcp.ClientSession {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"PATH=" + filepath.Dir(command[0]) + ":/usr/bin:/bin", "HOME=" + t.TempDir()}
	client := mcp.NewClient(&mcp.Implementation{Name: "npmtest", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatalf("start %v: %v", command, err)
	}
	t.Cleanup(func() { _ = session.Close() }) // no assertion follows
	return session
}

func callTool(t *testing.T, session *mcp.ClientSession, name string, args map[string]any) (text string, failed bool) {
	t.Helper()
	res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("call %s: %v", name, err)
	}
	return res.Content[0].(*mcp.TextContent).Text, res.IsError
}

func TestClaudeFlow_Starts(t *testing.T) {
	t.Parallel()
	session := start(t, npmtest.ClaudeFlow(t))
	tools := 0
	for _, err := range session.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		tools++
	}
	if tools != 353 {
		t.Errorf("%d tools, want 353", tools)
	}
	created, _ := callTool(t, session, "wasm_agent_create", map[string]any{})
	if !strings.Contains(created, "wasm-agent-1") {
		t.Errorf("no agent was created: is @ruvector/rvagent-wasm installed? %s", created)
	}
}

func TestServerFilesystem_Starts(t *testing.T) {
	t.Parallel()
	open, closed := t.TempDir(), t.TempDir()
	for _, dir := range []string{open, closed} {
		if err := os.WriteFile(filepath.Join(dir, "note.txt"), []byte("Earl Grey"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	session := start(t, npmtest.ServerFilesystem(t, open))
	if text, failed := callTool(t, session, "read_text_file", map[string]any{"path": filepath.Join(open, "note.txt")}); failed || text != "Earl Grey" {
		t.Errorf("a file in the folder reads %q, failed %v", text, failed)
	}
	if text, failed := callTool(t, session, "read_text_file", map[string]any{"path": filepath.Join(closed, "note.txt")}); !failed {
		t.Errorf("a file outside the folder reads %q", text)
	}
}
