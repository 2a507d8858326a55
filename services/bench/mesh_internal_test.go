package bench

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/sluice"
)

func TestPolicyText_HasTheRules(t *testing.T) {
	t.Parallel()
	var doc struct {
		Tools map[string]any
		Rules []any
	}
	if err := yaml.Unmarshal([]byte(policyText()), &doc); err != nil {
		t.Fatal(err)
	}
	if got := len(doc.Tools) + len(doc.Rules); got != policyRules {
		t.Errorf("the policy has %d rules, want %d", got, policyRules)
	}
}

// The test runs a mesh with the benchmark's configuration in this process. The mesh responds correctly to the calls of
// every cell of `sluice up`.
func TestMesh_AnswersEveryCell(t *testing.T) {
	t.Parallel()
	s := newTestSites(t)
	var err error
	if s.issuer, err = startIssuer(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.issuer.close)
	path, err := s.writeMesh(s.dir, meshFile{MCP: "127.0.0.1:0", GRPC: "127.0.0.1:0", Data: "data", Issuer: s.issuer.url()})
	if err != nil {
		t.Fatal(err)
	}
	at := s.meshAt(startMesh(t, path))
	if err := s.issuer.awaitKeys(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	for _, cell := range Cells() {
		if cell.site != siteUp && cell.site != siteUpJWT {
			continue
		}
		sessions, err := openSessions(t.Context(), at, s.tokensOf(cell)[:2], cell.tool)
		if err != nil {
			t.Fatal(err)
		}
		c := newCaller(at, sessions, cell.mark)
		if err := c.connect(t.Context(), time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := c.call(); err != nil {
				t.Errorf("%s: %v", cell.Name, err)
			}
		}
		c.close()
	}
}

func TestWriteMesh_ConfiguresSeparateRoles(t *testing.T) {
	t.Parallel()
	s := newTestSites(t)
	mesh := meshFile{MCP: "127.0.0.1:1", GRPC: "127.0.0.1:2", Data: "data", Certs: "certs", Asked: true, Roles: map[string]string{"gateway": "127.0.0.1:3", "policy": "127.0.0.1:4", "ratelimit": "127.0.0.1:5"}}
	path, err := s.writeMesh(s.dir, mesh)
	if err != nil {
		t.Fatal(err)
	}
	f, err := config.Load(path, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	if !f.HasSeparateRoles() || f.Roles["ratelimit"].Addr != mesh.Roles["ratelimit"] || f.Telemetry.Sample != 0.01 || f.Telemetry.OTLP != s.sink.url() || f.Decisions.Keep {
		t.Errorf("the configuration says %+v", f)
	}
}

// newTestSites returns the sites for a test, with a temporary directory for their files. Only the echo server and the
// receiver of spans are running.
func newTestSites(t testing.TB) *sites {
	t.Helper()
	drain, err := startSink(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(drain.close)
	addrs, err := freeAddrs(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, addrs[0], NewEcho()) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	echo := &site{at: endpoint{addr: addrs[0], path: "/mcp"}}
	return &sites{dir: t.TempDir(), tokens: newTokens(), sink: drain, echo: echo}
}

// startMesh runs a mesh in this process with the configuration file at the given path, and returns its MCP address.
func startMesh(t testing.TB, path string) string {
	t.Helper()
	f, err := config.Load(path, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	mesh, err := sluice.New(ctx, sluice.Options{File: f, Env: os.LookupEnv, Version: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mesh.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := mesh.Close(); err != nil {
			t.Error(err)
		}
	})
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := mesh.WaitReady(ready); err != nil {
		t.Fatal(err)
	}
	return mesh.MCP().String()
}
