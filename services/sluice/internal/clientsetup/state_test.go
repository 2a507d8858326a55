package clientsetup_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/clientsetup"
)

func loadState(t *testing.T, data string) *clientsetup.State {
	t.Helper()
	s, err := clientsetup.LoadState(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A file that a person wrote is not removed, even if `init` replaces it later. A file that `init` wrote is removed. It
// is also removed if it still has the content of an earlier run of `init`, because a later run may have been killed
// after it recorded the new content but before it wrote the file.
func TestRemoveCreated_RemovesOnlyWhatInitWrote(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// before is the content before `init`, or empty if there is no file. The field edited is the content that a
		// person writes between two runs of `init`.
		before, edited string
		// killed is true if the second run is killed before it writes the file.
		killed bool
		stays  bool
	}{
		"a new file":                      {},
		"a file of a person":              {before: "mine", stays: true},
		"a file that a person has edited": {edited: "first\nmine", stays: true},
		"a killed init":                   {killed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, path := t.TempDir(), filepath.Join(t.TempDir(), "sluice.yaml")
			if c.before != "" {
				write(t, path, c.before)
			}
			create := func(content string) {
				t.Helper()
				if err := loadState(t, data).Create(path, []byte(content)); err != nil {
					t.Fatal(err)
				}
			}
			create("first")
			if c.edited != "" {
				write(t, path, c.edited)
			}
			create("second")
			if c.killed {
				write(t, path, "first")
			}
			s := loadState(t, data)
			_, changed, err := s.RemoveCreated(func(string) bool { return false })
			if err != nil || slices.Contains(changed, path) != c.stays {
				t.Errorf("changed: %v, %v", changed, err)
			}
			if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) == c.stays {
				t.Errorf("the file: %v", err)
			}
			if !s.Empty() {
				t.Error("the state is not empty")
			}
		})
	}
}

// Between Begin and End, the state is stored even if it contains no changes. End removes the state, and also the
// temporary files that a killed process has left.
func TestEnd_RemovesTheStateAndTemporaryFiles(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	if err := loadState(t, data).Begin(); err != nil {
		t.Fatal(err)
	}
	s := loadState(t, data)
	if s.Empty() {
		t.Error("the state of a killed init is empty")
	}
	write(t, filepath.Join(data, "init", ".state.json-123"), "{")
	if err := s.End(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Join(data, "init")); err != nil || len(entries) != 1 || entries[0].Name() != "lock" {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

// Two processes read the state. The process that saves last must not remove what the other process has recorded.
func TestSave_KeepsTheRecordOfAnotherProcess(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	first, second := loadState(t, data), loadState(t, data)
	second.Secrets = []string{"${file:/second}"}
	if err := second.Save(); err != nil {
		t.Fatal(err)
	}
	first.Secrets = []string{"${file:/first}"}
	if err := first.Begin(); !errors.Is(err, clientsetup.ErrStateChanged) {
		t.Errorf("saving an old state returns %v", err)
	}
	first.Secrets = nil
	if err := first.End(); !errors.Is(err, clientsetup.ErrStateChanged) {
		t.Errorf("removing another state returns %v", err)
	}
	now := loadState(t, data)
	if !slices.Equal(now.Secrets, second.Secrets) {
		t.Errorf("the stored state has the secrets %v", now.Secrets)
	}
	now.Secrets = nil
	if err := now.End(); err != nil {
		t.Fatal(err)
	}
	if err := second.Begin(); !errors.Is(err, clientsetup.ErrStateChanged) {
		t.Errorf("saving a state that was removed returns %v", err)
	}
}
