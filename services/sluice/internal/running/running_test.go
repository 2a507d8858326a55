package running_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

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

// A killed mesh leaves its addresses, and another program may get its port.
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

func TestAnnounce_WaitsForTheOtherMesh(t *testing.T) {
	t.Parallel()
	data := t.TempDir()
	a, err := running.Announce(t.Context(), data, running.Mesh{PID: 1})
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := running.Announce(ended, data, running.Mesh{PID: 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if m, found, _ := running.Find(data); !found || m.PID != 1 {
		t.Errorf("found %+v", m)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := running.Announce(t.Context(), data, running.Mesh{PID: 2})
	if err != nil {
		t.Fatal(err)
	}
	if m, found, _ := running.Find(data); !found || m.PID != 2 {
		t.Errorf("found %+v", m)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}
