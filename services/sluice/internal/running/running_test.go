package running_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gofrs/flock"

	"github.com/sluice-mesh/sluice/services/sluice/internal/running"
)

func TestFind_ReturnsTheMeshWhileItRuns(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	want := running.Mesh{MCP: "127.0.0.1:1", GRPC: "127.0.0.1:2", PID: 3, OnDemand: true, Version: "v"}
	if m, found, err := running.Find(data); found || err != nil {
		t.Fatalf("before: %+v, %v", m, err)
	}
	a, err := running.Announce(t.Context(), data, want)
	if err != nil {
		t.Fatal(err)
	}
	if m, found, err := running.Find(data); !found || err != nil || m != want {
		t.Errorf("while it runs: %+v, %v, %v", m, found, err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if m, found, err := running.Find(data); found || err != nil {
		t.Errorf("after: %+v, %v", m, err)
	}
}

// A killed mesh does not remove its addresses, and another program may get its port. Therefore Find ignores the
// addresses.
func TestFind_IgnoresAddressesWithoutLock(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	for name, content := range map[string]string{"addresses.json": `{"mcp":"127.0.0.1:1"}`, "running": ""} {
		if err := os.WriteFile(filepath.Join(data, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if m, found, err := running.Find(data); found || err != nil {
		t.Errorf("got %+v, %v", m, err)
	}
}

// While a mesh announces itself, Find does not return the addresses of a mesh that was killed.
func TestAnnounce_RemovesOldAddressesBeforeItLocks(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	file := filepath.Join(data, "addresses.json")
	if err := os.WriteFile(file, []byte(`{"mcp":"127.0.0.1:1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	lock := flock.New(filepath.Join(data, "running"))
	if ok, err := lock.TryLock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := running.Announce(ended, data, running.Mesh{PID: 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old addresses: %v", err)
	}
}
