package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

var updateConformance = flag.Bool("update-conformance", false, "write testdata/conformance.txt anew")

// everythingServer starts the server of the official Go SDK that is made for the suite.
func everythingServer(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "everything")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "github.com/modelcontextprotocol/go-sdk/conformance/everything-server")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "-http", addr, "-stateless=false")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill() // it has nothing to keep
		_ = server.Wait()
	})
	for range 200 {
		if conn, err := net.Dial("tcp", addr); err == nil {
			_ = conn.Close()
			return "http://" + addr
		}
		<-time.After(50 * time.Millisecond)
	}
	t.Fatal("the server does not listen")
	return ""
}

// identified lets a client that knows no tokens in: it stands before an endpoint, and says on
// whose behalf each request is, and nothing else.
func identified(t *testing.T, endpoint string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	door := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+stack.AgentToken)
	}})
	t.Cleanup(door.Close)
	return door.URL + to.Path
}

// scenario is a line of the suite's summary.
var scenario = regexp.MustCompile(`(?m)^[✓✗] \S+: \d+ passed, \d+ failed$`)

// conforms runs the official suite and returns its summary, a line for each scenario.
func conforms(t *testing.T, suiteOf []string, endpoint string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	command := append(slices.Clip(suiteOf), "--url", endpoint)
	suite := exec.CommandContext(ctx, command[0], command[1:]...)
	suite.Dir, suite.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0])}
	out, err := suite.CombinedOutput() // it fails where a check does
	lines := scenario.FindAllString(string(out), -1)
	if len(lines) == 0 {
		t.Errorf("the suite has no summary: %v\n%s", err, out)
	}
	return strings.Join(lines, "\n") + "\n"
}

// TestConformance runs the official suite against the official SDK's server: by itself, where
// all passes, and through the gateway, where a policy allows everything. What passes then stands
// in testdata/conformance.txt; that nothing passes less, and what passes more is noted there,
// this holds to.
func TestConformance(t *testing.T) {
	t.Parallel()
	server, suite := everythingServer(t), npmtest.Conformance(t)
	direct := make(chan struct{})
	go func() {
		defer close(direct)
		if got := conforms(t, suite, server); strings.Contains(got, "✗") {
			t.Errorf("the server by itself:\n%s", got)
		}
	}()
	defer func() { <-direct }()
	s := stack.Up(t, stack.Options{Servers: fmt.Sprintf("  everything: {http: {url: %q}}", server), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	got := conforms(t, suite, identified(t, s.MCP("everything")))
	golden := filepath.Join("testdata", "conformance.txt")
	if *updateConformance {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("through the gateway (-noted +got, -update-conformance notes it):\n%s", diff)
	}
}
