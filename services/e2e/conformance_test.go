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
	"strconv"
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
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Wait() // it is killed, unless it has ended before it listened
	}()
	t.Cleanup(func() {
		_ = server.Process.Kill() // it has nothing to keep
		<-ended
	})
	for range 1200 {
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr); err == nil {
			_ = conn.Close()
			return "http://" + addr
		}
		select {
		case <-ended:
			t.Fatal("the server has ended by itself")
		case <-time.After(50 * time.Millisecond):
		}
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
var scenario = regexp.MustCompile(`(?m)^[✓✗] (\S+): (\d+) passed, (\d+) failed$`)

// A conformed is what the suite says of one scenario.
type conformed struct {
	name           string
	passed, failed int
}

// conforms runs the official suite.
func conforms(t *testing.T, endpoint string) (out []conformed) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := append(npmtest.Conformance(t), "--url", endpoint)
	suite := exec.CommandContext(ctx, command[0], command[1:]...)
	suite.Dir, suite.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0])}
	said, err := suite.CombinedOutput() // it fails where a check does
	for _, line := range scenario.FindAllStringSubmatch(string(said), -1) {
		passed, _ := strconv.Atoi(line[2]) // they are digits
		failed, _ := strconv.Atoi(line[3])
		out = append(out, conformed{line[1], passed, failed})
	}
	if len(out) == 0 {
		t.Fatalf("the suite has no summary: %v\n%s", err, said)
	}
	return out
}

// TestConformance runs the official suite against the official SDK's server: by itself, where
// all passes, and through the gateway, where a policy allows everything. What passes of each
// scenario stands in testdata/conformance.txt; that nothing passes less, and what passes more is
// noted there, this holds to.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := everythingServer(t)
	direct := conforms(t, server)
	s := stack.Up(t, stack.Options{Servers: fmt.Sprintf("  everything: {http: {url: %q}}", server), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	passes := make(map[string]int)
	for _, c := range conforms(t, identified(t, s.MCP("everything"))) {
		passes[c.name] = c.passed
	}
	var got strings.Builder
	var sum, all int
	for _, c := range direct {
		if c.failed > 0 {
			t.Errorf("the server by itself fails %d checks of %s", c.failed, c.name)
		}
		fmt.Fprintf(&got, "%s: %d of %d\n", c.name, passes[c.name], c.passed)
		sum, all = sum+passes[c.name], all+c.passed
	}
	fmt.Fprintf(&got, "all: %d of %d\n", sum, all)
	golden := filepath.Join("testdata", "conformance.txt")
	if *updateConformance {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("through the gateway (-noted +got, -update-conformance notes it):\n%s", diff)
	}
}
