package approvals_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// A caller whose call is held receives the response headers at once, even if it does not request progress. Proxies and
// clients that wait for headers would otherwise time out before an approver votes.
func TestHeldCall_ReceivesResponseHeadersAtOnce(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.PayPolicy, "approvals: {hold: 60s}")
	pay := startRequest(t, f, stack.CallRequest(`{"name":"pay","arguments":{}}`))
	head := awaitHeaders(t, pay)
	id := f.AwaitOnePending(t)
	waits := startRequest(t, f, stack.CallRequest(`{"name":"sluice_approval_wait","arguments":{"id":"`+id+`"}}`))
	for what, resp := range map[string]*http.Response{"the call": head, "the tool to wait with": awaitHeaders(t, waits)} {
		if kind := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || kind != "text/event-stream" {
			t.Errorf("%s: %d, %s", what, resp.StatusCode, kind)
		}
		defer func() {
			if body, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(body), `"text":"`) || strings.Contains(string(body), "isError") {
				t.Errorf("%s ends with %s, %v", what, body, err)
			}
		}()
	}
	if n := len(f.Upstream.Calls("pay")); n != 0 {
		t.Errorf("%d calls were sent before the approval", n)
	}
	stack.CheckCommand(t, f.RunApprovalsJSON(t, "approve", id, "--yes"), 0, "")
}

// startRequest sends a message in a new session. It returns a channel that receives the response after its headers have
// arrived.
func startRequest(t *testing.T, f *rawmesh.Mesh, body string) <-chan *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.MCP("raw"), strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + stack.AgentToken,
		"Mcp-Session-Id": f.Connect(t).Session(), "Mcp-Protocol-Version": "2025-11-25",
	} {
		req.Header.Set(key, value)
	}
	head := make(chan *http.Response, 1)
	go func() {
		defer close(head)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			t.Cleanup(func() { _ = resp.Body.Close() })
			head <- resp
		}
	}()
	return head
}

// headerTimeLimit is the maximum time that a test waits for response headers.
const headerTimeLimit = 30 * time.Second

// awaitHeaders returns the response after its headers have arrived. It does not read the body.
func awaitHeaders(t *testing.T, head <-chan *http.Response) *http.Response {
	t.Helper()
	select {
	case resp := <-head:
		if resp == nil {
			t.Fatal("the request failed")
		}
		return resp
	case <-time.After(headerTimeLimit):
		t.Fatalf("no response headers within %v", headerTimeLimit)
		return nil
	}
}
