package keychain_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/internal/keychain"
	"github.com/sluice-mesh/sluice/services/internal/keychain/keychaintest"
)

// limit is the maximum duration of an operation that should not have to wait. If it takes longer, the test fails.
const limit = 20 * time.Second

func TestKeychain_StoresReplacesAndDeletes(t *testing.T) {
	s := keychaintest.Start(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", s.Address)
	storeAndDelete(t)
	if left := s.Values(); len(left) != 0 {
		t.Errorf("the keychain has %v", left)
	}
}

// The keychain also works with gnome-keyring, which is the Secret Service of most desktops.
func TestKeychain_WorksWithGnomeKeyring(t *testing.T) {
	program, err := exec.LookPath("gnome-keyring-daemon")
	if err != nil {
		t.Skip("install gnome-keyring to run this test")
	}
	address, home := keychaintest.StartBus(t), t.TempDir()
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", address)
	c := exec.Command(program, "--unlock", "--foreground", "--components=secrets", "--control-directory="+home)
	c.Env = []string{"DBUS_SESSION_BUS_ADDRESS=" + address, "HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_RUNTIME_DIR=" + home, "PATH=" + os.Getenv("PATH")}
	c.Stdin = strings.NewReader("password of a test")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil && !errors.Is(err, io.EOF) { // it prints its variables when it is ready
		t.Fatal(err)
	}
	storeAndDelete(t)
}

func storeAndDelete(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if _, err := keychain.Get(ctx, "github/TOKEN"); !errors.Is(err, keychain.ErrNotFound) {
		t.Fatalf("an entry that does not exist: %v", err)
	}
	for _, value := range []string{"first value", " second\nvalue ä\n", strings.Repeat("x", keychain.MaxBytes)} {
		if err := keychain.Set(ctx, "github/TOKEN", value); err != nil {
			t.Fatal(err)
		}
		if got, err := keychain.Get(ctx, "github/TOKEN"); err != nil || got != value {
			t.Fatalf("got %q, %v; want %q", got, err, value)
		}
	}
	if err := keychain.Set(ctx, "github/TOKEN", strings.Repeat("x", keychain.MaxBytes+1)); err == nil {
		t.Error("a value above the limit was stored")
	}
	if err := keychain.Delete(ctx, "github/TOKEN"); err != nil {
		t.Fatal(err)
	}
	if err := keychain.Delete(ctx, "github/TOKEN"); !errors.Is(err, keychain.ErrNotFound) {
		t.Errorf("the second deletion: %v", err)
	}
}

func TestGet_EndsWithItsContextWhileTheKeychainIsLocked(t *testing.T) {
	s := keychaintest.Start(t)
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", s.Address)
	s.Put("github/TOKEN", "value")
	s.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.Prompts
		cancel()
	}()
	if got, err := keychain.Get(ctx, "github/TOKEN"); !errors.Is(err, keychain.ErrNoAnswer) {
		t.Fatalf("got %q, %v", got, err)
	}
	// The next request is sent only after the cancelled request has ended.
	ctx, cancel = context.WithTimeout(t.Context(), limit)
	defer cancel()
	go func() {
		<-s.Prompts
		s.Unlock()
	}()
	if got, err := keychain.Get(ctx, "github/TOKEN"); err != nil || got != "value" {
		t.Errorf("after a person has unlocked the keychain: got %q, %v", got, err)
	}
}

func TestGet_FailsWithoutAKeychain(t *testing.T) {
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path="+t.TempDir()+"/none")
	if got, err := keychain.Get(t.Context(), "github/TOKEN"); err == nil || !strings.Contains(err.Error(), "no keychain here") {
		t.Errorf("without a bus: got %q, %v", got, err)
	}
	t.Setenv("DBUS_SESSION_BUS_ADDRESS", keychaintest.StartBus(t))
	if got, err := keychain.Get(t.Context(), "github/TOKEN"); err == nil || errors.Is(err, keychain.ErrNotFound) {
		t.Errorf("without a Secret Service: got %q, %v", got, err)
	}
}
