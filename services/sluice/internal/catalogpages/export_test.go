package catalogpages_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/sluice/internal/catalogpages"
)

func catalogOf(names ...string) catalogpages.Catalogue {
	c := catalogpages.Catalogue{Made: readAt}
	for _, name := range names {
		c.Tools = append(c.Tools, &policyv1.CatalogTool{Server: "files", Name: name})
	}
	return c
}

func writeText(t *testing.T, text string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// An export into the directory of an earlier export replaces it. Pages of tools that no longer exist are removed. Files
// that no export wrote are kept.
func TestExport_ReplacesAnEarlierExport(t *testing.T) {
	t.Parallel()
	dir := writeSite(t, catalogOf("read_file", "write_file"))
	writeText(t, "mine", dir, "tool", "files", "notes.txt")
	writeText(t, "half a page", dir, ".sluice-page-1.tmp")
	if err := catalogpages.HTML(dir, catalogOf("read_file")); err != nil {
		t.Fatal(err)
	}
	files := filesIn(t, dir)
	for file, want := range map[string]bool{"tool/files/read_file.html": true, "tool/files/write_file.html": false, "tool/files/notes.txt": true, ".sluice-page-1.tmp": false} {
		if slices.Contains(files, file) != want {
			t.Errorf("%s: %t", file, !want)
		}
	}
	if err := os.Remove(filepath.Join(dir, "tool", "files", "notes.txt")); err != nil {
		t.Fatal(err)
	}
	if err := catalogpages.HTML(dir, catalogpages.Catalogue{Made: readAt}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tool")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a folder without pages is left: %v", err)
	}
}

func TestExport_RefusesFoldersWithOtherFiles(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		make func(t *testing.T, dir string)
		want error
	}{
		{"a folder of something else", func(t *testing.T, dir string) { writeText(t, "mine", dir, "index.html") }, catalogpages.ErrFolder},
		{"a folder with another's marker", func(t *testing.T, dir string) { writeText(t, "written by another program", dir, ".sluice-catalogue") }, catalogpages.ErrFolder},
		{"a folder in another format", func(t *testing.T, dir string) {
			if err := catalogpages.Markdown(dir, catalogOf("read_file")); err != nil {
				t.Fatal(err)
			}
		}, catalogpages.ErrFormat},
		{"a page of another program", func(t *testing.T, dir string) {
			if err := catalogpages.HTML(dir, catalogOf("write_file")); err != nil {
				t.Fatal(err)
			}
			writeText(t, "mine", dir, "tool", "files", "read_file.html")
		}, catalogpages.ErrFolder},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			tt.make(t, dir)
			before := readFolder(t, dir)
			for range 2 { // the second attempt must not take over files that the first attempt only planned to write
				err := catalogpages.HTML(dir, catalogOf("read_file"))
				if !errors.Is(err, tt.want) {
					t.Errorf("the error is %v, want %v", err, tt.want)
				}
			}
			if diff := cmp.Diff(before, readFolder(t, dir)); diff != "" {
				t.Errorf("the folder was changed:\n%s", diff)
			}
		})
	}
}

func TestExport_FollowsNoLinkOutOfTheFolder(t *testing.T) {
	t.Parallel()
	dir, outside := writeSite(t, catalogpages.Catalogue{Made: readAt}), t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "tool")); err != nil {
		t.Fatal(err)
	}
	if err := catalogpages.HTML(dir, catalogOf("read_file")); err == nil || !strings.Contains(err.Error(), "write tool/files/read_file.html") {
		t.Errorf("the error is %v", err)
	}
	if left := filesIn(t, outside); len(left) > 0 {
		t.Errorf("outside are %q", left)
	}
}

// readFolder returns the content of the files in a directory, by name.
func readFolder(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := make(map[string]string)
	for _, file := range filesIn(t, dir) {
		out[file] = read(t, dir, file)
	}
	return out
}

// An export that is stopped leaves only complete pages, and the next export recognizes them.
func TestExport_ContinuesAfterAStoppedExport(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "site")
	writeText(t, "written by sluice catalog export as html\nindex.html\ntool/files/old.html\ntool/files/never_written.html\n", dir, ".sluice-catalogue")
	writeText(t, "a page", dir, "tool", "files", "old.html")
	writeText(t, "half", dir, ".sluice-page-77.tmp")
	if err := catalogpages.HTML(dir, catalogOf("read_file")); err != nil {
		t.Fatal(err)
	}
	for _, file := range filesIn(t, dir) {
		if strings.Contains(file, "old") || strings.HasSuffix(file, ".tmp") {
			t.Errorf("%s is left", file)
		}
	}
	if listed := strings.Split(strings.TrimSpace(read(t, dir, ".sluice-catalogue")), "\n")[1:]; !slices.Equal(listed, slices.Sorted(slices.Values(filesIn(t, dir)))) {
		t.Errorf("the marker lists %q", listed)
	}
}

func TestExport_RefusesDuplicateNames(t *testing.T) {
	t.Parallel()
	twice := catalogOf("a", "b", "a")
	servers := catalogpages.Catalogue{Servers: []*policyv1.CatalogServer{{Name: "x"}, {Name: "x"}}}
	for _, c := range []catalogpages.Catalogue{twice, servers} {
		dir := filepath.Join(t.TempDir(), "site")
		if err := catalogpages.HTML(dir, c); !errors.Is(err, catalogpages.ErrTwice) {
			t.Errorf("the error is %v", err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Error("the folder was made")
		}
	}
}
