package secretstore_test

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/keychain"
	"github.com/sluice-mesh/sluice/services/internal/keychain/keychaintest"
	"github.com/sluice-mesh/sluice/services/sluice/internal/secretstore"
)

// withoutKeychain changes the environment so that the test's process finds no session bus.
func withoutKeychain(t *testing.T) {
	t.Helper()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+t.TempDir()+"/none")
}

func withKeychain(t *testing.T) *keychaintest.Service {
	t.Helper()
	s := keychaintest.Start(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", s.Address)
	return s
}

func open(t *testing.T, data string, want secretstore.Kind) *secretstore.Store {
	t.Helper()
	s, err := secretstore.Open(t.Context(), data, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if s.Kind() != want {
		t.Fatalf("the store is of the kind %s, not %s", s.Kind(), want)
	}
	return s
}

func put(t *testing.T, s *secretstore.Store, server, name, value string) string {
	t.Helper()
	reference, err := s.Put(t.Context(), server, name, value)
	if err != nil {
		t.Fatal(err)
	}
	return reference
}

// resolve returns the value to which the configuration resolves a reference.
func resolve(t *testing.T, reference string) string {
	t.Helper()
	f := config.Default()
	value, err := config.Secret(reference).Resolve(&f, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func TestOpen_SelectsTheKeychainThatWorks(t *testing.T) {
	box := withKeychain(t)
	s := open(t, t.TempDir(), secretstore.Keychain)
	if got := put(t, s, "github", "GITHUB_TOKEN", "ghp_1"); got != "${keychain:github/GITHUB_TOKEN}" {
		t.Errorf("the reference is %s", got)
	}
	put(t, s, "github", "GITHUB_TOKEN", "ghp_2")
	if want := map[string]string{"github/GITHUB_TOKEN": "ghp_2"}; !maps.Equal(box.Values(), want) {
		t.Errorf("the keychain has %v, want %v", box.Values(), want)
	}
}

func TestOpen_SelectsFilesIfTheKeychainIsLocked(t *testing.T) {
	box := withKeychain(t)
	box.Lock()
	open(t, t.TempDir(), secretstore.Files)
}

func TestPut_StoresInFilesOfTheOwnerWithoutAKeychain(t *testing.T) {
	withoutKeychain(t)
	data := t.TempDir()
	s := open(t, data, secretstore.Files)
	reference := put(t, s, "github", "Authorization", "Bearer 1")
	path := filepath.Join(data, "secrets", "github", "Authorization")
	if want := "${file:" + path + "}"; reference != want {
		t.Errorf("the reference is %s, want %s", reference, want)
	}
	if got := resolve(t, put(t, s, "github", "Authorization", "Bearer 2")); got != "Bearer 2" {
		t.Errorf("the value is %q", got)
	}
	for at, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700 | os.ModeDir, filepath.Join(data, "secrets"): 0o700 | os.ModeDir} {
		if info, err := os.Lstat(at); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", at, info.Mode(), err, want)
		}
	}
	if names, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "*")); len(names) != 1 {
		t.Errorf("the directory has %v", names)
	}
}

func TestPut_StoresLargeValuesInFiles(t *testing.T) {
	withKeychain(t)
	s := open(t, t.TempDir(), secretstore.Keychain)
	for size, kind := range map[int]string{keychain.MaxBytes: "${keychain:", keychain.MaxBytes + 1: "${file:"} {
		value := strings.Repeat("k", size)
		reference := put(t, s, "google", "KEY", value)
		if !strings.HasPrefix(reference, kind) {
			t.Errorf("%d bytes: the reference is %s", size, reference)
		}
	}
}

func TestPut_RefusesUnsafeNamesAndValuesThatWouldChange(t *testing.T) {
	withoutKeychain(t)
	s := open(t, t.TempDir(), secretstore.Files)
	for _, c := range []struct{ server, name, value string }{
		{"", "A", "x"}, {"..", "A", "x"}, {"a/b", "A", "x"}, {".keys", "A", "x"}, {"A", "A", "x"},
		{"a", "", "x"}, {"a", "..", "x"}, {"a", "../b", "x"}, {"a", "A}", "x"}, {"a", "-A", "x"}, {"a", "A\n", "x"},
		{"a", "A", ""}, {"a", "A", "x\n"},
	} {
		if got, err := s.Put(t.Context(), c.server, c.name, c.value); err == nil {
			t.Errorf("%q: %s", c, got)
		}
	}
	for _, data := range []string{"data", "", "/tmp/a}b", "/tmp/${x"} {
		if _, err := secretstore.Open(t.Context(), data, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("the data directory %q was accepted", data)
		}
	}
}

