package sluice

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	"github.com/sluice-mesh/sluice/services/internal/config"
)

func newTestMesh(t *testing.T) *Mesh {
	t.Helper()
	f, dir := config.Default(), t.TempDir()
	f.Listen, f.GRPC, f.Data, f.Policies = "127.0.0.1:0", "127.0.0.1:0", dir, []string{filepath.Join(dir, "policy.yaml")}
	if err := os.WriteFile(f.Policies[0], []byte("version: 1\ndefault: deny\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := New(t.Context(), Options{File: &f, Env: func(string) (string, bool) { return "", false }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

type callLog struct {
	mu    sync.Mutex
	lines []string
}

func (d *callLog) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// role is an additional mesh service for tests. It offers no RPCs, but it runs and holds a resource.
type role struct {
	name string
	*callLog
	// running receives the service's name when the service starts to run. The field broken is the error that Close
	// returns.
	running chan<- string
	broken  error
}

func (role) Register(grpc.ServiceRegistrar) {}

func (r role) Run(ctx context.Context) error {
	r.running <- r.name
	<-ctx.Done()
	r.write(r.name + " has run")
	return nil
}

func (r role) Close() error {
	r.write(r.name + " is closed")
	return r.broken
}

func TestMesh_RunsRolesAndClosesThemInReverse(t *testing.T) {
	t.Parallel()
	m, d, running := newTestMesh(t), new(callLog), make(chan string)
	broken := errors.New("it won't close")
	if err := m.add(authv1.Role_ROLE_AUDIT, role{"audit", d, running, broken}); err != nil {
		t.Fatal(err)
	}
	if err := m.add(authv1.Role_ROLE_CONSOLE, role{"console", d, running, nil}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	for range 2 {
		select {
		case <-running:
		case <-time.After(10 * time.Second):
			t.Fatal("a role does not run")
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Errorf("Run returned %v", err)
	}
	if err := m.Close(); !errors.Is(err, broken) {
		t.Errorf("Close returned %v, want the error of the audit role", err)
	}
	slices.Sort(d.lines[:2]) // both roles end at the same time
	if want := []string{"audit has run", "console has run", "console is closed", "audit is closed"}; !slices.Equal(d.lines, want) {
		t.Errorf("the roles did %q, want %q", d.lines, want)
	}
}

func TestMesh_ConnectsEveryRole(t *testing.T) {
	t.Parallel()
	m := newTestMesh(t)
	for number := range authv1.Role_name {
		role := authv1.Role(number)
		if _, err := m.conn(role); (err == nil) != (role != authv1.Role_ROLE_UNSPECIFIED) {
			t.Errorf("the connection of %v: %v", role, err)
		}
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
}
