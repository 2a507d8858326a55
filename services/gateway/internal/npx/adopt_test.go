package npx_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/gateway/internal/npx"
)

// Complete installations are moved if both directories are in the same file system, and otherwise copied. Incomplete
// installations are left out.
func TestAdopt_MovesCompleteInstallations(t *testing.T) {
	t.Parallel()
	for name, to := range map[string]string{"the same file system": t.TempDir(), "another file system": otherFileSystem(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if to == "" {
				t.Skip("this machine has no other file system for files of tests")
			}
			from, f := npx.Folder(t.TempDir()), npx.Folder(filepath.Join(to, "programs", "notes"))
			files := packed(`{"name":"@acme/server","version":"1.2.3","bin":"cli.js"}`, "server")
			files["node_modules/outside"] = "-> /etc/hostname"
			if _, err := commit(t, from, "", files); err != nil {
				t.Fatal(err)
			}
			incomplete, err := from.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Adopt(from); err != nil {
				t.Fatal(err)
			}
			got := f.Latest("d1")
			if got == nil || got.Version != "1.2.3" {
				t.Fatalf("the installation is %+v", got)
			}
			if info, err := os.Stat(got.Program); err != nil || info.Mode()&0o100 == 0 {
				t.Errorf("the program %s can't be executed: %v", got.Program, err)
			}
			if link, err := os.Readlink(filepath.Join(got.Dir, "program", "node_modules", "outside")); err != nil || link != "/etc/hostname" {
				t.Errorf("the link leads to %q: %v", link, err)
			}
			if entries, err := os.ReadDir(string(f)); err != nil || len(entries) != 1 {
				t.Errorf("the folder has %v: %v", entries, err)
			}
			if _, err := os.Stat(incomplete.Project()); err != nil {
				t.Errorf("the incomplete installation was moved: %v", err)
			}
		})
	}
}

func TestAdopt_NothingIsInstalled(t *testing.T) {
	t.Parallel()
	f := npx.Folder(filepath.Join(t.TempDir(), "notes"))
	if err := f.Adopt(npx.Folder(filepath.Join(t.TempDir(), "notes"))); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(string(f)); err == nil {
		t.Error("an empty folder was created")
	}
}

// otherFileSystem returns a directory in a different file system from the tests' default directory, so that files can't
// be renamed from one to the other. It returns "" if there is no such file system. The directory is removed at the end
// of the test.
func otherFileSystem(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "npx-") //nolint:usetesting // another file system
	if err != nil {
		return ""
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	probe := filepath.Join(dir, "probe")
	if err := os.WriteFile(probe, nil, 0o600); err != nil || os.Rename(probe, filepath.Join(t.TempDir(), "probe")) == nil {
		return ""
	}
	return dir
}
