package npmtest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/e2e/npm"
	"github.com/sluice-mesh/sluice/services/e2e/npmtest"
)

const (
	token = "only-for-this-test"
	// oddTools and oddResult contain numbers that change if a client parses them as doubles. They also contain unknown
	// fields, whose names begin with x. A client that parses the messages drops these fields.
	oddTools  = `{"tools":[{"name":"odd","inputSchema":{"type":"object"},"xUnknown":{"n":9007199254740993},"_meta":{"x":1.50}}]}`
	oddResult = `{"content":[{"type":"text","text":"hé"}],"structuredContent":{"n":18446744073709551615},"xUnknown":[1e400,-0.0]}`
)

// cannedServer responds with fixed bytes. An SDK would change some of these bytes.
type cannedServer struct {
	mu   sync.Mutex
	seen []string // HTTP method and JSON-RPC method of each request
}

func (c *cannedServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body) // a short body does not parse
	var msg struct {
		ID     jsontext.Value
		Method string
		Params struct {
			Name      string
			Arguments jsontext.Value
			Meta      struct{ ProgressToken jsontext.Value } `json:"_meta"`
		}
	}
	_ = json.Unmarshal(body, &msg, json.MatchCaseInsensitiveNames(true)) // a GET has no body
	c.mu.Lock()
	c.seen = append(c.seen, strings.TrimSpace(r.Method+" "+msg.Method))
	c.mu.Unlock()
	switch {
	case r.Header.Get("Authorization") != "Bearer "+token:
		http.Error(w, "who are you?", http.StatusUnauthorized)
	case r.Method == http.MethodDelete:
		w.WriteHeader(http.StatusOK)
	case r.Method != http.MethodPost:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case msg.ID == nil:
		w.WriteHeader(http.StatusAccepted)
	case msg.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "session-1")
		answer(w, msg.ID, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"canned","version":"1"}}`)
	case msg.Method == "tools/list":
		answer(w, msg.ID, oddTools)
	case msg.Params.Name == "never":
		<-r.Context().Done()
	case msg.Method == "tools/call":
		call(w, msg.ID, msg.Params.Name, msg.Params.Arguments, msg.Params.Meta.ProgressToken)
	default:
		respond(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-31403,"message":"no","data":{"code":"method_denied","n":9007199254740993}}}`, msg.ID))
	}
}

func call(w http.ResponseWriter, id jsontext.Value, name string, args, progressToken jsontext.Value) {
	switch name {
	case "echo":
		answer(w, id, fmt.Sprintf(`{"content":[],"structuredContent":%s}`, args))
	case "refused":
		answer(w, id, `{"isError":true,"content":[{"type":"text","text":"refused:"},{"type":"text","text":"by rule"}],"_meta":{"code":"denied_by_rule"}}`)
	case "slow":
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, ": a comment\nid: 0\ndata:\n\n")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d}}\n\n", progressToken, i+1)
		}
		fmt.Fprintf(w, "event: message\r\ndata: {\"jsonrpc\":\"2.0\",\"id\":%s,\r\ndata: \"result\":%s}\r\n\r\n", id, oddResult)
	case "broken":
		http.Error(w, "out of order", http.StatusBadGateway)
	default:
		answer(w, id, oddResult)
	}
}

func answer(w http.ResponseWriter, id jsontext.Value, result string) {
	respond(w, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, id, result))
}

func respond(w http.ResponseWriter, message string) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, message)
}

// startClient connects a client to a new cannedServer.
func startClient(t *testing.T) (*npmtest.Client, *cannedServer) {
	t.Helper()
	server := new(cannedServer)
	web := httptest.NewServer(server)
	t.Cleanup(web.Close)
	return npmtest.StartClient(t, web.URL+"/mcp", token), server
}

