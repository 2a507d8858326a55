package edge_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// crossOrigin sends a request as a web page does, and returns the status and the CORS headers.
func crossOrigin(t *testing.T, method, url, body string, head http.Header) (status int, cors http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header, req.Close = head.Clone(), true // the mesh closes connections that stay unauthenticated for 15 s
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	cors = http.Header{}
	for name, values := range resp.Header {
		if strings.HasPrefix(name, "Access-Control-") || name == "Vary" {
			cors[name] = values
		}
	}
	return resp.StatusCode, cors
}

// Case N1. Web pages from listed origins can use the mesh from a browser, and web pages from other origins can't.
func TestCORS_OnlyListedOriginsAreAllowed(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	const app = "https://app.example.com"
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Policy: stack.OpenPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: "origins: [" + app + ", \"https://b.example.com:8443\"]\n",
	}))
	preflight := http.Header{"Origin": {app}, "Access-Control-Request-Method": {"POST"}, "Access-Control-Request-Headers": {"authorization,content-type,mcp-param-region,x-evil,mcp-a b"}}
	want := http.Header{
		"Access-Control-Allow-Origin":  {app},
		"Access-Control-Allow-Methods": {"POST, GET, DELETE"},
		"Access-Control-Allow-Headers": {"authorization, content-type, last-event-id, mcp-session-id, mcp-protocol-version, mcp-method, mcp-name, mcp-param-region"},
		"Access-Control-Max-Age":       {"600"},
		"Vary":                         {"Origin", "Access-Control-Request-Headers"},
	}
	for _, path := range []string{"/mcp", "/mcp/", "/mcp/raw", "/mcp/absent", "/mcp/%2e%2e/x", "/mcp/raw/"} {
		status, cors := crossOrigin(t, http.MethodOptions, p.URL+path, "", preflight)
		if diff := cmp.Diff(want, cors); status != http.StatusNoContent || diff != "" {
			t.Errorf("preflight of %s: %d, (-want +got)\n%s", path, status, diff)
		}
	}
	answer := http.Header{"Access-Control-Allow-Origin": {app}, "Access-Control-Expose-Headers": {"Mcp-Session-Id, WWW-Authenticate"}, "Vary": {"Origin"}}
	from := func(origin string, more ...string) http.Header {
		h := http.Header{"Origin": {origin}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		for i := 0; i < len(more); i += 2 {
			h.Set(more[i], more[i+1])
		}
		return h
	}
	token := "Bearer " + stack.AgentToken
	for name, c := range map[string]struct {
		method, path, body string
		head               http.Header
		status             int
		want               http.Header
	}{
		"an answer":                  {http.MethodPost, "/mcp/raw", stack.InitializeRequest, from(app, "Authorization", token), 200, answer},
		"no token":                   {http.MethodPost, "/mcp/raw", stack.InitializeRequest, from(app), 401, answer},
		"a wrong token":              {http.MethodPost, "/mcp/raw", stack.InitializeRequest, from(app, "Authorization", "Bearer no"), 401, answer},
		"no JSON":                    {http.MethodPost, "/mcp/raw", "{", from(app, "Authorization", token), 400, answer},
		"no such server":             {http.MethodPost, "/mcp/absent", stack.InitializeRequest, from(app, "Authorization", token), 404, answer},
		"no such session":            {http.MethodDelete, "/mcp/raw", "", from(app, "Authorization", token, "Mcp-Session-Id", "x"), 404, answer},
		"another method":             {http.MethodPut, "/mcp/raw", "", from(app), 405, answer},
		"OPTIONS, no preflight":      {http.MethodOptions, "/mcp/raw", "", from(app), 405, answer},
		"an origin that is not":      {http.MethodOptions, "/mcp/raw", "", from("https://evil.example.com", "Access-Control-Request-Method", "POST"), 403, http.Header{}},
		"a listed one's subdomain":   {http.MethodOptions, "/mcp/raw", "", from("https://x.app.example.com", "Access-Control-Request-Method", "POST"), 403, http.Header{}},
		"a listed one by http":       {http.MethodOptions, "/mcp/raw", "", from("http://app.example.com", "Access-Control-Request-Method", "POST"), 403, http.Header{}},
		"a listed one's other port":  {http.MethodOptions, "/mcp/raw", "", from(app+":8443", "Access-Control-Request-Method", "POST"), 403, http.Header{}},
		"null":                       {http.MethodOptions, "/mcp/raw", "", from("null", "Access-Control-Request-Method", "POST"), 403, http.Header{}},
		"loopback, which is not":     {http.MethodOptions, "/mcp/raw", "", from("http://localhost:3000", "Access-Control-Request-Method", "POST"), 405, http.Header{"Vary": {"Origin"}}},
		"no origin":                  {http.MethodPost, "/mcp/raw", stack.InitializeRequest, http.Header{"Authorization": {token}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}, 200, http.Header{"Vary": {"Origin"}}},
		"health is nobody's of them": {http.MethodGet, "/healthz", "", from(app), 200, http.Header{}},
	} {
		status, cors := crossOrigin(t, c.method, p.URL+c.path, c.body, c.head)
		if diff := cmp.Diff(c.want, cors); status != c.status || diff != "" {
			t.Errorf("%s: %d, want %d; (-want +got)\n%s", name, status, c.status, diff)
		}
	}
	long := preflight.Clone()
	long.Set("Access-Control-Request-Headers", strings.Repeat("mcp-x,", 2000))
	if _, cors := crossOrigin(t, http.MethodOptions, p.URL+"/mcp/raw", "", long); len(cors.Get("Access-Control-Allow-Headers")) > 200 {
		t.Errorf("the response repeats the requested headers: %d bytes", len(cors.Get("Access-Control-Allow-Headers")))
	}
}

