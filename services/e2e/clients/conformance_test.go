package clients_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
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

	"github.com/sluice-mesh/sluice/services/e2e/gosdk"
	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// startAuthenticatingProxy returns the URL of a proxy that adds an agent's token to each request. Clients that can't
// send a token use it.
func startAuthenticatingProxy(t *testing.T, endpoint string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	return startProxy(t, func(r *httputil.ProxyRequest, _ []byte) {
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = to.Scheme, to.Host, r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+stack.AgentToken)
	}) + to.Path
}

// startRevisionSwitch starts a proxy and returns the proxy's URL. The parameters sessions and stateless are the URLs of
// two servers. The proxy sends requests of revision 2026-07-28 to the server at stateless, and all other requests to
// the server at sessions.
func startRevisionSwitch(t *testing.T, sessions, stateless string) string {
	t.Helper()
	return startProxy(t, func(r *httputil.ProxyRequest, body []byte) {
		to := sessions
		if r.In.Header.Get("Mcp-Protocol-Version") == "2026-07-28" || bytes.Contains(body, []byte("io.modelcontextprotocol/protocolVersion")) {
			to = stateless
		}
		r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", strings.TrimPrefix(to, "http://"), r.In.Host
	})
}

// startProxy starts a proxy that rewrites each request with the function rewrite, and returns the proxy's URL.
func startProxy(t *testing.T, rewrite func(r *httputil.ProxyRequest, body []byte)) string {
	t.Helper()
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body) // reading fails if the response comes before the end of the body (golang.org/issue/40747)
		if err != nil {
			return // the client disconnected
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy := &httputil.ReverseProxy{Transport: http.DefaultTransport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { rewrite(r, body) }}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	return door.URL
}

// scenarioLine matches a line of the suite's summary. unscoredLine matches a scenario that does not count for a
// revision.
var (
	scenarioLine = regexp.MustCompile(`(?m)^[✓✗] (\S+): (\d+) passed, (\d+) failed$`)
	unscoredLine = regexp.MustCompile(`(?m)^  [✓✗] (\S+) \(extension\)$`)
)

// runConformanceSuite runs the official suite for servers. It returns the number of checks that pass for each scenario,
// and the names of the scenarios with failed checks. Extensions that no server in these tests implements are ignored.
func runConformanceSuite(t *testing.T, endpoint string, set npm.Set, more ...string) (passed map[string]int, failed []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := append(npmtest.Conformance(t, set), append(more, "--url", endpoint)...)
	suite := exec.CommandContext(ctx, command[0], command[1:]...)
	suite.Dir, suite.Env = t.TempDir(), []string{"HOME=" + t.TempDir(), "PATH=" + filepath.Dir(command[0])}
	said, err := suite.CombinedOutput() // the exit status reports failed checks, which the output lists
	passed = make(map[string]int)
	for _, line := range scenarioLine.FindAllStringSubmatch(string(said), -1) {
		if passed[line[1]], _ = strconv.Atoi(line[2]); line[3] != "0" { // the expression matches only digits
			failed = append(failed, line[1])
		}
	}
	for _, line := range unscoredLine.FindAllStringSubmatch(string(said), -1) {
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

// pollingScenario is the only scenario in which more checks pass through the gateway than directly. Through the
// gateway, a client can resume a response that was lost. When the client is connected directly, the server itself ends
// the stream with a retry field, which the check accepts.
const pollingScenario = "server-sse-polling"

// TestConformance_ServerPassesThroughTheGateway runs the official suite against the official SDK's server. All checks
// pass directly, and the same checks pass through a gateway whose policy allows all requests.
func TestConformance_ServerPassesThroughTheGateway(t *testing.T) {
	t.Parallel()
	server := startRevisionSwitch(t, gosdk.StartServer(t, false), gosdk.StartServer(t, true))
	s := stack.StartInProcess(t, stack.Options{Log: t.Output(), Servers: fmt.Sprintf("  everything: {http: {url: %q}}", server), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
	through := startAuthenticatingProxy(t, s.MCP("everything"))
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
			direct, failed := runConformanceSuite(t, server, suite.set, suite.more...)
			all := 0
			for _, n := range direct {
				all += n
			}
			if all != suite.checks || len(failed) > 0 {
				t.Errorf("without the gateway the server passes %d checks, want %d, and fails some of %q", all, suite.checks, failed)
			}
			got, failed := runConformanceSuite(t, through, suite.set, suite.more...)
			if direct[pollingScenario] == 1 && got[pollingScenario] == 3 {
				got[pollingScenario] = 1
			}
			if diff := cmp.Diff(direct, got); diff != "" || len(failed) > 0 {
				t.Errorf("some of %q fail through the gateway; checks that pass (-direct +through):\n%s", failed, diff)
			}
		})
	}
}

// TestConformance_BetweenRevisions runs two suites through the gateway. The suite for revisions that use sessions tests
// a server of revision 2026-07-28, and the suite for revision 2026-07-28 tests a server that uses sessions. The test
// lists the scenarios that fail because the gateway can't translate them, with the reason.
func TestConformance_BetweenRevisions(t *testing.T) {
	t.Parallel()
	for _, suite := range []struct {
		name, version string
		server        func(t *testing.T) string
		checks        int
		fails         []string
	}{
		{
			"with sessions, on a server without", "2025-11-25", func(t *testing.T) string {
				t.Helper()
				return gosdk.SessionlessOnlyProxy(t, gosdk.StartServer(t, true))
			}, 71,
			// These tools make requests to the client. The server's library refuses such requests outside sessions.
			// TestBridge_SessionClientUsesSessionlessServer tests the requests that stateless servers can make.
			[]string{"elicitation-sep1034-defaults", "elicitation-sep1330-enums", "tools-call-elicitation", "tools-call-sampling"},
		},
		{
			"without sessions, on a server with them", "2026-07-28", func(t *testing.T) string { t.Helper(); return gosdk.SessionsOnlyProxy(t, gosdk.StartServer(t, false)) }, 145,
			// These scenarios check the names of a server's input requests and its state, which do not exist in
			// sessions. They also check an error and an HTTP status that this server returns only without sessions.
			[]string{"input-required-result-basic-elicitation", "input-required-result-multi-round", "server-stateless"},
		},
	} {
		t.Run(suite.name, func(t *testing.T) {
			t.Parallel()
			s := stack.StartInProcess(t, stack.Options{Log: t.Output(), Servers: fmt.Sprintf("  everything: {http: {url: %q}}", suite.server(t)), Policy: `version: 1
default: allow
rules:
  - {name: every-method, match: {method: "*"}, action: allow}
`})
			passed, failed := runConformanceSuite(t, startAuthenticatingProxy(t, s.MCP("everything")), npm.Conformance2, "--requirements", suite.version)
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
