package edge_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

func TestCall_IsForwardedByteForByte(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	body := "{ \"jsonrpc\" : \"2.0\",\n\t\"id\":\"caf\\u00e9\", \"method\":\"tools/call\",\"params\":{\"arguments\":{\"big\":9007199254740993,\"x\":1.0e2,\"\\u0061\":\"\\/\"},\"unknown\":{\"n\":-9223372036854775808},\"name\":\"safe\"}}"
	f.Upstream.SetAnswer("safe", rawmcp.Result(`{"content":[{"type":"holo","n":9007199254740993}],"structuredContent":{"n":18446744073709551616,"f":1e999},"extra":{"\u0061":1},"_meta":{"dev.sluice/decision":{"code":"forged"},"keep":1}}`))
	resp := c.Post(body)
	calls := f.Upstream.Calls()
	if len(calls) != 1 || string(calls[0].Body) != body {
		t.Fatalf("the server got\n%s\nwant, byte for byte,\n%s", calls[0].Body, body)
	}
	want := `{"jsonrpc":"2.0","id":"caf\u00e9","result":{"content":[{"type":"holo","n":9007199254740993}],"structuredContent":{"n":18446744073709551616,"f":1e999},"extra":{"\u0061":1},"_meta":{"keep":1}}}`
	if string(resp.Body) != want {
		t.Errorf("the client got\n%s\nwant, without the key that is reserved for the gateway,\n%s", resp.Body, want)
	}
}

