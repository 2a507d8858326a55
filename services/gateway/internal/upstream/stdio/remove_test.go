//go:build unix

package stdio_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream/stdio"
)

const lock = "state/a.lock"

// removing returns a session whose process has ended, and the directory of that process. The server's lock file is
// removed before each start.
func removing(t *testing.T) (s session, dir string) {
	t.Helper()
	r := newRig(t, "good", func(c *stdio.Config) { c.Remove = []string{lock, "other.lock"} })
	s = r.open(t, ana)
	dir = s.call(1, "info", nil)["dir"]
	if _, err := s.try(2, "die", nil); err == nil {
		t.Fatal("the process lives on")
	}
	return s, dir
}

func put(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func exists(t *testing.T, file string) bool {
	t.Helper()
	_, err := os.Lstat(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestRemove_RemovesAStaleLock(t *testing.T) {
	t.Parallel()
	s, dir := removing(t)
	put(t, os.Mkdir(filepath.Join(dir, "state"), 0o700))
	for _, name := range []string{lock, "state/kept", "other.lock"} {
		put(t, os.WriteFile(filepath.Join(dir, name), []byte("1"), 0o600))
	}
	if got := s.call(3, "info", nil)["dir"]; got != dir {
		t.Errorf("the next process works in %s, want %s", got, dir)
	}
	for name, want := range map[string]bool{lock: false, "other.lock": false, "state/kept": true} {
		if got := exists(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s is there: %v, want %v", name, got, want)
		}
	}
	put(t, os.WriteFile(filepath.Join(dir, lock), nil, 0o600))
	s.call(4, "info", nil)
	if !exists(t, filepath.Join(dir, lock)) {
		t.Error("the lock of a process that runs is removed")
	}
}

// Nothing outside the directory is removed, no matter what a program puts in place of its lock file.
func TestRemove_RemovesOnlyFilesOfTheFolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		plant func(dir, outside string) error
		says  string
	}{
		"a link to a file": {func(dir, outside string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "state"), 0o700), os.Symlink(filepath.Join(outside, "a.lock"), filepath.Join(dir, lock)))
		}, "not a regular file"},
		"a link to its folder": {func(dir, outside string) error { return os.Symlink(outside, filepath.Join(dir, "state")) }, "path escapes"},
		"a folder":             {func(dir, _ string) error { return os.MkdirAll(filepath.Join(dir, lock), 0o700) }, "not a regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outside := t.TempDir()
			put(t, os.WriteFile(filepath.Join(outside, "a.lock"), nil, 0o600))
			s, dir := removing(t)
			put(t, c.plant(dir, outside))
			if _, err := s.try(3, "info", nil); !errors.Is(err, upstream.ErrNeverSent) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), lock) {
				t.Errorf("the error is %v, want ErrNeverSent with %q", err, c.says)
			}
			if !exists(t, filepath.Join(outside, "a.lock")) {
				t.Error("a file outside of the folder is removed")
			}
		})
	}
}