func TestClient_CallsAndReturnsTheReceivedBytes(t *testing.T) {
	t.Parallel()
	client, _ := startClient(t)

	t.Run("lists tools and keeps the bytes that came", func(t *testing.T) {
		t.Parallel()
		reply := client.ListTools()
		if diff := cmp.Diff([]string{"odd"}, reply.ToolNames(t)); diff != "" {
			t.Errorf("tools (-want +got):\n%s", diff)
		}
		if got := reply.Message(t); !strings.HasSuffix(got, `"result":`+oddTools+"}") {
			t.Errorf("the message is %s, want the result %s", got, oddTools)
		}
	})
	t.Run("keeps the bytes of a result that came as JSON", func(t *testing.T) {
		t.Parallel()
		reply := client.CallTool(npmtest.ToolCall{Name: "odd"})
		if got := reply.ToolResult(t).Text(); got != "hé" {
			t.Errorf("text %q", got)
		}
		if got := reply.Message(t); !strings.HasSuffix(got, `"result":`+oddResult+"}") {
			t.Errorf("the message is %s, want the result %s", got, oddResult)
		}
	})
	t.Run("keeps the bytes of a result that came as events, and its progress", func(t *testing.T) {
		t.Parallel()
		reply := client.CallTool(npmtest.ToolCall{Name: "slow", Progress: true})
		if got := reply.Message(t); !strings.HasSuffix(got, "\n\"result\":"+oddResult+"}") {
			t.Errorf("the message is %s, want the result %s", got, oddResult)
		}
		want := []jsontext.Value{[]byte(`{"progress":1}`), []byte(`{"progress":2}`), []byte(`{"progress":3}`)}
		if diff := cmp.Diff(want, reply.Progress); diff != "" {
			t.Errorf("progress (-want +got):\n%s", diff)
		}
		if n := len(reply.HTTP[0].Messages()); n != 4 {
			t.Errorf("%d messages in %q, want 4", n, reply.HTTP[0].Body)
		}
	})
	t.Run("sends arguments and meta digit for digit", func(t *testing.T) {
		t.Parallel()
		const args = `{"n":18446744073709551615,"f":1.5,"deep":[{"n":-9007199254740993}]}`
		reply := client.CallTool(npmtest.ToolCall{
			Name: "echo", Arguments: jsontext.Value(args), Meta: map[string]any{"dev.sluice/run": "r1"},
		})
		for _, want := range []string{`"arguments":` + args, `"_meta":{"dev.sluice/run":"r1"}`} {
			if sent := reply.HTTP[0].Sent; !strings.Contains(sent, want) {
				t.Errorf("sent %s, want %s in it", sent, want)
			}
		}
	})
	t.Run("tells a refusal from an error", func(t *testing.T) {
		t.Parallel()
		result := client.CallTool(npmtest.ToolCall{Name: "refused"}).ToolResult(t)
		if !result.IsError || result.Text() != "refused:\nby rule" || string(result.Meta["code"]) != `"denied_by_rule"` {
			t.Errorf("refusal %+v", result)
		}
	})
	t.Run("passes on errors with code and data", func(t *testing.T) {
		t.Parallel()
		got := client.Request("resources/list", nil).Error
		if got == nil || got.Name != "McpError" || got.Code != -31403 || !strings.Contains(string(got.Data), "method_denied") {
			t.Errorf("error %v", got)
		}
	})
	t.Run("passes on HTTP statuses", func(t *testing.T) {
		t.Parallel()
		reply := client.CallTool(npmtest.ToolCall{Name: "broken"})
		if reply.Error == nil || reply.Error.Code != http.StatusBadGateway || reply.HTTP[0].Body != "out of order\n" {
			t.Errorf("error %v, exchanges %+v", reply.Error, reply.HTTP)
		}
	})
	t.Run("gives up when told to", func(t *testing.T) {
		t.Parallel()
		reply := client.CallTool(npmtest.ToolCall{Name: "never", Timeout: 50 * time.Millisecond})
		if reply.Error == nil || !strings.Contains(reply.Error.Message, "timed out") {
			t.Errorf("error %v", reply.Error)
		}
	})
}

func TestClient_ConcurrentCallsReceiveTheirOwnResults(t *testing.T) {
	t.Parallel()
	client, _ := startClient(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			reply := client.CallTool(npmtest.ToolCall{Name: "echo", Arguments: map[string]int{"i": i}})
			want := fmt.Sprintf(`"structuredContent":{"i":%d}`, i)
			if !strings.Contains(string(reply.Result), want) || len(reply.HTTP) != 1 {
				t.Errorf("call %d got %s, error %v, over %d exchanges", i, reply.Result, reply.Error, len(reply.HTTP))
			}
		})
	}
	wg.Wait()
}

func TestClient_WrongTokenIsReported(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(new(cannedServer))
	t.Cleanup(web.Close)
	reply := npmtest.NewClient(t, npm.TypeScriptSDK).Connect(web.URL, "wrong")
	if reply.Error == nil || reply.Error.Code != http.StatusUnauthorized {
		t.Errorf("error %v, want 401", reply.Error)
	}
}

// recordingTB is a testing.TB that records failures and does not fail.
type recordingTB struct {
	testing.TB
	failures []string
}

func (w *recordingTB) Errorf(format string, args ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
}

func TestClient_HarnessFailureFailsTheTest(t *testing.T) {
	t.Parallel()
	w := &recordingTB{TB: t}
	reply := npmtest.NewClient(w, npm.TypeScriptSDK).CallTool(npmtest.ToolCall{Name: "echo", Arguments: func() {}})
	if reply.Error == nil || reply.Error.Name != "HarnessError" || len(w.failures) != 1 {
		t.Errorf("error %v, failures %q; want a HarnessError and one failure", reply.Error, w.failures)
	}
}

func TestClient_CloseEndsTheSession(t *testing.T) {
	t.Parallel()
	client, server := startClient(t)
	if reply := client.Close(); reply.Error != nil {
		t.Fatal(reply.Error)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	if !slices.Contains(server.seen, "DELETE") { // the client's GET runs concurrently and may be recorded later
		t.Errorf("the server received %v, want a DELETE", server.seen)
	}
}
