package mesh_test

import (
	"fmt"
	"testing"

	"github.com/sluice-mesh/sluice/services/e2e/rawmcp"
	"github.com/sluice-mesh/sluice/services/e2e/stack"
)

// Case X5. An agent without rate limits makes so many calls that its records would displace another principal's
// records. The calls are refused before that happens, and no later call reaches the server.
func TestJournal_FloodDoesNotPruneRecordsOfOthers(t *testing.T) {
	t.Parallel()
	up := rawmcp.Start(t, `[{"name":"safe","inputSchema":{"type":"object"}}]`)
	s := stack.StartInProcess(t, stack.Options{
		Servers: fmt.Sprintf("  raw: {http: {url: %q}}", up.URL), Policy: stack.OpenPolicy, Extra: "journal: {calls_mib: 64, share: 0.02}",
	})
	victim := stack.Connect(t, s.MCP("raw"), stack.OtherToken)
	if resp := victim.Call("safe", "{}"); resp.IsError(t) {
		t.Fatalf("the victim's call: %s", resp.Body)
	}
	flood := stack.Connect(t, s.MCP("raw"), stack.AgentToken)
	var refused stack.Decision
	n := 0
	for ; n < 5000 && refused.Code == ""; n++ {
		if resp := flood.Call("safe", "{}"); resp.IsError(t) {
			refused = resp.Decision(t)
		}
	}
	if refused.Code != "abuse_limited" || !refused.Retryable {
		t.Fatalf("after %d calls: %+v", n, refused)
	}
	sent := len(up.Calls())
	for range 20 {
		if resp := flood.Call("safe", "{}"); resp.Decision(t).Code != "abuse_limited" {
			t.Errorf("a call after the refusal: %s", resp.Body)
		}
	}
	if now := len(up.Calls()); now != sent {
		t.Errorf("%d refused calls reached the server", now-sent)
	}
	if resp := victim.Call("safe", "{}"); resp.IsError(t) {
		t.Errorf("the other principal's call: %s", resp.Body)
	}
	calls, refusals := newHashChain(s.Journal(), "calls"), newHashChain(s.Journal(), "refusals")
	calls.readNewRecords(t)
	refusals.readNewRecords(t)
	if calls.recordCount() < 1000 || !refusals.decisions[refused.ID] {
		t.Errorf("the journal has %d records of calls from the first on, and of the refusal %v", calls.recordCount(), refusals.decisions[refused.ID])
	}
	t.Logf("%d calls, then refused", n)
}
