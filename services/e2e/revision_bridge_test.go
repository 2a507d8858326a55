package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// sessionsOnlyProxy returns the URL of a proxy for endpoint that accepts only the protocol revisions with sessions. The
// client and the server of the official SDK support revisions with and without sessions, and prefer 2026-07-28.
func sessionsOnlyProxy(t *testing.T, endpoint string) string {
	t.Helper()
	return startRevisionProxy(t, endpoint, true, "2025-11-25")
}

// sessionlessOnlyProxy returns the URL of a proxy for endpoint that accepts only protocol revision 2026-07-28.
func sessionlessOnlyProxy(t *testing.T, endpoint string) string {
	t.Helper()
	return startRevisionProxy(t, endpoint, false, "2026-07-28")
}

// startRevisionProxy returns the URL of a proxy that forwards either the requests of revision 2026-07-28 or the
// requests of revisions with sessions. If refuses is set, the proxy refuses the requests of 2026-07-28. Its errors name
// the revision in spoken as the supported revision.
func startRevisionProxy(t *testing.T, endpoint string, refuses bool, spoken string) string {
	t.Helper()
	to, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.URL.Path = to.Path }}
	door := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the client disconnected
		}
		if bytes.Contains(body, []byte("io.modelcontextprotocol/protocolVersion")) == refuses {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"x","data":{"supported":["%s"],"requested":"x"}}}`, spoken)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(door.Close)
	return door.URL
}

// Checks that a client of a revision with sessions has a session with a server that has none. The input requests in the
// server's results reach the client as requests, and the client's responses reach the server, if policy allows both.
// The client's stream carries the notifications of changed lists.
func TestBridge_SessionClientUsesSessionlessServer(t *testing.T) {
	t.Parallel()
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  bare: {http: {url: %q}}", sessionlessOnlyProxy(t, startEverythingServer(t, true))),
		Policy: `version: 1
default: allow
rules:
  - {name: elicit, match: {method: elicitation/create}, action: allow}
  - {name: subscribe, match: {method: "resources/*"}, action: allow}
  - {name: prompts, match: {method: "prompts/*"}, action: allow}
`,
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, path := range map[string]string{"at its own URL": s.MCP("bare"), "at that of all": allServersURL(s)} {
		t.Run(name, func(t *testing.T) {
			prefix := ""
			if path == allServersURL(s) {
				prefix = "bare__"
			}
			c, heard := connectInteractive(t, streamingTransport(sessionsOnlyProxy(t, path)))
			defer c.Close()
			if v := c.InitializeResult().ProtocolVersion; v != "2025-11-25" {
				t.Fatalf("the session has protocol version %s", v)
			}
			call := func(tool string) *mcp.CallToolResult {
				t.Helper()
				r, err := c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + tool})
				if err != nil {
					t.Fatalf("call %s: %v", tool, err)
				}
				return r
			}
			text := func(r *mcp.CallToolResult) string {
				t.Helper()
				content, _ := r.Content[0].(*mcp.TextContent)
				return content.Text
			}
			if got := text(call("test_input_required_result_elicitation")); !strings.Contains(got, "ana") {
				t.Errorf("the result after the elicitation is %q", got)
			}
			for got := ""; !strings.HasPrefix(got, "asked "); { // the client is also notified of changed lists
				select {
				case got = <-heard:
				case <-ctx.Done():
					t.Fatal("the client was not asked")
				}
			}
			if _, err := c.CallTool(ctx, &mcp.CallToolParams{Name: prefix + "test_input_required_result_sampling"}); err == nil {
				t.Error("the client received a request that policy denies")
			}
			call("test_trigger_tool_change")
			call("test_trigger_prompt_change")
			for want := map[string]bool{"tools changed": true, "prompts changed": true}; len(want) > 0; {
				select {
				case got := <-heard:
					delete(want, got)
				case <-ctx.Done():
					t.Fatalf("the client did not receive %v", want)
				}
			}
		})
	}
	told := make(map[string]int)
	for _, r := range listRecords(ctx, t, gatewayv1.NewGatewayServiceClient(s.Operator(t))) {
		if r.GetTool() == "test_input_required_result_elicitation" || r.GetFromServer() {
			told[fmt.Sprintf("%s %s %s", r.GetKind(), r.GetMethod(), r.GetResult())]++
		}
	}
	want := map[string]int{ // one call for each tool, however many round trips it takes
		"RECORD_KIND_INTENT tools/call RESULT_CLASS_UNSPECIFIED":              2,
		"RECORD_KIND_OUTCOME tools/call RESULT_CLASS_OK":                      2,
		"RECORD_KIND_INTENT elicitation/create RESULT_CLASS_UNSPECIFIED":      2,
		"RECORD_KIND_OUTCOME elicitation/create RESULT_CLASS_OK":              2,
		"RECORD_KIND_REFUSAL sampling/createMessage RESULT_CLASS_UNSPECIFIED": 2,
	}
	if diff := cmp.Diff(want, told); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}
