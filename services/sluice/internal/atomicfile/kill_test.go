package atomicfile_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/atomicfile"
)

func rounds(t *testing.T, otherwise int) int {
	t.Helper()
	text, ok := os.LookupEnv("SLUICE_ROUNDS")
	if !ok {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// childStep is the environment variable that contains the step at which the child process stops.
const childStep = "ATOMICFILE_TEST_STEP"

func TestMain(m *testing.M) {
	if step, ok := os.LookupEnv(childStep); ok {
		if err := child(step); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child replaces, creates or removes a file. At the given step, it prints a line and waits until it is killed.
func child(step string) error {
	w, path := &atomicfile.Writer{Lock: os.Args[1]}, os.Args[2]
	w.SetAt(func(at string) {
		if at == step {
			fmt.Println(at)
			select {}
		}
	})
	ctx := context.Background()
	switch os.Args[3] {
	case "create":
		return w.Create(ctx, path, []byte(newContent))
	case "remove":
		return w.Remove(ctx, path, []byte(oldContent))
	default:
		return w.Replace(ctx, path, []byte(oldContent), []byte(newContent))
	}
}

var oldContent, newContent = strings.Repeat("old\n", 50_000), strings.Repeat("new, longer\n", 50_000)

// TestReplace_KilledAtEachStep kills a child process at each step. The file must have either the old or the new
// content. Then the next call must succeed and leave no other files.
func TestReplace_KilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			w, path := newFile(t, oldContent)
			killAt(t, step, w.Lock, path, "replace")
			content, err := os.ReadFile(path)
			want := oldContent
			if step == "replaced" || step == "synced" || step == "settled" {
				want = newContent
			}
			if err != nil || string(content) != want {
				t.Fatalf("the file has %d bytes: %v", len(content), err)
			}
			if err := w.Replace(t.Context(), path, content, []byte("next")); err != nil {
				t.Fatal(err)
			}
			checkOnly(t, path, "next")
		})
	}
}

func killAt(t *testing.T, step, lock, path, operation string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], lock, path, operation)
	cmd.Env = append(os.Environ(), childStep+"="+step)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if killErr := cmd.Process.Kill(); err != nil || killErr != nil || strings.TrimSpace(line) != step {
		t.Fatalf("the child does not reach %q: %q, %v", step, line, errors.Join(err, killErr))
	}
	_ = cmd.Wait()
}

// A process is killed at each step of Create. The file does not exist or has the whole content. The next call leaves no
// other files.
func TestCreate_KilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"locked", "created", "written", "complete", "linked"} {
		w, path := newFile(t, "")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		killAt(t, step, w.Lock, path, "create")
		if step != "linked" {
			if err := w.Create(t.Context(), path, []byte(newContent)); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		if err := w.Replace(t.Context(), path, []byte(newContent), []byte("next")); err != nil {
			t.Errorf("%s: %v", step, err)
		}
		checkOnly(t, path, "next")
	}
}

// A process is killed at each step of Remove. The file has the old content or does not exist. The next call leaves no
// other files.
func TestRemove_KilledAtEachStep(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"locked", "checked", "moved"} {
		w, path := newFile(t, oldContent)
		killAt(t, step, w.Lock, path, "remove")
		want := error(nil)
		if step == "moved" {
			want = fs.ErrNotExist
		}
		if err := w.Remove(t.Context(), path, []byte(oldContent)); !errors.Is(err, want) {
			t.Errorf("%s: %v", step, err)
		}
		if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
			t.Errorf("%s: the directory has the entries %v, %v", step, entries, err)
		}
	}
}

// A process was killed while a temporary file contained what another program wrote. The next call does not remove this
// temporary file.
func TestReplace_KeepsALeftoverOfAnotherProgram(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, oldContent)
	killAt(t, "compared", w.Lock, path, "replace")
	found, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".config.json.sluice-*"))
	if err != nil || len(found) != 1 {
		t.Fatal(found, err)
	}
	if err := os.WriteFile(found[0], []byte("theirs"), 0o600); err != nil {
		t.Fatal(err)
	}
	err = w.Replace(t.Context(), path, []byte(oldContent), []byte("next"))
	if !errors.Is(err, atomicfile.ErrChanged) || !strings.Contains(err.Error(), found[0]) {
		t.Errorf("error %v", err)
	}
	if content, err := os.ReadFile(found[0]); err != nil || string(content) != "theirs" {
		t.Errorf("%q, %v", content, err)
	}
}
