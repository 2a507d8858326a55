package npx_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
)

// The directory of a removed server was replaced with a link, which Sweep must not follow. An installation is kept as
// long as a process uses it, even if the process has outlived an earlier gateway.
func TestSweep_KeepsLinkedFoldersAndUsedInstallations(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	files := packed(`{"name":"@acme/server","bin":"cli.js"}`, "server")
	used, err := commit(t, npx.Folder(filepath.Join(root, "one")), "", files)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := commit(t, npx.Folder(outside), "", files)
	if err != nil {
		t.Fatal(err)
	}
	put(t, root, map[string]string{"linked": "-> " + outside, "one/d2.x": "-> " + elsewhere.Dir})
	put(t, outside, map[string]string{"new-1/file": ""})
	process := exec.Command("sh", "-c", "read line", used.Program)
	in, err := process.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := npx.Sweep(root, nil, time.Now().Add(2*npx.Grace)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(outside, "new-1")); err != nil || !exists(elsewhere) {
		t.Errorf("what a link leads to was removed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(elsewhere.Dir, "unused")); err == nil {
		t.Error("what a link leads to was marked")
	}
	if !exists(used) {
		t.Error("an installation was removed while a process ran it")
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // its status does not matter
	if err := npx.Sweep(root, nil, time.Now().Add(4*npx.Grace)); err != nil || exists(used) {
		t.Errorf("the installation was not removed after the process had ended: %v", err)
	}
}
