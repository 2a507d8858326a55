package servers_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// restartWith kills a mesh and starts it again with other servers. In the mesh's configuration, the servers must be the
// last entry.
func restartWith(t *testing.T, p *stack.Process, servers string) *stack.Process {
	t.Helper()
	p.Kill()
	config, err := os.ReadFile(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(config), "servers:\n")
	stack.WriteFile(t, p.Config, head+"servers:\n"+servers)
	return stack.Start(t, p.Stack)
}

// When the gateway starts, it removes a server's private directories if the server has not been configured for 30 days.
// It keeps the directories of configured servers, and does not follow links.
func TestRemovedServer_FoldersAreRemovedAfter30Days(t *testing.T) {
	t.Parallel()
	const gone, kept = "  gone: {stdio: {command: [sleep, \"600\"]}}\n", "  kept: {stdio: {command: [sleep, \"600\"]}}\n"
	s := stack.WriteConfig(t, stack.Options{Servers: gone + kept, Policy: stack.OpenPolicy})
	in := func(name string) string { return filepath.Join(s.Dir, "data/gateway/servers", name) }
	has := func(name string) bool { _, err := os.Lstat(in(name)); return err == nil }
	p := stack.Start(t, s)
	eventually.Holds(t, "both servers have private folders", func() bool { return has("gone") && has("kept") })
	restart := func(servers string) { p = restartWith(t, p, servers) }
	age := func(days int) {
		t.Helper()
		at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
		if err := os.Chtimes(in("gone.unused"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	stack.WriteFile(t, filepath.Join(outside, "file"), "")
	if err := os.Symlink(outside, in("linked")); err != nil {
		t.Fatal(err)
	}
	restart(kept)
	age(31)
	restart(gone + kept) // the server is configured again within 30 days
	restart(kept)
	age(29)
	restart(kept)
	if !has("gone") {
		t.Fatal("the folder was removed although the server was not configured for less than 30 days")
	}
	age(31)
	restart(kept)
	eventually.Holds(t, "the folder of the removed server is gone", func() bool { return !has("gone") && !has("gone.ended") && !has("gone.unused") })
	if !has("kept") || !has("linked") || has("linked.unused") {
		t.Error("a start has removed the folder of a configured server, or has followed a link")
	}
	if _, err := os.Stat(filepath.Join(outside, "file")); err != nil {
		t.Errorf("a start has removed what a link leads to: %v", err)
	}
}
