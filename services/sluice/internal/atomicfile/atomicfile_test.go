package atomicfile_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
)

func newFile(t *testing.T, content string) (w *atomicfile.Writer, path string) {
	t.Helper()
	dir := t.TempDir()
	path = filepath.Join(dir, "config.json")
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	return &atomicfile.Writer{Lock: filepath.Join(t.TempDir(), "locks", "init.lock")}, path
}

// checkOnly checks the content of a file, and that its directory has no other files.
func checkOnly(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s has the content %.40q (%v), want %.40q", path, got, err, want)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("the directory has the entries %v (%v)", entries, err)
	}
}

func TestReplace_KeepsModeAndSymbolicLink(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o604); err != nil {
		t.Fatal(err)
	}
	if err := w.Replace(t.Context(), link, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "new")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o604 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if target, err := os.Readlink(link); err != nil || target != path {
		t.Errorf("the link leads to %q, %v", target, err)
	}
}

func TestReplace_Refuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(path string) error
		message string
	}{
		"hard link":     {func(path string) error { return os.Link(path, path+"2") }, "has 2 hard links"},
		"read-only":     {func(path string) error { return os.Chmod(path, 0o400) }, "is read-only"},
		"directory":     {func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, "not a regular file"},
		"missing":       {os.Remove, "no such file"},
		"other content": {func(path string) error { return os.WriteFile(path, []byte("older"), 0o600) }, "another program has changed"},
		"foreign owner": {func(path string) error { return os.Chown(path, 12345, -1) }, "belongs to another user (12345)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, path := newFile(t, "old")
			if err := c.prepare(path); errors.Is(err, fs.ErrPermission) {
				t.Skip("only root may change the owner of a file")
			} else if err != nil {
				t.Fatal(err)
			}
			before, err := os.ReadDir(filepath.Dir(path))
			if err != nil {
				t.Fatal(err)
			}
			err = w.Replace(t.Context(), path, []byte("old"), []byte("new"))
			if err == nil || !strings.Contains(err.Error(), c.message) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want %q", err, c.message)
			}
			if after, err := os.ReadDir(filepath.Dir(path)); err != nil || len(after) != len(before) {
				t.Errorf("files are left: %v", after)
			}
			if content, err := os.ReadFile(path); err == nil && string(content) == "new" {
				t.Error("the file was replaced")
			}
		})
	}
}

func TestReplace_ReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	if os.Geteuid() == 0 {
		t.Skip("root may write to every directory")
	}
	w, path := newFile(t, "old")
	if err := os.Chmod(filepath.Dir(path), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); err == nil || !strings.Contains(err.Error(), "directory is read-only") {
		t.Error(err)
	}
}

func TestReplace_WaitsForTheLock(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	other := &atomicfile.Writer{Lock: w.Lock}
	ctx, cancel := context.WithCancel(t.Context())
	held, done := make(chan struct{}), make(chan error, 1)
	other.SetAt(func(step string) {
		if step == "locked" {
			close(held)
			<-ctx.Done()
		}
	})
	go func() { done <- other.Replace(t.Context(), path, []byte("old"), []byte("other")) }()
	<-held
	short, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := w.Replace(short, path, []byte("old"), []byte("new")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second writer does not wait: %v", err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "other")
}

func TestCreateAndRemove(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	if err := w.Create(t.Context(), path, []byte("new")); !errors.Is(err, atomicfile.ErrChanged) {
		t.Errorf("a file that exists: %v", err)
	}
	if err := w.Remove(t.Context(), path, []byte("other")); !errors.Is(err, atomicfile.ErrChanged) {
		t.Errorf("a file with other content: %v", err)
	}
	checkOnly(t, path, "old")
	if err := w.Remove(t.Context(), path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	if err := w.Create(t.Context(), path, []byte("new")); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "new")
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 || info.Sys().(*syscall.Stat_t).Nlink != 1 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestReplace_AtEachStepAnotherProgramWrites lets another program write the file after each step, either by truncating
// the file or by renaming another file. Afterwards the file must have the content that the other program wrote last.
func TestReplace_AtEachStepAnotherProgramWrites(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		for way, write := range writers {
			t.Run(step+" "+way, func(t *testing.T) {
				t.Parallel()
				w, path := newFile(t, "old")
				w.SetAt(func(at string) {
					if at != step {
						return
					}
					if err := write(path, "theirs"); err != nil {
						t.Error(err)
					}
				})
				if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); !errors.Is(err, atomicfile.ErrChanged) && step != "settled" {
					t.Errorf("error %v", err)
				}
				checkOnly(t, path, "theirs")
			})
		}
	}
}

