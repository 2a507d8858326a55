package mcpserver_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newer contains requests that clients of a newer revision send to find out whether a server supports that revision.
var newer = []struct {
	name, body, requested string
	header                http.Header
}{
	{"what is spoken", `{"jsonrpc":"2.0","id":7,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}`, "2031-01-01", http.Header{"Mcp-Protocol-Version": {"2031-01-01"}}},
	{"a list", `{"jsonrpc":"2.0","id":7,"method":"tools/list"}`, "2031-01-01", http.Header{"Mcp-Protocol-Version": {"2031-01-01"}}},
	{"a call", `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"safe","_meta":{"io.modelcontextprotocol/protocolVersion":"2031-01-01"}}}`, "2031-01-01", nil},
	{"an unknown method", `{"jsonrpc":"2.0","id":7,"method":"x/y"}`, "2031-01-01", http.Header{"Mcp-Protocol-Version": {"2031-01-01"}}},
}

// A probe for an unsupported revision is answered with the revisions that are supported. Probes are counted, but not
// recorded as refusals.
func TestProbe_IsAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		run := w.runPipeline()
		for _, tt := range newer {
			got := w.do("POST", "/mcp/files", tt.body, tt.header)
			if got.status != 400 || got.code() != "protocol_version" ||
				!strings.HasPrefix(got.body, `{"jsonrpc":"2.0","id":7,"error":{"code":-32022,`) ||
				!strings.Contains(got.body, `"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"`+tt.requested+`"`) {
				t.Errorf("%s: %d %s", tt.name, got.status, got.body)
			}
		}
		run()
		if refused := w.Journal.Records(journal.KindRefusal); len(refused) != 0 {
			t.Errorf("%d refusals are on record, the first is %+v", len(refused), refused[0])
		}
		got := make(map[string]int64)
		for _, r := range w.Journal.Records(journal.KindPassed) {
			got[r.Subject+" "+r.Server+" "+r.Method] = r.Count
		}
		if diff := cmp.Diff(map[string]int64{"ana files probe": int64(len(newer))}, got); diff != "" {
			t.Errorf("on record (-want +got):\n%s", diff)
		}
		if len(w.files.Opened()) != 0 || len(w.Policy.Decided()) != 0 {
			t.Error("something was asked of the server, or of policy")
		}
	})
}

// The body of initialize determines the revision, regardless of the headers.
func TestProbe_InitializeAgreesOnARevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		got := w.do("POST", "/mcp/files", strings.Replace(initialize, "2025-11-25", "2031-01-01", 1), http.Header{"Mcp-Protocol-Version": {"2031-01-01"}})
		if got.status != 200 || got.header.Get("Mcp-Session-Id") == "" || !strings.Contains(got.body, `"protocolVersion":"2025-11-25"`) {
			t.Errorf("%d %s", got.status, got.body)
		}
		if refused := w.Journal.Records(journal.KindRefusal); len(refused) != 0 {
			t.Errorf("on record: %+v", refused)
		}
	})
}

// Case X4. Probes count as messages for which no rule is needed. If a client sends too many, further probes are refused
// and the refusals are recorded.
func TestProbe_IsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.countExempt(9_800, protocol.MethodProbe)
		for range 200 {
			if got := w.do("POST", "/mcp/files", newer[0].body, newer[0].header); got.code() != "protocol_version" {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		got := w.do("POST", "/mcp/files", newer[0].body, newer[0].header)
		if refused := w.Journal.Records(journal.KindRefusal); got.code() != "abuse_limited" || len(refused) != 1 || refused[0].Code != "abuse_limited" || refused[0].Method != "server/discover" {
			t.Errorf("%d %s, on record %+v", got.status, got.body, refused)
		}
	})
}
