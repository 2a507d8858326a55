package datadir_test

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/datadir"
)

// folderEnv is the environment variable that contains the data directory that a child process must lock.
const folderEnv = "DATADIR_TEST_FOLDER"

// TestMain locks a directory if folderEnv is set. The test binary then runs as a child process that holds the lock
// until the test kills it.
func TestMain(m *testing.M) {
	data := os.Getenv(folderEnv)
	if data == "" {
		os.Exit(m.Run())
	}
	if _, err := datadir.Open(data, "gateway"); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // returns when the test ends the process
}

func TestOpen_LocksFolder(t *testing.T) {
	t.Parallel()
	data := filepath.Join(t.TempDir(), "data")
	d, err := datadir.Open(data, "gateway")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := d.Path("journal", "x"), filepath.Join(data, "gateway", "journal", "x"); got != want {
		t.Errorf("the path is %s, want %s", got, want)
	}
	if info, err := os.Stat(filepath.Join(data, "gateway")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder's mode is %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Join(data, "gateway", "lock")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the lock's mode is %v, %v", info.Mode(), err)
	}
	if _, err := datadir.Open(data, "gateway"); !errors.Is(err, datadir.ErrInUse) || !strings.Contains(err.Error(), "choose another folder with --data") {
		t.Errorf("the folder was opened twice: %v", err)
	}
	other, err := datadir.Open(data, "policy")
	if err != nil {
		t.Fatalf("another role's folder: %v", err)
	}
	for _, held := range []*datadir.Dir{d, other} {
		if err := held.Close(); err != nil {
			t.Error(err)
		}
	}
	again, err := datadir.Open(data, "gateway")
	if err != nil {
		t.Fatalf("after the folder was closed: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}

// A directory is locked while its process runs. After the process is killed, another process can lock the directory.
func TestOpen_SucceedsAfterOtherProcessWasKilled(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), folderEnv+"="+data)
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "held\n" {
		t.Fatalf("the other process printed %q, %v", line, err)
	}
	if _, err := datadir.Open(data, "gateway"); !errors.Is(err, datadir.ErrInUse) {
		t.Errorf("a folder that another process holds was opened: %v", err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // the test has killed the process
	d, err := datadir.Open(data, "gateway")
	if err != nil {
		t.Fatalf("after the other process was killed: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpen_NamesFolderThatCannotBeCreated(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.Open(file, "gateway"); err == nil || !strings.Contains(err.Error(), filepath.Join(file, "gateway")) {
		t.Errorf("got %v", err)
	}
	data := t.TempDir()
	if err := os.MkdirAll(filepath.Join(data, "gateway", "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := datadir.Open(data, "gateway"); err == nil || errors.Is(err, datadir.ErrInUse) {
		t.Errorf("a folder in the lock's place: %v", err)
	}
}

func TestRemoveAll_RemovesReadOnlyFoldersAndKeepsLinkTargets(t *testing.T) {
	dir, linked := filepath.Join(t.TempDir(), "program"), t.TempDir()
	t.Cleanup(func() { _ = os.Chmod(linked, 0o700) }) // so that the test's own files can be removed
	for _, err := range []error{
		os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700), os.WriteFile(filepath.Join(dir, "a", "b", "file"), nil, 0o400),
		os.WriteFile(filepath.Join(linked, "file"), nil, 0o600), os.Symlink(linked, filepath.Join(dir, "a", "link")),
		os.Chmod(linked, 0o500), os.Chmod(filepath.Join(dir, "a", "b"), 0), os.Chmod(filepath.Join(dir, "a"), 0),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := datadir.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder still exists: %v", err)
	}
	info, err := os.Stat(linked)
	if err != nil || info.Mode().Perm() != 0o500 {
		t.Errorf("the folder that a link points at is %v, %v; want mode 0500", info, err)
	}
	if _, err := os.Lstat(filepath.Join(linked, "file")); err != nil {
		t.Error(err)
	}
}
