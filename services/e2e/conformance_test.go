package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// everythingProgram builds the server of the official Go SDK that is made for the suite.
func everythingProgram(t *testing.T) string {
	t.Helper()
	return conformanceProgram(t, "everything-server")
}

// conformanceProgram builds a program of the official Go SDK that is made for the suite.
func conformanceProgram(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "github.com/modelcontextprotocol/go-sdk/conformance/"+name)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, out)
	}
	return program
}

// everythingServer starts it on a port, with sessions or without.
func everythingServer(t *testing.T, stateless bool) string {
	t.Helper()
	program := everythingProgram(t)
	lis, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := lis.Addr().String()
	if err := lis.Close(); err != nil {
		t.Fatal(err)
	}
	server := exec.Command(program, "-http", addr, "-stateless="+strconv.FormatBool(stateless))
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
	return proxied(t, func(r *httputil.ProxyRequest, _ []byte) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+stack.AgentToken)
	}) + to.Path
}

// switched is one server of all revisions: those with sessions go to the one, and 2026-07-28 to
// the other.
func switched(t *testing.T, sessions, stateless string) string {
	t.Helper()
	return proxied(t, func(r *httputil.ProxyRequest, body []byte) {
		to := sessions
		if r.In.Header.Get("Mcp-Protocol-Version") == "2026-07-28" || bytes.Contains(body, []byte("io.modelcontextprotocol/protocolVersion")) {
			to = stateless
		}
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", strings.TrimPrefix(to, "http://"), r.In.Host
	})
}

// proxied passes requests on as they are rewritten by their bodies.
func proxied(t *testing.T, rewrite func(r *httputil.ProxyRequest, body []byte)) string {
	t.Helper()
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // else an answer that comes before its end is read may be cut (golang.org/issue/40747)
		if err != nil {
			return // the client has gone
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy := &httputil.ReverseProxy{Transport: http.DefaultTransport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { rewrite(r, body) }}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	return door.URL
}

// scenario is a line of the suite's summary, and unscored one of those that do not count for a
// revision.
var (
	scenario = regexp.MustCompile(`(?m)^[✓✗] (\S+): (\d+) passed, (\d+) failed$`)
	unscored = regexp.MustCompile(`(?m)^  [✓✗] (\S+) \(extension\)$`)
)

// conforms runs the official suite, and returns how many checks of each scenario pass, and the
// names of those that have some that fail. Extensions that no server here has are not looked at.
func conforms(t *testing.T, endpoint string, set npm.Set, more ...string) (passed map[string]int, failed []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := append(npmtest.Conformance(t, set), append(more, "--url", endpoint)...)
	suite := exec.CommandContext(ctx, command[0], command[1:]...)
	suite.Dir, suite.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0])}
	said, err := suite.CombinedOutput() // it fails where a check does
	passed = make(map[string]int)
	for _, line := range scenario.FindAllStringSubmatch(string(said), -1) {
		if passed[line[1]], _ = strconv.Atoi(line[2]); line[3] != "0" { // they are digits
			failed = append(failed, line[1])
		}
	}
	for _, line := range unscored.FindAllStringSubmatch(string(said), -1) {
		delete(passed, line[1])
		failed = slices.DeleteFunc(failed, func(name string) bool { return name == line[1] })
	}
	if len(passed) == 0 {
		t.Fatalf("the suite has no summary: %v\n%s", err, said)
	}
	for _, name := range failed {
		t.Logf("%s fails:\n%s", name, said)
	}
	return passed, failed
}

// polling is the one scenario of which more checks pass through the gateway, which gives its clients a way
// back to an answer that they have lost. The server has none: it ends the stream with a retry, with which the
// check is content.
const polling = "server-sse-polling"

// TestConformance runs the official suite against the official SDK's server: by itself, where all
// passes, and through the gateway, where a policy allows everything and no check is lost.
func TestConformance(t *testing.T) {
	t.Parallel()
	server := switched(t, everythingServer(t, false), everythingServer(t, true))
	s := stack.Up(t, stack.Options{Log: t.Output(), Servers: fmt.Sprintf("  everything: {http: {url: %q}}", server), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	through := identified(t, s.MCP("everything"))
	for _, suite := range []struct {
		name   string
		set    npm.Set
		more   []string
		checks int
	}{
		{"the active suite", npm.Conformance, nil, 40},
		{"what 2025-11-25 requires", npm.Conformance2, []string{"--requirements", "2025-11-25"}, 82},
		{"what 2026-07-28 requires", npm.Conformance2, []string{"--requirements", "2026-07-28"}, 153},
	} {
		t.Run(suite.name, func(t *testing.T) {
			direct, failed := conforms(t, server, suite.set, suite.more...)
			all := 0
			for _, n := range direct {
				all += n
			}
			if all != suite.checks || len(failed) > 0 {
				t.Errorf("the server by itself passes %d checks, want %d, and fails some of %q", all, suite.checks, failed)
			}
			got, failed := conforms(t, through, suite.set, suite.more...)
			if direct[polling] == 1 && got[polling] == 3 {
				got[polling] = 1
			}
			if diff := cmp.Diff(direct, got); diff != "" || len(failed) > 0 {
				t.Errorf("some of %q fail through the gateway; checks that pass (-direct +through):\n%s", failed, diff)
			}
		})
	}
}

// TestConformanceCrossed runs the suites of each era against a server of the other, through the gateway.
// What fails can't be carried by anybody, and is named with its reason.
func TestConformanceCrossed(t *testing.T) {
	t.Parallel()
	for _, suite := range []struct {
		name, version string
		server        func(t *testing.T) string
		checks        int
		fails         []string
	}{
		{
			"with sessions, on a server without", "2025-11-25", func(t *testing.T) string { t.Helper(); return sessionless(t, everythingServer(t, true)) }, 71,
			// Tools that ask by a request of the server's own: its library refuses that where there
			// are no sessions. What servers ask there TestSessionsWhereThereAreNone shows.
			[]string{"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "tools-call-elicitation", "tools-call-sampling"},
		},
		{
			"without sessions, on a server with them", "2026-07-28", func(t *testing.T) string { t.Helper(); return older(t, everythingServer(t, false)) }, 145,
			// The names by which a server asks, and its own state, which requests in sessions do not
			// have; and an error, and a status of HTTP, that this server has without sessions alone.
			[]string{"input-required-result-basic-elicitation", "input-required-result-multi-round", "server-stateless"},
		},
	} {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel()
			s := stack.Up(t, stack.Options{Log: t.Output(), Servers: fmt.Sprintf("  everything: {http: {url: %q}}", suite.server(t)), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
			passed, failed := conforms(t, identified(t, s.MCP("everything")), npm.Conformance2, "--requirements", suite.version)
			all := 0
			for _, n := range passed {
				all += n
			}
			slices.Sort(failed)
			if !slices.Equal(failed, suite.fails) || all != suite.checks {
				t.Errorf("%d checks pass, want %d; some fail of %q, want %q", all, suite.checks, failed, suite.fails)
			}
		})
	}
}
