package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
)

// A process that replaces a file through a symbolic link is killed. RemoveLeftovers removes the temporary file of this
// process, even if the replaced file itself no longer exists.
func TestRemoveLeftovers_RemovesTheFilesOfAKilledProcess(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"created", "compared", "replaced"} {
		w, path := newFile(t, oldContent)
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		killAt(t, step, w.Lock, link, "replace")
		if err := w.RemoveLeftovers(t.Context(), link); err != nil {
			t.Errorf("%s: %v", step, err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		checkOnly(t, path, string(content))

		killAt(t, "created", w.Lock, pathWith(t, path, oldContent), "replace")
		if err := errors.Join(os.Remove(path), w.RemoveLeftovers(t.Context(), path)); err != nil {
			t.Errorf("%s: %v", step, err)
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
			t.Errorf("%s: the directory has %v, %v", step, entries, err)
		}
	}
}

// pathWith writes a file and returns its path.
func pathWith(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRemoveLeftovers_KeepsWhatAnotherProgramWrote(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, oldContent)
	killAt(t, "compared", w.Lock, path, "replace")
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".config.json.sluice-*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	pathWith(t, found[0], "theirs")
	if err := w.RemoveLeftovers(t.Context(), path); !errors.Is(err, atomicfile.ErrChanged) {
		t.Errorf("error %v", err)
	}
	if content, err := os.ReadFile(found[0]); err != nil || string(content) != "theirs" {
		t.Errorf("%q, %v", content, err)
	}
}
