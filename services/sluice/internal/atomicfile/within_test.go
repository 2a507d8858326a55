package atomicfile_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
)

// A cloned project contains links to a file of the user, to the directory of that file, and to a file of the project.
// Only the link to the project's own file may be used.
func TestWriter_RefusesALinkOutOfTheProject(t *testing.T) {
	t.Parallel()
	home, project := t.TempDir(), filepath.Join(t.TempDir(), "project")
	w := &atomicfile.Writer{Lock: filepath.Join(t.TempDir(), "lock"), Within: project}
	user := filepath.Join(home, "user.json")
	own := filepath.Join(project, "own.json")
	leftover := filepath.Join(home, ".new.json.sluice-"+strings.Repeat("0", 32)+"-"+strings.Repeat("0", 32)+".part")
	if err := errors.Join(os.Mkdir(project, 0o700), os.Symlink(user, filepath.Join(project, "link.json")),
		os.Symlink(home, filepath.Join(project, "dir")), os.Symlink("own.json", filepath.Join(project, "inside.json")),
		os.WriteFile(user, []byte("old"), 0o600), os.WriteFile(own, []byte("old"), 0o600),
		os.WriteFile(leftover, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(path string) error{
		"link.json": func(path string) error { return w.Replace(t.Context(), path, []byte("old"), []byte("new")) },
		"dir/user.json": func(path string) error {
			return errors.Join(w.Replace(t.Context(), path, []byte("old"), []byte("new")),
				w.Remove(t.Context(), path, []byte("old")))
		},
		"dir/new.json": func(path string) error {
			return errors.Join(w.Create(t.Context(), path, []byte("new")), w.Remove(t.Context(), path, []byte("new")))
		},
		"../other.json": func(path string) error { return w.Create(t.Context(), path, []byte("new")) },
	} {
		err := do(project + "/" + name)
		if err == nil || !strings.Contains(err.Error(), "is outside the directory "+project) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) != 2 {
		t.Errorf("the directory of the user has %v, %v", entries, err)
	}
	if content, err := os.ReadFile(user); err != nil || string(content) != "old" {
		t.Errorf("the file of the user has %q, %v", content, err)
	}
	if err := w.Replace(t.Context(), filepath.Join(project, "inside.json"), []byte("old"), []byte("new")); err != nil {
		t.Error(err)
	}
	if err := w.Create(t.Context(), filepath.Join(project, "new.json"), []byte("new")); err != nil {
		t.Error(err)
	}
}

// The path of the project's directory may itself be a symbolic link.
func TestWriter_FollowsALinkToTheProject(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	w.Within = filepath.Join(t.TempDir(), "project")
	if err := os.Symlink(filepath.Dir(path), w.Within); err != nil {
		t.Fatal(err)
	}
	if err := w.Replace(t.Context(), filepath.Join(w.Within, "config.json"), []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "new")
}
