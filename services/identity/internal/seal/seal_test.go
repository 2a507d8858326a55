package seal_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/identity/internal/seal"
)

func TestReadOrCreate_CreatesAKeyOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys", "identity", "seal")
	first, err := seal.ReadOrCreate(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the mode of the file is %v, %v", info.Mode(), err)
	}
	second, err := seal.ReadOrCreate(path)
	if err != nil {
		t.Fatal(err)
	}
	sealed := first.Seal([]byte("refresh token"), "server/1")
	if bytes.Contains(sealed, []byte("refresh")) {
		t.Error("the data are not encrypted")
	}
	if data, err := second.Open(sealed, "server/1"); err != nil || string(data) != "refresh token" {
		t.Errorf("got %q, %v", data, err)
	}
}

func TestReadOrCreate_RefusesAFileWithoutAKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "seal")
	if err := os.WriteFile(path, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := seal.ReadOrCreate(path); err == nil || !strings.Contains(err.Error(), "64 hexadecimal digits") {
		t.Errorf("the error is %v", err)
	}
}

func TestOpen_RefusesOtherDataKeysAndPurposes(t *testing.T) {
	t.Parallel()
	key, err := seal.NewKey(strings.Repeat("0a", 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := seal.NewKey(strings.Repeat("0b", 32))
	if err != nil {
		t.Fatal(err)
	}
	sealed := key.Seal([]byte("data"), "a")
	changed := bytes.Clone(sealed)
	changed[len(changed)-1] ^= 1
	for name, open := range map[string]func() ([]byte, error){
		"another key":     func() ([]byte, error) { return other.Open(sealed, "a") },
		"another purpose": func() ([]byte, error) { return key.Open(sealed, "b") },
		"changed":         func() ([]byte, error) { return key.Open(changed, "a") },
		"cut":             func() ([]byte, error) { return key.Open(sealed[:10], "a") },
		"empty":           func() ([]byte, error) { return key.Open(nil, "a") },
	} {
		if data, err := open(); !errors.Is(err, seal.ErrOpen) || data != nil {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}
