package edge_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gatewayv1 "github.com/sluice-mesh/sluice/gen/sluice/gateway/v1"
	"github.com/sluice-mesh/sluice/services/e2e/rawmesh"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// After 1,000 refusals of a principal in a minute, further refusals are counted but not recorded individually. Each
// caller still receives the reason for the refusal and the id of a recorded decision. The refusals of other principals
// are still recorded, and allowed calls run.
func TestFlood_RefusalsBeyondTheAbuseLimitAreOnlyCounted(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, rawmesh.StoryPolicy, "")
	c := f.Connect(t)
	var mu sync.Mutex
	ids := make(map[string]bool)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 150 {
				d := c.Call("danger", "{}").Decision(t)
				if d.Code != "denied_by_rule" {
					t.Errorf("refused as %q", d.Code)
				}
				mu.Lock()
				ids[d.ID] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	onRecord := make(map[string]bool)
	summaries := 0
	for _, r := range f.Records(t) {
		onRecord[r.GetDecisionId()] = true
		if r.GetKind() == gatewayv1.RecordKind_RECORD_KIND_REFUSAL && strings.HasSuffix(r.GetCode().String(), "ABUSE_LIMITED") {
			summaries++
		}
	}
	for id := range ids {
		if !onRecord[id] {
			t.Errorf("a caller received the decision id %q, which the journal does not have", id)
		}
	}
	if len(ids) != 1001 || summaries != 1 {
		t.Errorf("1,200 refusals have %d decisions and %d summary records, want 1001 and 1", len(ids), summaries)
	}
	if resp := c.Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("an allowed call was refused: %s", resp.Body)
	}
	other := stack.Connect(t, f.MCP("raw"), stack.OtherToken).Call("danger", "{}").Decision(t)
	found := false
	for _, r := range f.Records(t) {
		found = found || r.GetDecisionId() == other.ID
	}
	if !found {
		t.Error("the journal does not have another principal's refusal")
	}
}

// Case N2. The test sends many bad credentials, and opens many sessions and many connections that send nothing. Other
// callers are not affected.
func TestFlood_OtherCallersAreNotAffected(t *testing.T) {
	t.Parallel()
	f := rawmesh.Start(t, stack.OpenPolicy, "")
	good := f.Connect(t)
	ctx, stop := context.WithCancel(t.Context())
	var flooding sync.WaitGroup
	flood := func(do func()) {
		flooding.Go(func() {
			for ctx.Err() == nil {
				do()
			}
		})
	}
	var refused, opened, held atomic.Int64
	flood(func() {
		if resp, err := stack.NewClient(t, f.MCP("raw"), strings.Repeat("x", 40)).TryPost([]byte(stack.CallRequest(`{"name":"safe"}`))); err == nil && resp.Status == http.StatusUnauthorized {
			refused.Add(1)
		}
	})
	greeting := []byte(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)
	flood(func() {
		if resp, err := stack.NewClient(t, f.MCP("raw"), stack.OtherToken).TryPost(greeting); err == nil && resp.Header.Get("Mcp-Session-Id") != "" {
			opened.Add(1)
		}
	})
	flood(func() {
		conn, err := net.Dial("tcp", strings.TrimPrefix(f.URL, "http://"))
		if err != nil {
			return
		}
		held.Add(1)
		fmt.Fprint(conn, "POST /mcp/raw HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
		context.AfterFunc(ctx, func() { _ = conn.Close() })
		time.Sleep(time.Millisecond)
	})
	for range 300 {
		if resp := good.Call("safe", "{}"); resp.Status != http.StatusOK || resp.IsError(t) {
			t.Fatalf("%d %s", resp.Status, resp.Body)
		}
	}
	eventually.Holds(t, "every flood has begun", func() bool { return refused.Load() > 100 && opened.Load() > 100 && held.Load() > 100 })
	stop()
	flooding.Wait()
	if n := len(f.Upstream.Calls()); n != 300 {
		t.Errorf("%d calls reached the server, want 300", n)
	}
	sessions, err := gatewayv1.NewGatewayServiceClient(f.Operator(t)).ListSessions(t.Context(), &gatewayv1.ListSessionsRequest{PageSize: 1000})
	if err != nil || len(sessions.GetSessions()) > 101 {
		t.Errorf("%d sessions are open, %v; want at most 100 of one principal and 1 of another", len(sessions.GetSessions()), err)
	}
}
