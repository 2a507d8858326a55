package secretstore_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// A killed process has left temporary files. Only these files are removed, and also a directory that contains nothing
// else.
func TestRemoveLeftovers_RemovesTemporaryFiles(t *testing.T) {
	withoutKeychain(t)
	data := filepath.Join(t.TempDir(), "a[b]*")
	s := open(t, data, secretstore.Files)
	reference := put(t, s, "github", "TOKEN", "1")
	for _, dir := range []string{"github", "notion", ".keys"} {
		at := filepath.Join(data, "secrets", dir)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, ".new-123"), []byte("2"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.RemoveLeftovers(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(data, "secrets")); err != nil || len(left) != 1 {
		t.Errorf("these directories are left: %v, %v", left, err)
	}
	if got := resolve(t, reference); got != "1" {
		t.Errorf("the secret is %q", got)
	}
	if err := open(t, t.TempDir(), secretstore.Files).RemoveLeftovers(); err != nil {
		t.Errorf("a store without secrets: %v", err)
	}
}
