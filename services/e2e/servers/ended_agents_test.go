package servers_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// useOddServer creates an agent and makes it call the server "odd" once, so that the agent has a private directory for
// that server. It returns the agent's id.
func useOddServer(t *testing.T, p *stack.Process) (id string) {
	t.Helper()
	made := runAsOperator(t, p, "agents", "create", "--tool", "odd/raw")
	stack.CheckCommand(t, made, 0, made.Stdout)
	id = strings.TrimSpace(made.Stdout)
	line := `{"line":"{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}"}`
	said := runAsOperator(t, p, "agents", "prompt", id, "tool odd raw "+line)
	stack.CheckCommand(t, said, 0, said.Stdout)
	return id
}

// fillFolder writes 15 MiB to an agent's private directory. It also changes the modification time of the directory's
// marker file, so that the directory seems to have been unused for the given duration.
func fillFolder(t *testing.T, dir string, unused time.Duration) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "state"), bytes.Repeat([]byte{1}, 15<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	used := time.Now().Add(-unused)
	if err := os.Chtimes(dir+".agent", used, used); err != nil {
		t.Fatal(err)
	}
}

// The private directories of a person's ended agents share one limit. The gateway asks the wasmagent service which
// agents have ended.
func TestEndedAgents_FoldersOfOnePersonAreLimited(t *testing.T) {
	t.Parallel()
	s := stack.WriteConfig(t, stack.Options{Policy: allowAll, Servers: fmt.Sprintf(
		"  odd: {stdio: {command: [%q], env: {%s: \"1\"}, limits: {disk: 16MiB}}}\n  agents: {grpc: {target: wasmagent}}", os.Args[0], oddProgram)})
	p := stack.Start(t, s)
	idle, restorable := useOddServer(t, p), useOddServer(t, p)
	ended := runAsOperator(t, p, "agents", "terminate", restorable)
	stack.CheckCommand(t, ended, 0, ended.Stdout)
	p.Kill()

	root := filepath.Join(s.Dir, "data/gateway/servers/odd")
	marks, err := filepath.Glob(filepath.Join(root, "*.agent"))
	if err != nil || len(marks) != 2 {
		t.Fatalf("the marks of the agents' folders are %s, %v", marks, err)
	}
	mark, err := os.ReadFile(marks[0])
	if err != nil {
		t.Fatal(err)
	}
	mark = []byte(strings.NewReplacer(idle, "gone", restorable, "gone").Replace(string(mark))) // an agent that the wasmagent service does not know
	dir := func(i int) string { return filepath.Join(root, fmt.Sprint("gone-", i)) }
	for i := range 4 {
		if err := os.Mkdir(dir(i), 0o700); err != nil {
			t.Fatal(err)
		}
		stack.WriteFile(t, dir(i)+".agent", string(mark))
		fillFolder(t, dir(i), time.Duration(i+1)*time.Hour)
	}
	for _, m := range marks {
		fillFolder(t, strings.TrimSuffix(m, ".agent"), 100*time.Hour)
	}
	stack.Start(t, s)
	isGone := func(dir string) bool { _, err := os.Stat(dir); return os.IsNotExist(err) }
	eventually.Holds(t, "the oldest folders are removed", func() bool { return isGone(dir(2)) && isGone(dir(3)) })
	if isGone(dir(0)) || isGone(dir(1)) || isGone(strings.TrimSuffix(marks[0], ".agent")) || isGone(strings.TrimSuffix(marks[1], ".agent")) {
		t.Error("folders within the limit were removed, or those of agents that have not ended or can be restored")
	}
}
