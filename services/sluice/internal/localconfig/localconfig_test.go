//go:build unix

package localconfig_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/localconfig"
)

const content = "listen: 127.0.0.1:0\n"

// chown makes another user the owner of a path. It skips the test unless the test runs as root.
func chown(t *testing.T, path string) {
	t.Helper()
	if err := os.Lchown(path, 12345, -1); errors.Is(err, fs.ErrPermission) {
		t.Skip("needs root, to give a file to another user")
	} else if err != nil {
		t.Fatal(err)
	}
}

func chmod(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestRead_RefusesFilesThatOthersCanWrite(t *testing.T) {
	t.Parallel()
	link := func(to string) func(*testing.T, string, string) {
		return func(t *testing.T, dir, file string) {
			if err := os.Rename(file, filepath.Join(dir, "real.yaml")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(to, file); err != nil {
				t.Fatal(err)
			}
		}
	}
	mode := func(folder, file fs.FileMode) func(*testing.T, string, string) {
		return func(t *testing.T, dir, name string) {
			chmod(t, name, file)
			chmod(t, dir, folder)
		}
	}
	tests := map[string]struct {
		change func(t *testing.T, dir, file string)
		want   string
	}{
		"its caller's alone":                  {mode(0o700, 0o600), ""},
		"readable by all":                     {mode(0o755, 0o644), ""},
		"a group may write the file":          {mode(0o755, 0o664), "other users may write to it (mode 0664): run `chmod go-w sluice.yaml`, or name"},
		"everyone may write the file":         {mode(0o755, 0o646), "other users may write to it (mode 0646)"},
		"a group may write the folder":        {mode(0o775, 0o644), "other users may write to the folder (mode 0775): run `chmod go-w .`, or name"},
		"everyone may write the folder":       {mode(0o757, 0o644), "other users may write to the folder (mode 0757)"},
		"everyone may add to the folder":      {mode(0o777|fs.ModeSticky, 0o644), "other users may write to the folder (mode 1777)"},
		"a link to a file in the same folder": {link("real.yaml"), "it is a symbolic link"},
		"a link to nothing":                   {link("nowhere"), "it is a symbolic link"},
		"a link to a file of the system":      {link("/etc/passwd"), "it is a symbolic link"},
		"the file belongs to another user":    {func(t *testing.T, _, file string) { chown(t, file) }, "it belongs to another user (12345; "},
		"the folder belongs to another user":  {func(t *testing.T, dir, _ string) { chown(t, dir) }, "the folder belongs to another user (12345; "},
		"a folder":                            {func(t *testing.T, _, file string) { replace(t, file, func() error { return os.Mkdir(file, 0o700) }) }, "it is not a regular file"},
		"a pipe without a writer": {func(t *testing.T, _, file string) {
			replace(t, file, func() error { return syscall.Mkfifo(file, 0o600) })
		}, "it is not a regular file"},
		"a file without end": {func(t *testing.T, _, file string) {
			if err := os.Truncate(file, 1<<20+1); err != nil {
				t.Fatal(err)
			}
		}, "it is larger than 1048576 bytes"},
	}
	for name, c := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, localconfig.Name)
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			chmod(t, dir, 0o700)
			c.change(t, dir, file)
			raw, err := localconfig.Read(dir)
			if c.want == "" {
				if err != nil || string(raw) != content {
					t.Errorf("read %q, %v", raw, err)
				}
				return
			}
			_, untrusted := errors.AsType[*localconfig.UntrustedError](err)
			if !untrusted || raw != nil || !strings.Contains(err.Error(), c.want) || !strings.HasSuffix(err.Error(), "name a configuration with --config") {
				t.Errorf("read %q, %v; want %q", raw, err, c.want)
			}
		})
	}
}

func replace(t *testing.T, file string, with func() error) {
	t.Helper()
	if err := errors.Join(os.Remove(file), with()); err != nil {
		t.Fatal(err)
	}
}

func TestRead_MissingFile(t *testing.T) {
	t.Parallel()
	if _, err := localconfig.Read(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestDigest_DependsOnFolderAndContent(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, c := range [][2]string{{"/a", "x"}, {"/a", "y"}, {"/b", "x"}, {"/a\n1", "x"}, {"/a", "1\nx"}, {"", ""}} {
		digest := localconfig.Digest(c[0], []byte(c[1]))
		if other, taken := seen[digest]; taken || len(digest) != 64 {
			t.Errorf("%q has the digest %s, as %q", c, digest, other)
		}
		seen[digest] = c[0] + " " + c[1]
	}
}

// Has returns true only for a digest that was added, and only if no other user can write to the directory or the file.
func TestAgreed_HasOnlyAddedDigests(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "config"))
	agreed, err := localconfig.OpenAgreed()
	if err != nil {
		t.Fatal(err)
	}
	one, two := localconfig.Digest("/a", nil), localconfig.Digest("/b", nil)
	if agreed.Has(one) {
		t.Error("an empty store has an agreement")
	}
	for range 2 {
		if err := agreed.Add(one); err != nil {
			t.Fatal(err)
		}
	}
	if !agreed.Has(one) || agreed.Has(two) || (localconfig.Agreed{}).Has(one) {
		t.Error("the store does not have exactly the digest that was added")
	}
	dir := filepath.Join(home, "config", "sluice", "agreed")
	chmod(t, dir, 0o770)
	if agreed.Has(one) {
		t.Error("an agreement in a folder that others may write to counts")
	}
	chmod(t, dir, 0o700)
	chmod(t, filepath.Join(dir, one), 0o666)
	if agreed.Has(one) {
		t.Error("an agreement in a file that others may write counts")
	}
	chmod(t, filepath.Join(dir, one), 0o600)
	chown(t, dir)
	if agreed.Has(one) {
		t.Error("an agreement in a folder of another user counts")
	}
}
