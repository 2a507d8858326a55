package e2e_test

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

// Checks that the private folders of one person's ended agents have a common limit, and that the gateway learns from the
// wasmagent service which agents have ended.
func TestEndedAgents_FoldersOfOnePersonAreLimited(t *testing.T) {
	t.Parallel()
	s := stack.WriteConfig(t, stack.Options{Policy: allowAll, Servers: fmt.Sprintf(
		"  odd: {stdio: {command: [%q], env: {%s: \"1\"}, limits: {disk: 16MiB}}}\n  agents: {grpc: {target: wasmagent}}", os.Args[0], oddProgram)})
	p := stack.Start(t, s)
	var agents []string
	for range 2 {
		made := runAsOperator(t, p, "agents", "create", "--tool", "odd/raw")
		id := strings.TrimSpace(made.Stdout)
		checkCommand(t, made, 0, made.Stdout)
		agents = append(agents, id)
		line := `{"line":"{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}"}`
		said := runAsOperator(t, p, "agents", "prompt", id, "tool odd raw "+line)
		checkCommand(t, said, 0, said.Stdout)
	}
	ended := runAsOperator(t, p, "agents", "terminate", agents[1])
	checkCommand(t, ended, 0, ended.Stdout)
	p.Kill()

	root := filepath.Join(s.Dir, "data/gateway/servers/odd")
	marks, err := filepath.Glob(filepath.Join(root, "*.agent"))
	if err != nil || len(marks) != 2 {
		t.Fatalf("the marks of the agents' folders are %s, %v", marks, err)
	}
	fill := func(folder string, used time.Time) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(folder, "state"), bytes.Repeat([]byte{1}, 15<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(folder+".agent", used, used); err != nil {
			t.Fatal(err)
		}
	}
	mark, err := os.ReadFile(marks[0])
	if err != nil {
		t.Fatal(err)
	}
	var gone []string
	for i := range 4 { // agents that the wasmagent service does not know
		folder := filepath.Join(root, fmt.Sprint("gone-", i))
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, id := range agents {
			mark = bytes.ReplaceAll(mark, []byte(id), []byte("gone"))
		}
		writeFile(t, folder+".agent", string(mark))
		fill(folder, time.Now().Add(-time.Duration(i+1)*time.Hour))
		gone = append(gone, folder)
	}
	for _, m := range marks {
		fill(strings.TrimSuffix(m, ".agent"), time.Now().Add(-100*time.Hour))
	}
	stack.Start(t, s)
	isGone := func(folder string) bool { _, err := os.Stat(folder); return os.IsNotExist(err) }
	eventually.Holds(t, "the oldest folders are removed", func() bool { return isGone(gone[2]) && isGone(gone[3]) })
	if isGone(gone[0]) || isGone(gone[1]) {
		t.Error("folders within the limit were removed")
	}
	for _, m := range marks {
		if isGone(strings.TrimSuffix(m, ".agent")) {
			t.Error("the folder of an agent that has not ended, or that can be restored, was removed")
		}
	}
}
