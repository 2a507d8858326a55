package demo_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sluice-mesh/sluice/services/sluice/internal/demo"
)

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	listTools  = `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
	modern     = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	runReport  = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"run_report","arguments":{}}}`
)

func serve(t *testing.T, s *demo.Server) string {
	t.Helper()
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return web.URL + "/mcp"
}

// post sends one message over plain HTTP. The parameter header contains names of HTTP headers, each followed by its
// value.
func post(t *testing.T, url, body string, header ...string) (resp *http.Response, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	req.Host = req.Header.Get("Host")
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (resp *http.Response, answer string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

func get(t *testing.T, url string) (status int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, answer := do(t, req)
	return resp.StatusCode, answer
}

func TestHandler_RefusesInvalidRequests(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		body   string
		header []string
		status int
		answer string
	}{
		"another site's name for a loopback address": {initialize, []string{"Host", "evil.example"}, http.StatusForbidden, "Host"},
		"a browser on another site":                  {initialize, []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden, "cross-origin"},
		"a page of another origin":                   {initialize, []string{"Origin", "https://evil.example"}, http.StatusForbidden, "cross-origin"},
		"a session that does not exist":              {listTools, []string{"Mcp-Session-Id", "nope"}, http.StatusNotFound, ""},
		"the revision without sessions":              {modern, []string{"MCP-Protocol-Version", "2026-07-28"}, http.StatusBadRequest, "-32022"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			resp, answer := post(t, serve(t, newServer(t, nil)), tt.body, tt.header...)
			if resp.StatusCode != tt.status || !strings.Contains(answer, tt.answer) {
				t.Errorf("status %d %q, want %d with %q in it", resp.StatusCode, answer, tt.status, tt.answer)
			}
		})
	}
}

func TestHandler_CreatesSessionsUnlessStateless(t *testing.T) {
	t.Parallel()
	for _, stateless := range []bool{false, true} {
		t.Run("stateless "+strconv.FormatBool(stateless), func(t *testing.T) {
			t.Parallel()
			s := newServer(t, func(c *demo.Config) { c.Stateless = stateless })
			resp, answer := post(t, serve(t, s), initialize)
			id := resp.Header.Get("Mcp-Session-Id")
			if resp.StatusCode != http.StatusOK || (id == "") != stateless {
				t.Errorf("status %d, session %q: %s", resp.StatusCode, id, answer)
			}
		})
	}
}

func TestHandler_RefusesArgumentsThatAreNotAnObject(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *demo.Config) { c.Stateless, c.JSONResponse = true, true })
	url := serve(t, s)
	for _, args := range []string{"null", "[]", `"id"`, "7"} {
		_, answer := post(t, url, strings.Replace(runReport, "{}", args, 1))
		if !strings.Contains(answer, "-32602") {
			t.Errorf("arguments %s were answered %s", args, answer)
		}
	}
	if got := s.Stats().Calls; got != 4 {
		t.Errorf("%d calls were counted, want 4", got)
	}
}

func TestRunReport_ReturnsLargeIntegersExactly(t *testing.T) {
	t.Parallel()
	s := newServer(t, func(c *demo.Config) { c.Stateless, c.JSONResponse = true, true })
	url := serve(t, s)
	_, first := post(t, url, runReport)
	_, second := post(t, url, runReport)
	var answer struct {
		Result struct {
			StructuredContent struct{ Fingerprint jsontext.Value }
		}
	}
	if err := json.Unmarshal([]byte(first), &answer, json.MatchCaseInsensitiveNames(true)); err != nil {
		t.Fatalf("%v: %s", err, first)
	}
	// This is the FNV-1a hash of the three initial notes. It changes if the text of the notes changes.
	const want = "12337391613082800222"
	if got := string(answer.Result.StructuredContent.Fingerprint); got != want {
		t.Errorf("fingerprint %s, want %s", got, want)
	}
	if first != second {
		t.Errorf("two reports on the same notes differ:\n%s\n%s", first, second)
	}
}

func TestHandler_ServesStatistics(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	url := serve(t, s)
	session := connect(t, &mcp.StreamableClientTransport{Endpoint: url}, nil)
	mustCall(t, session, demo.GetNote, map[string]any{"id": "note-1"})

	status, text := get(t, strings.TrimSuffix(url, "/mcp")+"/stats")
	var got demo.Stats
	if err := json.Unmarshal([]byte(text), &got, json.RejectUnknownMembers(true)); err != nil {
		t.Fatalf("status %d: %v: %s", status, err, text)
	}
	if got.Calls != 1 || got.Tools[demo.GetNote] != 1 || len(got.Recent) != 1 || got.Recent[0].Tool != demo.GetNote {
		t.Errorf("/stats answered %s after one call of %s", text, demo.GetNote)
	}
	if strings.Contains(text, "note-1") {
		t.Errorf("/stats shows the arguments of a call: %s", text)
	}
}

func TestHandler_ServesHealth(t *testing.T) {
	t.Parallel()
	base := strings.TrimSuffix(serve(t, newServer(t, nil)), "/mcp")
	if status, text := get(t, base+"/healthz"); status != http.StatusOK || text != "ok\n" {
		t.Errorf("/healthz answered %d %q", status, text)
	}
	if status, _ := get(t, base+"/"); status != http.StatusNotFound {
		t.Errorf("/ answered %d, want 404", status)
	}
}
