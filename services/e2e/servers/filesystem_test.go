package servers_test

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

const filesPolicy = `version: 1
name: files
server: files
default: deny
tools:
  read_text_file: {action: allow}
  list_allowed_directories: {action: allow}
  write_file: {action: deny, reason: this agent only reads}
`

// A denied call to the official file system server changes nothing on disk.
func TestServerFilesystem_DeniedCallChangesNothingOnDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	note := filepath.Join(dir, "note.txt")
	stack.WriteFile(t, note, "Earl Grey")
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Servers: stack.StdioEntry(t, "files", npmtest.ServerFilesystem(t, dir)), Policy: filesPolicy,
	}))
	client := npmtest.StartClient(t, p.MCP("files"), stack.AgentToken)

	if got := client.CallTool(npmtest.ToolCall{Name: "read_text_file", Arguments: map[string]any{"path": note}}).ToolResult(t); got.IsError || got.Text() != "Earl Grey" {
		t.Errorf("an allowed read gave %+v", got)
	}
	for _, path := range []string{note, filepath.Join(dir, "new.txt")} {
		got := client.CallTool(npmtest.ToolCall{Name: "write_file", Arguments: map[string]any{"path": path, "content": "Oolong"}}).ToolResult(t)
		if d := stack.DecisionOf(t, got); !got.IsError || d.Code != "denied_by_rule" || got.Text() != "Denied by policy: this agent only reads" {
			t.Errorf("a denied write gave %s, decision %+v", got.Text(), d)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(note); err != nil || string(text) != "Earl Grey" || len(left) != 1 {
		t.Errorf("after two denied writes the folder holds %v, the file %q, %v", left, text, err)
	}
}

// Two principals never share a stdio server's process or its directory.
func TestStdio_PrincipalsDoNotShareProcesses(t *testing.T) {
	t.Parallel()
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		// The argument "." makes the server serve its process's working directory.
		Servers: stack.StdioEntry(t, "files", npmtest.ServerFilesystem(t, ".")), Policy: filesPolicy,
	}))
	mine := npmtest.StartClient(t, p.MCP("files"), stack.AgentToken)
	again := npmtest.StartClient(t, p.MCP("files"), stack.AgentToken)
	theirs := npmtest.StartClient(t, p.MCP("files"), stack.OtherToken)
	dir := func(c *npmtest.Client) string {
		t.Helper()
		text := c.CallTool(npmtest.ToolCall{Name: "list_allowed_directories"}).ToolResult(t).Text()
		_, path, ok := strings.Cut(text, "\n")
		if !ok || !filepath.IsAbs(path) {
			t.Fatalf("the server's allowed directories are %q", text)
		}
		return path
	}
	my, their := dir(mine), dir(theirs)
	if my == their || dir(again) != my {
		t.Errorf("two sessions of one principal have %s and %s, another principal %s", my, dir(again), their)
	}
	for _, path := range []string{my, their} {
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o700 || filepath.Dir(path) != filepath.Join(p.Dir, "data", "gateway", "servers", "files") {
			t.Errorf("the private folder %s: %v, %v", path, info, err)
		}
	}
	note := filepath.Join(my, "note.txt")
	stack.WriteFile(t, note, "Earl Grey")
	read := npmtest.ToolCall{Name: "read_text_file", Arguments: map[string]any{"path": note}}
	if got := again.CallTool(read).ToolResult(t); got.IsError || got.Text() != "Earl Grey" {
		t.Errorf("the same principal's file, in another session: %+v", got)
	}
	if got := theirs.CallTool(read).ToolResult(t); !got.IsError || strings.Contains(got.Text(), "Earl Grey") {
		t.Errorf("another principal's file: %+v", got)
	}
	pids := make(map[int]bool)
	for _, m := range regexp.MustCompile(`msg="server process started".* pid=(\d+)`).FindAllStringSubmatch(p.Stderr(), -1) {
		pid, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		pids[pid] = true
	}
	if len(pids) != 3 { // the gateway lists the tools with a third process
		t.Errorf("%d processes for three sessions of two principals and the gateway, want 3", len(pids))
	}
	if err := p.Stop(t); err != nil {
		t.Errorf("stopped with %v", err)
	}
	for pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("process %d still runs after the gateway has stopped: %v", pid, err)
		}
	}
}
