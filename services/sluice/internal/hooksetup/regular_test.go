//go:build unix

package hooksetup_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// In a repository, .claude/settings.local.json may be a pipe or a link to a device. Opening a pipe blocks until another
// program opens it for writing, and reading a device may never end.
func TestTarget_ReadsRegularFilesOnly(t *testing.T) {
	t.Parallel()
	for name, create := range map[string]func(path string) error{
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"device":    func(path string) error { return os.Symlink("/dev/zero", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, data := newTarget(t, "claude-code", missing)
			if err := os.Mkdir(filepath.Dir(target.Path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := create(target.Path); err != nil {
				t.Fatal(err)
			}
			_, readErr := target.Registered()
			_, installErr := target.Install(t.Context(), data, program)
			_, removeErr := target.Remove(t.Context(), data)
			for _, err := range []error{readErr, installErr, removeErr} {
				if err == nil || !strings.Contains(err.Error(), "not a regular file") {
					t.Errorf("%v, want that it is not a regular file", err)
				}
			}
		})
	}
}
