// Package stack starts a real mesh for tests, either in the test's process or as a separate process. Tests use the mesh
// as its users would.
package stack

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-mesh/sluice/services/internal/config"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
	"github.com/sluice-mesh/sluice/services/sluice"
)

// These are the tokens that every stack accepts. They have at least the minimum length, and none of them appears in the
// documentation.
const (
	AgentToken    = "test-agent-token-A1b2C3d4E5f6G7h8"
	OtherToken    = "test-other-agent-Z9y8X7w6V5u4T3s2"
	OperatorToken = "test-operator-token-Q1w2E3r4T5y6"
	ViewerToken   = "test-viewer-token-M1n2B3v4C5x6Z7l8"
)

// OpenPolicy allows every call, so no rule denies a call. The only rate limit allows three calls per minute to the tool
// named "limited".
const OpenPolicy = "version: 1\nname: open\ndefault: allow\ntools:\n  limited: {rate_limit: {max: 3, window: 60}}\n"

// readyTimeout limits how long a mesh may take to start.
const readyTimeout = time.Minute

// Options describes what a stack serves.
type Options struct {
	// Servers is the YAML below the key `servers`, indented, for example "  demo: {http: {url:
	// \"http://127.0.0.1:1/mcp\"}}".
	Servers string
	// Policy is one policy document. StoredPolicies is true if the mesh uses the policies in the policy service's store
	// instead.
	Policy         string
	StoredPolicies bool
	// Tokens contains additional tokens as indented YAML below `auth.tokens`, with one line for each token.
	Tokens string
	// Extra contains additional YAML for the top level of the configuration.
	Extra string
	// Listen and GRPC are listen addresses. If they are empty, the system chooses the ports.
	Listen, GRPC string
	// Log receives the log of the mesh. If it is nil, the log is discarded.
	Log io.Writer
}

// Stack is a running mesh.
type Stack struct {
	// URL is the base URL of the MCP edge, for example "http://127.0.0.1:40001".
	URL string
	// GRPC is the address at which all mesh services are served over gRPC.
	GRPC string
	// Dir is the directory that contains the configuration, the policy and the data.
	Dir string
	// Config and Policy are the files that the mesh reads.
	Config, Policy string
	// Tokens is the path of the directory that contains the generated tokens. It is set only for a [Process].
	Tokens string
	// Program is the path of the `sluice` program that [Launch] starts. If it is empty, Launch builds the program with
	// [Program]. Env contains additional environment variables for the program.
	Program string
	Env     []string
	// Args contains additional arguments for [Start].
	Args []string
	// OwnGroup is true if the program starts in its own process group, so that Ctrl-C at a terminal does not reach it.
	OwnGroup bool
	// Wrapper is a command that runs the program, for example nice or chrt. If it is empty, the program runs directly.
	Wrapper []string
}

// MCP returns the MCP edge's URL for a server.
func (s *Stack) MCP(server string) string { return s.URL + "/mcp/" + server }

// AllServers returns the MCP edge's URL for all servers together.
func (s *Stack) AllServers() string { return s.URL + "/mcp" }

// Journal returns the directory of the gateway's journal.
func (s *Stack) Journal() string { return filepath.Join(s.Dir, "data", "gateway", "journal") }

// Operator returns a gRPC connection with the operator's token. It is closed when the test ends.
func (s *Stack) Operator(t *testing.T) *grpc.ClientConn { return s.DialWithToken(t, OperatorToken) }

// DialWithToken returns a gRPC connection that sends token. If token is empty, the connection sends no token.
func (s *Stack) DialWithToken(t *testing.T, token string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialPerson(s.GRPC, token, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// StartInProcess starts a mesh in this process and stops it when the test ends.
func StartInProcess(t *testing.T, opts Options) *Stack {
	t.Helper()
	s := WriteConfig(t, opts)
	f, err := config.Load(s.Config, os.LookupEnv)
	if err != nil {
		t.Fatal(err)
	}
	out := opts.Log
	if out == nil {
		out = io.Discard
	}
	ctx, stop := context.WithCancel(t.Context())
	mesh, err := sluice.New(ctx, sluice.Options{
		File: f, Env: os.LookupEnv, Version: "test", Log: slog.New(slog.NewTextHandler(out, nil)), Launcher: programs.launcher,
	})
	if err != nil {
		stop()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- mesh.Run(ctx) }()
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		stop()
		if err := <-done; err != nil {
			t.Errorf("the mesh stopped with %v", err)
		}
		if err := mesh.Close(); err != nil {
			t.Errorf("the mesh closed with %v", err)
		}
	})
	ready, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	if err := mesh.WaitReady(ready); err != nil {
		t.Fatal(err)
	}
	s.URL, s.GRPC = "http://"+mesh.MCP().String(), mesh.GRPC().String()
	return s
}

// WriteConfig writes a configuration and its policy to a temporary directory. If opts contains no addresses, the
// operating system chooses them.
func WriteConfig(t *testing.T, opts Options) *Stack {
	t.Helper()
	dir := t.TempDir()
	s := &Stack{Dir: dir, Config: filepath.Join(dir, "sluice.yaml"), Policy: filepath.Join(dir, "policy.yaml")}
	text := fmt.Sprintf(`listen: %s
grpc: %s
data: data
policies: [policy.yaml]
auth:
  tokens:
    - {name: agent, token: %q, agent: dev, groups: [developers], role: agent}
    - {name: other, token: %q, agent: dev, role: agent}
    - {name: operator, token: %q, role: operator}
    - {name: viewer, token: %q, role: viewer}
%s
servers:
%s
%s
`, cmp.Or(opts.Listen, "127.0.0.1:0"), cmp.Or(opts.GRPC, "127.0.0.1:0"), AgentToken, OtherToken, OperatorToken, ViewerToken, opts.Tokens, strings.TrimRight(opts.Servers, "\n"), opts.Extra)
	if strings.TrimSpace(opts.Servers) == "" {
		text = strings.Replace(text, "servers:\n", "", 1)
	}
	if opts.StoredPolicies {
		text = strings.Replace(text, "policies: [policy.yaml]", "policies: [store]", 1)
	}
	WriteFile(t, s.Config, text)
	WriteFile(t, s.Policy, opts.Policy)
	shareCompiledGuests(t, filepath.Join(dir, "data", "wasmagent"))
	return s
}

// shareCompiledGuests makes a wasmagent service use the compiled guests of all meshes that `make test` starts, because
// compiling a guest takes seconds of processor time. Meshes in other tests compile guests themselves.
func shareCompiledGuests(t *testing.T, data string) {
	t.Helper()
	built := os.Getenv(programsDir)
	if built == "" {
		return
	}
	shared := filepath.Join(built, "compiled-guests")
	for _, dir := range []string{data, shared} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(shared, filepath.Join(data, "compiled")); err != nil {
		t.Fatal(err)
	}
}
