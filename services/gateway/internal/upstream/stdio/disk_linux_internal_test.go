//go:build linux

package stdio

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// removal contains a private directory from which files are removed, and a directory outside the private directory.
type removal struct {
	t                     *testing.T
	root, folder, outside string
	since                 time.Time
}

// newRemoval creates a private directory with the file `old`, and a file outside the directory.
func newRemoval(t *testing.T) *removal {
	t.Helper()
	top := t.TempDir()
	r := &removal{t: t, root: filepath.Join(top, "servers"), outside: filepath.Join(top, "outside")}
	r.folder = filepath.Join(r.root, "files", "shared")
	r.must(os.MkdirAll(r.folder, 0o700), os.Mkdir(r.outside, 0o700))
	r.write(r.folder, "old")
	if _, _, known := birthTime(unix.AT_FDCWD, r.folder); !known {
		t.Skip("this file system does not say when files were made")
	}
	r.since = r.bornAfter(time.Time{})
	r.since = r.bornAfter(r.since)
	return r
}

// bornAfter creates directories until the birth time of one is later than the parameter since. It returns that birth
// time.
func (r *removal) bornAfter(since time.Time) time.Time {
	r.t.Helper()
	for {
		dir := r.t.TempDir()
		if at, _, _ := birthTime(unix.AT_FDCWD, dir); at.After(since) {
			return at
		}
	}
}

func (r *removal) must(errs ...error) {
	r.t.Helper()
	if err := errors.Join(errs...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *removal) write(dir, name string) {
	r.t.Helper()
	r.must(os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o600))
}

func (r *removal) stays(path ...string) {
	r.t.Helper()
	if _, err := os.Lstat(filepath.Join(path...)); err != nil {
		r.t.Errorf("it was removed: %v", err)
	}
}

func (r *removal) goes(path ...string) {
	r.t.Helper()
	if _, err := os.Lstat(filepath.Join(path...)); !errors.Is(err, fs.ErrNotExist) {
		r.t.Errorf("%s is there: %v", filepath.Join(path...), err)
	}
}

// Files that the process has created are removed. Older files are kept even if the process has written to them or
// renamed them.
func TestRemoveSince_OlderFilesStay(t *testing.T) {
	r := newRemoval(t)
	for _, name := range []string{"grown", "renamed", "linked"} {
		r.write(r.folder, name)
	}
	since := r.bornAfter(r.bornAfter(r.since))
	f, err := os.OpenFile(filepath.Join(r.folder, "grown"), os.O_APPEND|os.O_WRONLY, 0)
	r.must(err)
	_, err = f.WriteString("more")
	r.must(err, f.Close(), os.Rename(filepath.Join(r.folder, "renamed"), filepath.Join(r.folder, "other")),
		os.Link(filepath.Join(r.folder, "linked"), filepath.Join(r.folder, "second")))
	r.must(os.MkdirAll(filepath.Join(r.folder, "new", "inner"), 0o700))
	r.write(filepath.Join(r.folder, "new", "inner"), "file")
	r.write(r.folder, "big")
	r.must(removeSince(r.root, r.folder, since))
	for _, name := range []string{"old", "grown", "other", "linked", "second"} {
		r.stays(r.folder, name)
	}
	r.goes(r.folder, "big")
	r.goes(r.folder, "new")
}

// Nothing outside the directory is removed, no matter which files the program creates in the directory or what it
// replaces the directory with.
func TestRemoveSince_NothingOutsideOfTheFolderIsRemoved(t *testing.T) {
	r := newRemoval(t)
	r.write(r.outside, "file")
	r.must(os.Symlink(r.outside, filepath.Join(r.folder, "link")),
		os.Symlink(filepath.Join(r.outside, "file"), filepath.Join(r.folder, "link to a file")),
		os.Link(filepath.Join(r.outside, "file"), filepath.Join(r.folder, "hard link")))
	r.must(removeSince(r.root, r.folder, r.since))
	r.stays(r.outside, "file")
	r.goes(r.folder, "link")
	r.goes(r.folder, "hard link")
	for _, dir := range []string{r.folder, filepath.Dir(r.folder)} {
		r.must(os.Rename(dir, dir+"-away"), os.Symlink(r.outside, dir))
		_ = os.Mkdir(filepath.Join(r.outside, "shared"), 0o700)
		r.write(filepath.Join(r.outside, "shared"), "file")
		if err := removeSince(r.root, r.folder, r.since); err == nil {
			t.Errorf("with a link in the place of %s there is no error", dir)
		}
		r.stays(r.outside, "file")
		r.stays(r.outside, "shared", "file")
		r.must(os.Remove(dir), os.Rename(dir+"-away", dir))
	}
	for _, dir := range []string{r.root, r.outside, filepath.Dir(r.root), "/"} {
		if err := removeSince(r.root, dir, r.since); err == nil {
			t.Errorf("%s is no folder below %s", dir, r.root)
		}
	}
	r.stays(r.outside, "file")
}

// A directory of the same file system is mounted into the private directory. It is not removed, because it does not
// belong to the program.
func TestRemoveSince_MountedFolderStays(t *testing.T) {
	r := newRemoval(t)
	at := filepath.Join(r.folder, "mounted")
	r.must(os.Mkdir(at, 0o700))
	r.write(r.outside, "file")
	if err := unix.Mount(r.outside, at, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("nothing can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	r.write(r.folder, "new")
	r.must(removeSince(r.root, r.folder, r.since))
	r.stays(r.outside, "file")
	r.goes(r.folder, "new")
}
