// Package stack starts a real mesh for tests: in this process, or as the program
// that users run. What a test touches is what a user would.
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

// Tokens that every stack knows. They are long enough and in no document.
const (
	AgentToken    = "test-agent-token-A1b2C3d4E5f6G7h8"
	OtherToken    = "test-other-agent-Z9y8X7w6V5u4T3s2"
	OperatorToken = "test-operator-token-Q1w2E3r4T5y6"
	ViewerToken   = "test-viewer-token-M1n2B3v4C5x6Z7l8"
)

// readyTimeout bounds a start.
const readyTimeout = 20 * time.Second

// Options say what a stack serves.
type Options struct {
	// Servers is YAML for the key `servers`, indented as below it, for example
	// "  demo: {http: {url: \"http://127.0.0.1:1/mcp\"}}".
	Servers string
	// Policy is the text of one policy document.
	Policy string
	// Tokens is YAML for more tokens, a line for each, indented as below `tokens`.
	Tokens string
	// Extra is more YAML for the top of the configuration.
	Extra string
	// Listen and GRPC are addresses; empty: the system chooses.
	Listen, GRPC string
	// Log receives the mesh's log; nil discards it.
	Log io.Writer
}

// Stack is a running mesh.
type Stack struct {
	// URL is the base of the MCP edge, for example "http://127.0.0.1:40001".
	URL string
	// GRPC is the address of all services.
	GRPC string
	// Dir is the folder with the configuration, the policy and the data.
	Dir string
	// Config and Policy are the files that the mesh reads.
	Config, Policy string
	// Tokens is the folder of generated tokens; a [Process] knows it.
	Tokens string
	// Program is the path of the `sluice` that [Launch] starts; empty: the one that
	// users run. Env are more variables for it.
	Program string
	Env     []string
	// Args are more arguments for [Start].
	Args []string
	// OwnGroup gives the program a process group of its own, which Ctrl-C at a terminal
	// does not reach.
	OwnGroup bool
	// Under is the command that starts the program, as nice and chrt do; empty: none.
	Under []string
}

// MCP returns the URL of a server behind the edge.
func (s *Stack) MCP(server string) string { return s.URL + "/mcp/" + server }

// Journal returns the folder of the gateway's journal.
func (s *Stack) Journal() string { return filepath.Join(s.Dir, "data", "gateway", "journal") }

// Operator returns a connection as the operator. It is closed with the test.
func (s *Stack) Operator(t *testing.T) *grpc.ClientConn { return s.Person(t, OperatorToken) }

// Person returns a connection of whoever holds token; empty sends none.
func (s *Stack) Person(t *testing.T, token string) *grpc.ClientConn {
	t.Helper()
	conn, err := rpc.DialPerson(s.GRPC, token, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Up starts a mesh in this process and stops it with the test.
func Up(t *testing.T, opts Options) *Stack {
	t.Helper()
	s := Write(t, opts)
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
		File: f, Env: os.LookupEnv, Version: "test", Log: slog.New(slog.NewTextHandler(out, nil)), Launcher: programs.self,
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

// Write writes a configuration and its policy into a folder of the test's own,
// with addresses that the system chooses.
func Write(t *testing.T, opts Options) *Stack {
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
	write(t, s.Config, text)
	write(t, s.Policy, opts.Policy)
	return s
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
