//go:build unix

package regularfile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/regularfile"
)

const maximum = 100

func TestRead_ReturnsTheContentOfRegularFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	for _, content := range []string{"", "{}", strings.Repeat("x", maximum)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(path, link); err != nil && !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		for _, p := range []string{path, link} {
			if got, err := regularfile.Read(p, maximum); err != nil || string(got) != content {
				t.Errorf("%s: %d bytes, %v", p, len(got), err)
			}
		}
	}
}

// The test would not end if Read waited for a writer of the pipe, or if it read the device to its end.
func TestRead_RefusesWhatIsNotARegularFileOfTheMaximumSize(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := errors.Join(
		syscall.Mkfifo(path("pipe"), 0o600),
		os.Symlink(path("pipe"), path("link to a pipe")),
		os.Symlink("/dev/zero", path("link to a device")),
		os.WriteFile(path("large"), make([]byte, maximum+1), 0o600),
		os.WriteFile(path("sparse"), nil, 0o600),
		os.Truncate(path("sparse"), 1<<40),
	); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{
		path("pipe"): "not a regular file", path("link to a pipe"): "not a regular file", path("link to a device"): "not a regular file",
		"/dev/zero": "not a regular file", dir: "not a regular file",
		path("large"): "larger than 100 bytes", path("sparse"): "larger than 100 bytes",
	} {
		if got, err := regularfile.Read(p, maximum); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %d bytes, %v", p, len(got), err)
		}
	}
	if _, err := regularfile.Read(path("missing"), maximum); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