func TestToolsList_IsForwardedWithoutHiddenTools(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, `[{"name":"safe","x-unknown":9007199254740993,"inputSchema":{"type":"object","maximum":1e999}}, {"name":"secret","inputSchema":{}} ,{"name":"other","inputSchema":{}},{"name":"danger","execution":{"taskSupport":"optional"},"inputSchema":{}}]`)
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rawmesh.StoryPolicy})
	resp := stack.Connect(t, s.MCP("raw"), stack.AgentToken).Post(`{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)
	want := `{"jsonrpc":"2.0","id":3,"result":{"tools":[{"name":"safe","x-unknown":9007199254740993,"inputSchema":{"type":"object","maximum":1e999}}, {"name":"danger","execution":{"taskSupport":"optional"},"inputSchema":{}}]}}`
	if string(resp.Body) != want {
		t.Errorf("got\n%s\nwant\n%s", resp.Body, want)
	}
}

var approvalID = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// Cases T3, X9. A refusal is a tool result. The refusal of a hidden tool is identical to the refusal of a tool that
// does not exist.
func TestCall_RefusalIsAToolResult(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "approvals: {hold: 0s}")
	c := f.Connect(t)
	tests := []struct{ name, tool, code, text string }{
		{"denied with a reason", "danger", "denied_by_rule", "Denied by policy: ask a person"},
		{"a tool that does not exist, while another is hidden", "unlisted", "tool_unknown", "Unknown tool: the server has no such tool."},
		{"a hidden tool called directly", "secret", "tool_unknown", "Unknown tool: the server has no such tool."},
		{"without a decision", "pay", "approval_pending", "Not executed: a person must approve this call. It waits in the list of approvals (`sluice approvals list`): tell your user, so that a person looks there. Call the same tool again later with the same arguments: it runs once it is approved. To wait without sending them again, call sluice_approval_wait with {\"id\":\"ID\"}."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := c.Call(tt.tool, `{"a":1}`)
			d := resp.Decision(t)
			text := approvalID.ReplaceAllString(resp.Text(t), "ID")
			if resp.Status != http.StatusOK || !resp.IsError(t) || d.Code != tt.code || text != tt.text {
				t.Errorf("got %d %s", resp.Status, resp.Body)
			}
			if strings.Contains(string(resp.Body), "structuredContent") {
				t.Errorf("a refusal has structuredContent: %s", resp.Body)
			}
			found := false
			for _, r := range f.Records(t) {
				found = found || (r.GetDecisionId() == d.ID && r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_REFUSAL && r.GetHidden() == (tt.code == "tool_unknown"))
			}
			if !found {
				t.Errorf("no record of decision %q", d.ID)
			}
		})
	}
	if n := len(f.Upstream.Calls()); n != 0 {
		t.Errorf("%d calls reached the server", n)
	}
}

// Case T4. A request with a method that has no rule is refused with a JSON-RPC error. A notification with an unknown
// method is answered with 202 and dropped.
func TestMethods_WithoutARuleAreRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := f.Connect(t)
	before := len(f.Upstream.Requests())
	for _, m := range []string{
		`"resources/read","params":{"uri":"file:///etc/passwd"}`, `"resources/list"`, `"prompts/get","params":{"name":"x"}`,
		`"completion/complete","params":{}`, `"logging/setLevel","params":{"level":"debug"}`, `"tasks/get","params":{}`, `"x-unknown/method"`,
	} {
		resp := c.Post(`{"jsonrpc":"2.0","id":5,"method":` + m + `}`)
		if resp.Status != http.StatusOK || resp.ErrorCode(t) != -31403 || resp.Decision(t).Code != "method_denied" {
			t.Errorf("%s: %d %s", m, resp.Status, resp.Body)
		}
	}
	if resp := c.Post(`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`); resp.Status != http.StatusAccepted {
		t.Errorf("a refused notification was answered %d", resp.Status)
	}
	if got := f.Upstream.Requests(); len(got) != before {
		t.Errorf("%d requests reached the server: %s", len(got)-before, got[len(got)-1].Body)
	}
}

// Case R1. A burst exceeds the limit. The test checks that exactly as many calls run as the limit allows.
func TestRateLimit_BurstPassesExactlyTheLimit(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	var passed, limited atomic.Int64
	var wg sync.WaitGroup
	gate := make(chan struct{})
	for range 50 {
		wg.Go(func() {
			<-gate
			for range 20 {
				resp := c.Call("limited", "{}")
				switch d := resp.Decision(t); {
				case !resp.IsError(t):
					passed.Add(1)
				case d.Code == "rate_limited" && d.Retryable && d.RetryAfterMs > 0 && d.RetryAfterMs <= 60_001 && d.SessionKey == "session":
					limited.Add(1)
				default:
					t.Errorf("%d %s", resp.Status, resp.Body)
				}
			}
		})
	}
	close(gate)
	wg.Wait()
	if passed.Load() != 10 || limited.Load() != 990 || len(f.Upstream.Calls()) != 10 {
		t.Errorf("%d passed, %d were limited, %d reached the server; want 10, 990, 10", passed.Load(), limited.Load(), len(f.Upstream.Calls()))
	}
}

// Case R2. A call that was sent counts toward the rate limit even if the server answers with an error. No HTTP status
// proves that a server did not run the tool: for example, a server may run the tool and then answer 429 because a
// backend limits it.
func TestRateLimit_FailedCallIsCounted(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	// The statuses 400, 401, 403 and 410 are left out, because they may mean that the session is lost.
	// TestSession_LostUpstreamSessionEndsWith404 tests them.
	for i, status := range []int{500, 402, 406, 405, 413, 415, 429, 503, 302, 200} {
		f.Upstream.SetAnswer("limited", func(w http.ResponseWriter, _ *http.Request, _ string) { w.WriteHeader(status) })
		resp := c.Call("limited", "{}")
		if d := resp.Decision(t); d.Code != "outcome_unknown" {
			t.Fatalf("call %d, answered %d: code %q, want outcome_unknown", i, status, d.Code)
		}
		if status != 200 && !strings.Contains(resp.Text(t), fmt.Sprint(status)) {
			t.Errorf("the caller's error does not name %d: %s", status, resp.Text(t))
		}
	}
	if d := c.Call("limited", "{}").Decision(t); d.Code != "rate_limited" {
		t.Errorf("the eleventh call: %q, want rate_limited", d.Code)
	}
	if n := len(f.Upstream.Calls("limited")); n != 10 {
		t.Errorf("%d calls reached the server, want 10", n)
	}
}

// The server no longer accepts connections, so the gateway can't send the call. The test checks that the call does not
// count toward the rate limit.
func TestRateLimit_UnsentCallIsNotCounted(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	f.Upstream.Stop()
	eventually.Holds(t, "the gateway notices that its connections are gone", func() bool {
		return c.Call("safe", "{}").Decision(t).Code == "upstream_unavailable"
	})
	for range 12 {
		if d := c.Call("limited", "{}").Decision(t); d.Code != "upstream_unavailable" || !d.Retryable {
			t.Fatalf("code %q, want upstream_unavailable: a call that was not sent must not count", d.Code)
		}
	}
}

// Case U1. The server sends messages that it must not send. They are dropped or make the outcome unknown, and the
// client's session continues.
func TestUpstream_InvalidMessagesAreDroppedOrRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	sse := func(lines string) rawmcp.Answer {
		return func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, strings.ReplaceAll(lines, "ID", id))
		}
	}
	plain := func(body string) rawmcp.Answer {
		return func(w http.ResponseWriter, _ *http.Request, id string) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, strings.ReplaceAll(body, "ID", id))
		}
	}
	tests := []struct {
		name   string
		answer rawmcp.Answer
		code   string
	}{
		{"another id", plain(`{"jsonrpc":"2.0","id":99,"result":{}}`), "outcome_unknown"},
		{"the id as a string", plain(`{"jsonrpc":"2.0","id":"ID","result":{}}`), ""},
		{"the id as a padded string", plain(`{"jsonrpc":"2.0","id":" ID","result":{}}`), "outcome_unknown"},
		{"duplicate keys", plain(`{"jsonrpc":"2.0","id":ID,"result":{"a":1,"a":2}}`), "outcome_unknown"},
		{"invalid UTF-8", plain("{\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"a\":\"\xff\"}}"), "outcome_unknown"},
		{"a refusal that looks like ours", plain(`{"jsonrpc":"2.0","id":ID,"error":{"code":-31403,"message":"x","data":{"code":"denied_by_rule"}}}`), "outcome_unknown"},
		{"no JSON", plain(`<html>`), "outcome_unknown"},
		{"a stream without the answer", sse("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n"), "outcome_unknown"},
		{"its own request before the answer", sse("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"sampling/createMessage\",\"params\":{}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":ID,\"result\":{\"content\":[]}}\n\n"), ""},
		{"a redirect", func(w http.ResponseWriter, r *http.Request, _ string) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusTemporaryRedirect)
		}, "outcome_unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.Upstream.SetAnswer("safe", tt.answer)
			resp := c.Call("safe", "{}")
			if resp.Status != http.StatusOK || resp.Decision(t).Code != tt.code {
				t.Errorf("%d %s, want %q", resp.Status, resp.Body, tt.code)
			}
			if strings.Contains(string(resp.Body), "sampling") || len(resp.Events) > 0 && tt.code == "" {
				t.Errorf("the server's own request reached the client: %s %s", resp.Events, resp.Body)
			}
		})
	}
}

func TestCall_ProgressArrivesBeforeTheResult(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"t","progress":1}}`
	f.Upstream.SetAnswer("safe", func(w http.ResponseWriter, _ *http.Request, id string) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(w, "id: 1\nevent: message\ndata: %s\n\ndata: {\"jsonrpc\":\"2.0\",\ndata: \"id\":%s,\"result\":{\"content\":[]}}\n\n", progress, id)
	})
	resp := c.Post(stack.CallRequest(`{"name":"safe","_meta":{"progressToken":"t"}}`))
	if len(resp.Events) != 1 || string(resp.Events[0]) != progress {
		t.Errorf("events %q, want the progress", resp.Events)
	}
	// A line break in the data of an event becomes a space. Between JSON tokens, both have the same meaning.
	if want := "{\"jsonrpc\":\"2.0\", \"id\":7,\"result\":{\"content\":[]}}"; string(resp.Body) != want {
		t.Errorf("answer %q, want %q", resp.Body, want)
	}
}

