//go:build linux

package limits_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// smallDisk is a shell command that mounts a file system of 96 MiB and 20,000 files for the mesh's data. It is
// unmounted when the mesh exits.
const smallDisk = `mount -t tmpfs -o size=96m,nr_inodes=20000 none "$DATA"`

// Case X20. A stdio server that fills its private directory is terminated. Meanwhile, calls to other servers succeed
// and are recorded.
func TestLimits_ServerThatFillsItsFolderIsEnded(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"one-file", "unlinked", "small-files", "nested"} {
		t.Run(kind, func(t *testing.T) {
			m := startLimitedMesh(t, "disk: 32MiB", "", smallDisk)
			m.checkOthersServe() // adds the other server's tools to the catalog, which takes disk space
			done := make(chan string)
			go func() { done <- m.callOtherServer(40) }()
			m.checkNamesLimit(m.attack(kind), "disk")
			if refused := <-done; refused != "" {
				t.Error("a call of another server during the attack returns " + refused)
			}
			m.checkOthersServe()
			m.checkStatus("servers.attacker.stdio.limits.disk")
		})
	}
}

// callOtherServer calls another server n times. It returns the first unexpected response, or "" if there is none.
func (m *mesh) callOtherServer(n int) string {
	c := stack.NewClient(m.t, m.MCP("other"), stack.OtherToken)
	if err := c.Open(); err != nil {
		return err.Error()
	}
	for range n {
		got, err := c.TryPost([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"fine","arguments":{}}}`))
		if err != nil || !strings.Contains(string(got.Body), `"fine"`) {
			return fmt.Sprintf("%s %v", got.Body, err)
		}
	}
	return ""
}

// Case X20. A server is not terminated because of a sparse file, which uses no blocks.
func TestLimits_SparseFileCountsOnlyItsBlocks(t *testing.T) {
	t.Parallel()
	m := startLimitedMesh(t, "disk: 32MiB", "", "")
	if got := m.attack("sparse").Text(t); got != "did all of it" {
		t.Errorf("the attack returns %s", got)
	}
	if got := m.attack("file:8").Text(t); got != "did all of it" {
		t.Errorf("the attack returns %s", got)
	}
}

// Case X20. A server's directory that exceeds its limit is not deleted. No process is started in it until an operator
// has deleted files.
func TestLimits_FolderOverItsLimitIsNotDeleted(t *testing.T) {
	t.Parallel()
	m := startLimitedMesh(t, "disk: 16MiB", "", "")
	m.checkNamesLimit(m.attack("one-file"), "disk")
	found, err := filepath.Glob(filepath.Join(m.Dir, "data/gateway/servers/attacker/*/big"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%d files exist, want 1: %v", len(found), err)
	}
	if info, err := os.Stat(found[0]); err != nil || info.Size() < 16<<20 {
		t.Errorf("the file is %v, %v", info, err)
	}
}
