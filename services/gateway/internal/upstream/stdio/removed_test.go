//go:build linux

package stdio_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
)

// never is a function that always returns false: no server uses private directories.
func never(string) bool { return false }

// endUnused calls EndUnused and RemoveEnded, as the gateway does when it starts.
func endUnused(t *testing.T, root string, used func(string) bool, now time.Time) {
	t.Helper()
	put(t, stdio.WorkRoot(root).EndUnused(t.Context(), newLog(), used, now))
	put(t, stdio.WorkRoot(root).RemoveEnded(t.Context(), newLog()))
}

// unusedFor marks a server's directory as unused for the given number of days.
func unusedFor(t *testing.T, root, server string, days int) {
	t.Helper()
	at := time.Now().Add(-time.Duration(days) * 24 * time.Hour)
	put(t, os.WriteFile(filepath.Join(root, server+".unused"), nil, 0o600))
	put(t, os.Chtimes(filepath.Join(root, server+".unused"), at, at))
}

func TestEndUnused_RemovesFoldersAfter30DaysOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, server := range []string{"old", "new", "used", "Not-A-Server"} {
		put(t, os.MkdirAll(filepath.Join(root, server, "shared"), 0o700))
	}
	for _, server := range []string{"old", "used", "Not-A-Server", "missing"} {
		unusedFor(t, root, server, 31)
	}
	used := func(server string) bool { return server == "used" }
	endUnused(t, root, used, time.Now())
	for name, want := range map[string]bool{
		"old": false, "old.unused": false, "old.ended": false, "new": true, "new.unused": true, "used": true, "used.unused": false, "Not-A-Server": true, "missing.unused": false,
	} {
		if exists(t, filepath.Join(root, name)) != want {
			t.Errorf("%s exists: %v, want %v", name, !want, want)
		}
	}
	endUnused(t, root, used, time.Now().Add(30*24*time.Hour-time.Minute))
	if !exists(t, filepath.Join(root, "new")) {
		t.Error("a folder was removed before the end of 30 days")
	}
	endUnused(t, root, used, time.Now().Add(30*24*time.Hour+time.Minute))
	if exists(t, filepath.Join(root, "new")) {
		t.Error("a folder was not removed after 30 days")
	}
	endUnused(t, filepath.Join(root, "none"), never, time.Now())
}

// Links and permissions in the directories of a removed server do not prevent their removal. Nothing outside these
// directories is removed.
func TestEndUnused_FollowsNoLink(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	put(t, os.MkdirAll(filepath.Join(outside, "shared"), 0o700))
	put(t, os.Symlink(outside, filepath.Join(root, "linked")))
	unusedFor(t, root, "linked", 31)
	put(t, os.Symlink(outside, filepath.Join(root, "ended.ended")))
	put(t, os.MkdirAll(filepath.Join(root, "old", "shared", "a"), 0o700))
	put(t, os.Symlink(outside, filepath.Join(root, "old", "principal")))
	put(t, os.Symlink(outside, filepath.Join(root, "old", "shared", "a", "link")))
	put(t, os.Chmod(filepath.Join(root, "old", "shared", "a"), 0))
	put(t, os.Chmod(filepath.Join(root, "old", "shared"), 0o500))
	unusedFor(t, root, "old", 31)
	endUnused(t, root, never, time.Now())
	if exists(t, filepath.Join(root, "old")) || exists(t, filepath.Join(root, "old.ended")) {
		t.Error("the folder was not removed")
	}
	if !exists(t, filepath.Join(outside, "shared")) || !exists(t, filepath.Join(root, "linked")) || !exists(t, filepath.Join(root, "ended.ended")) {
		t.Error("what a link leads to was removed, or the link itself")
	}
}

// A process that has outlived the gateway uses a directory. The directory is kept while the process runs, and for
// another 30 days after that.
func TestEndUnused_KeepsFolderThatAProcessUses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "old", "shared")
	put(t, os.MkdirAll(dir, 0o700))
	unusedFor(t, root, "old", 31)
	left := exec.Command("sh", "-c", "echo there; read line")
	left.Dir = dir
	out, err := left.StdoutPipe()
	put(t, err)
	in, err := left.StdinPipe()
	put(t, err)
	put(t, left.Start())
	_, err = bufio.NewReader(out).ReadString('\n')
	put(t, err)
	endUnused(t, root, never, time.Now())
	put(t, in.Close())
	_ = left.Wait() // its status does not matter
	endUnused(t, root, never, time.Now())
	if !exists(t, dir) {
		t.Fatal("the folder was removed while a process used it, or soon after")
	}
	endUnused(t, root, never, time.Now().Add(31*24*time.Hour))
	if exists(t, dir) {
		t.Error("the folder was not removed after the process had ended")
	}
}

func TestRemoveEnded_CompletesInterruptedRemovals(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put(t, os.MkdirAll(filepath.Join(root, "old", "shared"), 0o700))
	unusedFor(t, root, "old", 31)
	put(t, stdio.WorkRoot(root).EndUnused(t.Context(), newLog(), never, time.Now()))
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := stdio.WorkRoot(root).RemoveEnded(stopped, newLog()); err == nil || !exists(t, filepath.Join(root, "old.ended", "shared")) {
		t.Errorf("the removal continues after the gateway was stopped: %v", err)
	}
	endUnused(t, root, never, time.Now())
	if exists(t, filepath.Join(root, "old.ended")) {
		t.Error("the folder was not removed")
	}
}