var steps = []string{"locked", "checked", "created", "written", "complete", "compared", "replaced", "synced", "settled"}

var writers = map[string]func(path, content string) error{
	"in place": func(path, content string) error { return os.WriteFile(path, []byte(content), 0o600) },
	"by rename": func(path, content string) error {
		temp := filepath.Join(filepath.Dir(filepath.Dir(path)), filepath.Base(filepath.Dir(path))+".theirs")
		return errors.Join(os.WriteFile(temp, []byte(content), 0o600), os.Rename(temp, path))
	},
}

// On a system that can't exchange files, the writer notices what another program wrote before the last comparison.
func TestReplace_WithoutExchange(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	w.RenameOnly()
	if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	checkOnly(t, path, "new")
	for _, step := range []string{"checked", "complete", "replaced"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		w.SetAt(func(at string) {
			if at == step {
				if err := os.WriteFile(path, []byte("theirs "+step), 0o600); err != nil {
					t.Error(err)
				}
			}
		})
		if err := w.Replace(t.Context(), path, content, []byte("newer")); !errors.Is(err, atomicfile.ErrChanged) {
			t.Errorf("%s: %v", step, err)
		}
		checkOnly(t, path, "theirs "+step)
	}
}

// A program opens the file before the replacement and writes to it afterwards. The old file is restored.
func TestReplace_GivesBackAFileThatIsOpenElsewhere(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	theirs, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.SetAt(func(step string) {
		if step == "synced" {
			if _, err := theirs.WriteString("theirs"); err != nil {
				t.Error(err)
			}
		}
	})
	if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); !errors.Is(err, atomicfile.ErrChanged) {
		t.Errorf("error %v", err)
	}
	checkOnly(t, path, "theirs")
}

// TestReplace_RacesWithAnotherProgram lets another program change a counter in the file while the writer replaces the
// file. The last value of the counter must be in the file. SLUICE_ROUNDS is the number of rounds.
func TestReplace_RacesWithAnotherProgram(t *testing.T) {
	t.Parallel()
	for way, write := range writers {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			w, path := newFile(t, "counter 0 edits 0")
			replaced := 0
			for n := range rounds(t, 100) {
				if race(t, w, path, n+1, write) {
					replaced++
				}
				if err := os.WriteFile(path, fmt.Appendf(nil, "counter %d edits 0", n+1), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("replaced in %d rounds", replaced)
		})
	}
}

// race lets another program write a counter to the file while the writer replaces the file. It reports whether the
// writer replaced the file.
func race(t *testing.T, w *atomicfile.Writer, path string, counter int, write func(path, content string) error) bool {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, edits := read(t, path)
		done <- write(path, fmt.Sprintf("counter %d edits %d", counter, edits))
	}()
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(before, []byte("counter ")) { // it is being written in place
		before = []byte("other")
	}
	replaceErr := w.Replace(t.Context(), path, before, bytes.Replace(before, []byte("edits "), []byte("edits 1"), 1))
	if replaceErr != nil && !errors.Is(replaceErr, atomicfile.ErrChanged) {
		t.Fatal(replaceErr)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got, _ := read(t, path); got != counter {
		t.Fatalf("the counter is %d, want %d", got, counter)
	}
	return replaceErr == nil
}

func read(t *testing.T, path string) (counter, edits int) {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	_, _ = fmt.Sscanf(string(content), "counter %d edits %d", &counter, &edits)
	return counter, edits
}