func TestDelete_DeletesOnlySecretsOfTheStore(t *testing.T) {
	box := withKeychain(t)
	data := t.TempDir()
	s := open(t, data, secretstore.Keychain)
	files, err := secretstore.OpenKind(data, secretstore.Files)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(data, "other")
	if err := os.WriteFile(other, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, reference := range []string{put(t, s, "a", "A", "x"), put(t, files, "a", "A", "x"), put(t, files, "a", "B", "x")} {
		for range 2 { // the second time, the secret does not exist
			if err := s.Delete(t.Context(), reference); err != nil {
				t.Errorf("%s: %v", reference, err)
			}
		}
	}
	if left, _ := os.ReadDir(filepath.Join(data, "secrets")); len(box.Values())+len(left) != 0 {
		t.Errorf("left: %v, %v", box.Values(), left)
	}
	for _, reference := range []string{"${file:" + other + "}", "${file:" + data + "/secrets/../other}", "${keychain:../x}", "${env:A}", "x", ""} {
		if err := s.Delete(t.Context(), reference); err == nil {
			t.Errorf("%q was accepted", reference)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

func TestKey_IsCreatedOnceAndSeals(t *testing.T) {
	withKeychain(t)
	for _, kind := range []secretstore.Kind{secretstore.Keychain, secretstore.Files} {
		t.Run(string(kind), func(t *testing.T) {
			s, err := secretstore.OpenKind(t.TempDir(), kind)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.ExistingKey(t.Context(), "init"); !errors.Is(err, secretstore.ErrNoKey) {
				t.Errorf("before the key is created: %v", err)
			}
			first, err := s.Key(t.Context(), "init")
			if err != nil || len(first) != 32 {
				t.Fatalf("%d bytes, %v", len(first), err)
			}
			second, err := s.Key(t.Context(), "init")
			if err != nil || !bytes.Equal(first, second) {
				t.Errorf("the second key differs, or %v", err)
			}
			if other, err := s.Key(t.Context(), "other"); err != nil || bytes.Equal(first, other) {
				t.Errorf("the key with another name is equal, or %v", err)
			}
			for range 2 {
				if err := s.DeleteKey(t.Context(), "init"); err != nil {
					t.Error(err)
				}
			}
			if _, err := s.ExistingKey(t.Context(), "init"); !errors.Is(err, secretstore.ErrNoKey) {
				t.Errorf("after the key was deleted: %v", err)
			}
		})
	}
}

func TestOpenSealed_RefusesChangesOtherKeysAndOtherPurposes(t *testing.T) {
	t.Parallel()
	key, other := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
	value := []byte(`{"env":{"TOKEN":"x"}}`)
	sealed, err := secretstore.Seal(key, value, "settings.json")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := secretstore.OpenSealed(key, sealed, "settings.json"); err != nil || !bytes.Equal(got, value) {
		t.Fatalf("got %s, %v", got, err)
	}
	if bytes.Contains(sealed, []byte("TOKEN")) {
		t.Error("the sealed value is readable")
	}
	for i := range sealed {
		changed := slices.Clone(sealed)
		changed[i] ^= 1
		if _, err := secretstore.OpenSealed(key, changed, "settings.json"); err == nil {
			t.Errorf("a change of byte %d was not found", i)
		}
	}
	for name, err := range map[string]error{
		"another key":     opened(other, sealed, "settings.json"),
		"another purpose": opened(key, sealed, "config.toml"),
		"truncated":       opened(key, sealed[:10], "settings.json"),
		"empty":           opened(key, nil, "settings.json"),
		"short key":       opened(key[:16], sealed, "settings.json"),
	} {
		if err == nil {
			t.Errorf("%s: it was opened", name)
		}
	}
}

func opened(key, sealed []byte, purpose string) error {
	_, err := secretstore.OpenSealed(key, sealed, purpose)
	return err
}

// The token of a session is stored like a secret, and never in the configuration.
func TestSession_IsStoredAndDeleted(t *testing.T) {
	for _, kind := range []secretstore.Kind{secretstore.Files, secretstore.Keychain} {
		t.Run(string(kind), func(t *testing.T) {
			if kind == secretstore.Keychain {
				withKeychain(t)
			} else {
				withoutKeychain(t)
			}
			s := open(t, t.TempDir(), kind)
			for _, want := range []string{"one", "two"} {
				if err := s.PutSession(t.Context(), "mesh", want); err != nil {
					t.Fatal(err)
				}
				if got, err := s.Session(t.Context(), "mesh"); err != nil || got != want {
					t.Errorf("the session is %q, %v", got, err)
				}
			}
			for range 2 {
				if err := s.DeleteSession(t.Context(), "mesh"); err != nil {
					t.Error(err)
				}
			}
			if got, err := s.Session(t.Context(), "mesh"); err == nil {
				t.Errorf("the deleted session is %q", got)
			}
			if err := s.PutSession(t.Context(), "../mesh", "x"); err == nil {
				t.Error("a path is accepted as a name")
			}
		})
	}
}