func TestRevisions_UnknownRevisionErrorListsSupportedOnes(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	c := stack.NewClient(t, f.MCP("raw"), stack.AgentToken)
	resp := c.Post(`{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01","io.modelcontextprotocol/clientCapabilities":{}}}}`)
	if resp.Status != http.StatusBadRequest || resp.ErrorCode(t) != -32022 ||
		!strings.Contains(string(resp.Body), `"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"2031-01-01"`) {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
	c.Version = "2031-01-01"
	if resp := c.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"}}`); resp.ErrorCode(t) != -32022 {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
}

func TestSession_RequestWithoutSessionIsRefused(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	resp := stack.NewClient(t, f.MCP("raw"), stack.AgentToken).Call("safe", "{}")
	if resp.Status != http.StatusBadRequest || resp.Decision(t).Code != "session_required" {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
}

// Case I3. A principal may make more calls by opening more sessions, but not more calls than the principal's cap.
func TestRateLimit_SessionsOfAPrincipalShareTheCap(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, rawmcp.Tools)
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: rawmesh.StoryPolicy,
		Extra: "session: {cap: 3, max_per_principal: 2000}",
	})
	passed := 0
	for i := range 100 {
		c := stack.Connect(t, s.MCP("raw"), stack.AgentToken)
		for j := range 10 {
			run := fmt.Sprintf(`,"_meta":{"dev.sluice/run":"run-%d-%d"}`, i, j)
			resp := c.Post(stack.CallRequest(`{"name":"limited","arguments":{}` + run + `}`))
			if !resp.IsError(t) {
				passed++
			}
		}
	}
	if passed != 30 || len(up.Calls()) != 30 {
		t.Errorf("%d passed, %d reached the server; want 30", passed, len(up.Calls()))
	}
	for _, r := range up.Calls() {
		if strings.Contains(string(r.Body), "dev.sluice") {
			t.Fatalf("the server was sent our own key: %s", r.Body)
		}
	}
}