// page is an HTML page that opens a session from a browser and writes the result to its body.
const page = `<!doctype html><title>page</title><body><pre id=out>waiting</pre><script>
fetch("URL", {method: "POST", headers: {"Authorization": "Bearer TOKEN", "Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2025-11-25"},
  body: JSON.stringify(HELLO)}).then(async r => document.body.innerText = "status=" + r.status + " session=" + (r.headers.get("Mcp-Session-Id") ? "yes" : "no") + " answer=" + (await r.text()).includes("result"))
  .catch(e => document.body.innerText = "failed: " + e.message)
</script>`

// startPage serves the page on a separate origin and returns that origin. The page opens a session at the URL that mcp
// points to.
func startPage(t *testing.T, mcp *string) string {
	t.Helper()
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, strings.NewReplacer("URL", *mcp, "TOKEN", stack.AgentToken, "HELLO", stack.InitializeRequest).Replace(page))
	}))
	t.Cleanup(func() {
		site.CloseClientConnections()
		site.Close()
	})
	return site.URL
}

// Case N1. In a real browser, a page of a listed origin can use the mesh, and a page of another origin can't.
func TestCORS_OnlyListedOriginsAreAllowedInABrowser(t *testing.T) {
	t.Parallel()
	browser, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("SLUICE_TEST_NO_BROWSER") == "1" {
			t.Skip("SLUICE_TEST_NO_BROWSER is set")
		}
		t.Fatalf("install chromium (Debian: `chromium`); without a browser, set SLUICE_TEST_NO_BROWSER=1 to skip this test: %v", err)
	}
	up := rawmcp.Start(t, rawmcp.Tools)
	var mcp string
	site, other := startPage(t, &mcp), startPage(t, &mcp)
	p := stack.Start(t, stack.WriteConfig(t, stack.Options{
		Policy: stack.OpenPolicy, Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Extra: "origins: [" + site + "]\n",
	}))
	mcp = p.MCP("raw")
	shows := func(url string) string {
		profile, err := os.MkdirTemp("", "chromium-") //nolint:usetesting // t.TempDir would fail the test while something is still written
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(profile) })
		args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir=" + profile, "--virtual-time-budget=15000", "--dump-dom", url}
		out, err := exec.CommandContext(t.Context(), browser, args...).Output()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return regexp.MustCompile(`(?s)<body>.*`).FindString(string(out))
	}
	if got := shows(site); !strings.Contains(got, "status=200 session=yes answer=true") {
		t.Errorf("a page of a listed origin: %s", got)
	}
	if got := shows(other); !strings.Contains(got, "failed: Failed to fetch") {
		t.Errorf("a page of another origin: %s", got)
	}
}
