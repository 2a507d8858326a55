//go:build unix

package stdio_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
	"github.com/sluice-mesh/sluice/services/internal/principal"
)

func agentKey(id string) principal.Key {
	return principal.Key{Tenant: "default", Subject: "agent:default/" + id}
}

// visited lets a principal use a server once. It waits until the process has ended, and returns the principal's private
// directory.
func visited(t *testing.T, root string, key principal.Key) (dir string) {
	t.Helper()
	r := newRig(t, "good", func(c *stdio.Config) { c.WorkRoot = root })
	s := r.open(t, key)
	dir = s.call(1, "info", nil)["dir"]
	put(t, s.conn.Close(t.Context()))
	put(t, r.Close())
	put(t, os.WriteFile(filepath.Join(dir, "state"), []byte("1"), 0o600))
	return dir
}

// restFor changes the times of a directory, so that its last use seems to be as long ago as the parameter since says.
func restFor(t *testing.T, dir string, since time.Duration) {
	t.Helper()
	at := time.Now().Add(-since)
	put(t, os.Chtimes(dir+".agent", at, at))
	put(t, os.Chtimes(dir, at, at))
}

// The directory of an agent that has ended is removed. The directories of agents that may be restored, of running
// agents and of other principals are kept.
func TestFolders_OfEndedAgentsAreRemoved(t *testing.T) {
	t.Parallel()
	const kept = 30 * 24 * time.Hour
	root := t.TempDir()
	ended, rests, there, person := visited(t, root, agentKey("ended")), visited(t, root, agentKey("rests")), visited(t, root, agentKey("there")), visited(t, root, ana)
	restFor(t, ended, kept+time.Minute)
	restFor(t, rests, kept-time.Hour)
	restFor(t, there, 10*kept)
	put(t, os.Chtimes(person, time.Time{}, time.Now().Add(-10*kept)))

	r := newRig(t, "good", func(c *stdio.Config) { c.WorkRoot = root })
	back := r.open(t, agentKey("there"))
	eventually.Holds(t, "the folder of the agent that has ended is gone", func() bool { return !exists(t, ended) && !exists(t, ended+".agent") && !exists(t, ended+".ended") })
	if got := back.call(1, "info", nil)["dir"]; got != there {
		t.Errorf("the agent that is there works in %s, not in %s", got, there)
	}
	for what, dir := range map[string]string{"an agent that rests": rests, "an agent that is there": there, "a person": person} {
		if !exists(t, filepath.Join(dir, "state")) {
			t.Errorf("the folder of %s is gone", what)
		}
	}
	if reopened := r.open(t, agentKey("ended")).call(1, "info", nil)["dir"]; reopened != ended || exists(t, filepath.Join(ended, "state")) {
		t.Errorf("the restored agent works in %s, with its old files", reopened)
	}
}

// A program's files cannot prevent the removal of its directory, and cannot cause the removal of files outside the
// directory.
func TestFolders_OfHostileProgramsAreRemoved(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	put(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	dir := visited(t, root, agentKey("ended"))
	put(t, os.Symlink(outside, filepath.Join(dir, "link")))
	put(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700))
	put(t, os.WriteFile(filepath.Join(dir, "a", "b", "x"), nil, 0o400))
	put(t, os.Symlink(outside, filepath.Join(dir, "a", "b", "link")))
	put(t, os.Chmod(filepath.Join(dir, "a", "b"), 0o500))
	put(t, os.Chmod(filepath.Join(dir, "a"), 0))
	restFor(t, dir, 31*24*time.Hour)
	put(t, os.Chtimes(dir, time.Time{}, time.Now().Add(1000*time.Hour))) // a program could do the same
	mode := func() os.FileMode {
		info, err := os.Stat(outside)
		put(t, err)
		return info.Mode()
	}
	before := mode()

	newRig(t, "good", func(c *stdio.Config) { c.WorkRoot = root }).open(t, ana)
	eventually.Holds(t, "the folder is gone", func() bool { return !exists(t, dir) && !exists(t, dir+".ended") })
	if !exists(t, filepath.Join(outside, "kept")) || mode() != before {
		t.Error("what a link leads to has changed")
	}
}

func TestFolders_InterruptedRemovalsAreCompleted(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := visited(t, root, agentKey("ended"))
	put(t, os.Rename(dir, dir+".ended"))
	put(t, os.Remove(dir+".agent"))
	newRig(t, "good", func(c *stdio.Config) { c.WorkRoot = root }).open(t, ana)
	eventually.Holds(t, "the folder is gone", func() bool { return !exists(t, dir+".ended") })
}
