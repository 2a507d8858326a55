package atomicfile_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The caller cancels the context during Replace. Replace nevertheless waits for the time in Settle, in which another
// program may still write to the old file.
func TestReplace_SettlesWhenTheContextEnds(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	w.Settle = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var replaced time.Time
	w.SetAt(func(step string) {
		if step == "replaced" {
			replaced = time.Now()
			cancel()
		}
	})
	if err := w.Replace(ctx, path, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(replaced); took < w.Settle {
		t.Errorf("the old file was removed after %s", took)
	}
	checkOnly(t, path, "new")
}

// Replace removes a file as a leftover only if its name has exactly the form of a temporary file's name, and if the
// file belongs to the current user.
func TestReplace_RemovesOnlyItsOwnLeftovers(t *testing.T) {
	t.Parallel()
	w, path := newFile(t, "old")
	digest := strings.Repeat("0a", 16)
	prefix := filepath.Join(filepath.Dir(path), ".config.json.sluice-")
	names := map[string]bool{ // whether the file stays
		digest + "-" + digest + ".part":                  false,
		"notes.part":                                     true,
		"notes":                                          true,
		digest + ".part":                                 true,
		digest + "-" + digest + ".old.part":              true,
		digest + "-" + digest + "-x.part":                true,
		digest + "-" + digest[1:] + "g.part":             true,
		strings.ToUpper(digest) + "-" + digest + ".part": true,
	}
	for name := range names {
		if err := os.WriteFile(prefix+name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := prefix + digest + "-" + strings.Repeat("1", 32) + ".part"
	if os.Geteuid() == 0 {
		if err := errors.Join(os.WriteFile(foreign, nil, 0o600), os.Chown(foreign, 12345, -1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Replace(t.Context(), path, []byte("old"), []byte("new")); err != nil {
		t.Fatal(err)
	}
	for name, stays := range names {
		if _, err := os.Stat(prefix + name); errors.Is(err, fs.ErrNotExist) == stays {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(foreign); os.Geteuid() == 0 && err != nil {
		t.Errorf("the file of another user: %v", err)
	}
}
