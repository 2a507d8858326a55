package servers_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// A client session can list the server's tools, but the gateway can't list them for itself. Therefore a call is
// refused, and the refusal contains the actual cause. As soon as the gateway can list the tools, the call runs. No
// operator has to accept a definition.
func TestFirstUse_CallNamesTheFailedListing(t *testing.T) {
	t.Parallel()
	var repaired atomic.Bool
	odd := startOddServer(t, func(w http.ResponseWriter, _ *http.Request, method, id string) {
		const tools = `{"tools":[{"name":"one","inputSchema":{"type":"object"}}]`
		switch {
		case method == "initialize":
			writeResult(w, id, oddInitializeResult)
		case method == "tools/call":
			writeResult(w, id, `{"content":[{"type":"text","text":"ran"}]}`)
		case repaired.Load():
			writeResult(w, id, tools+"}")
		default: // a session finds the tool on the first page, but the list never ends
			writeResult(w, id, tools+`,"nextCursor":"again"}`)
		}
	})
	s := stack.StartInProcess(t, stack.Options{Servers: fmt.Sprintf("  odd: {http: {url: %q}}", odd.URL), Policy: allowAll})
	lists, callsOnly := stack.Connect(t, s.MCP("odd"), stack.AgentToken), stack.Connect(t, s.MCP("odd"), stack.OtherToken)
	for range 5 {
		lists.Post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		for name, c := range map[string]*stack.Client{"that lists tools": lists, "that only calls": callsOnly} {
			resp := c.Call("one", "{}")
			text := resp.Text(t)
			if code := resp.Decision(t).Code; code != "upstream_unavailable" || !strings.Contains(text, "the gateway could not list the server's tools") ||
				!strings.Contains(text, "page 2 repeats the cursor of an earlier page") || strings.Contains(text, "operator has accepted") {
				t.Errorf("a client %s receives %s: %s", name, code, text)
			}
		}
	}
	repaired.Store(true)
	for _, c := range []*stack.Client{lists, callsOnly} {
		eventually.Within(t, 3*time.Minute, "the call runs", func() bool { return strings.Contains(string(c.Call("one", "{}").Body), `"ran"`) })
	}
}
