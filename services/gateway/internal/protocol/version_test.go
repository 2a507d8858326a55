package protocol_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
)

var addresses = map[string]string{"one server": "files", "all servers": ""}

// forEachAddress runs the function story in two subtests: one for the URL for one server, and one for the URL for all
// servers.
func forEachAddress(t *testing.T, story func(t *testing.T, server string)) {
	t.Helper()
	for name, server := range addresses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { story(t, server) })
		})
	}
}

// request returns a request without arguments. If version is not empty, _meta contains it as the revision.
func request(method, version string) string {
	params := ""
	if version != "" {
		params = `,"params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `"}}`
	}
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `"` + params + `}`
}

// The reason why a request without a session is refused shows which revisions' code has handled the request. In the
// revisions that use sessions, the session is missing. In revision 2026-07-28, the capabilities are missing.
func TestServe_RevisionDecidesWhichFamilyHandlesAMessage(t *testing.T) {
	t.Parallel()
	const sessions, stateless, mismatch = "session_required", "params_invalid", "header_mismatch"
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		for _, tt := range []struct{ method, header, body, want string }{
			{"prompts/list", "", "", sessions},
			{"prompts/list", "2025-11-25", "", sessions},
			{"prompts/list", "2024-11-05", "2025-06-18", sessions},
			{"prompts/list", "2026-07-28", "", stateless},
			{"prompts/list", "", "2026-07-28", stateless},
			{"prompts/list", "2026-07-28", "2026-07-28", stateless},
			{"prompts/list", "2025-11-25", "2026-07-28", mismatch},
			{"prompts/list", "2026-07-28", "2025-11-25", mismatch},
			{"server/discover", "", "", stateless},
			{"server/discover", "2026-07-28", "2026-07-28", stateless},
			{"server/discover", "", "2025-11-25", "protocol_version"},
			{"subscriptions/listen", "", "", stateless},
			{"initialize", "2026-07-28", "2026-07-28", stateless},
		} {
			got := g.Do(gatewaytest.Message{Server: server, Body: request(tt.method, tt.body)}.With("Mcp-Protocol-Version", tt.header))
			if got.Code() != tt.want {
				t.Errorf("%s with header %q and _meta %q: %s, want %s", tt.method, tt.header, tt.body, got.Text, tt.want)
			}
		}
	})
}

func TestServe_InitializeIgnoresTheRevisionInHeaders(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		initialize := gatewaytest.Message{Server: server, Body: gatewaytest.Initialize}
		for _, header := range []string{"2026-07-28", "2031-01-01", "2025-11-25"} {
			if got := g.Do(initialize.With("Mcp-Protocol-Version", header)); got.Response.Session == "" {
				t.Errorf("header %s: %d %s", header, got.Status, got.Text)
			}
		}
		if got := g.Do(initialize.With("Mcp-Protocol-Version", "newest")); got.Code() != "protocol_version" || got.Response.Session != "" {
			t.Errorf("a header that is no revision: %d %s", got.Status, got.Text)
		}
	})
}

func TestServe_AnswerToAnUnsupportedRevisionNamesTheSupported(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		for _, tt := range []struct{ header, body, requested string }{
			{"2031-01-01", "", "2031-01-01"},
			{"", "2032-02-02", "2032-02-02"},
			{"2031-01-01", "2032-02-02", "2032-02-02"},
			{"x" + strings.Repeat("y", 200), "", "x" + strings.Repeat("y", 127)},
		} {
			got := g.Do(gatewaytest.Message{Server: server, Body: request("tools/list", tt.body)}.With("Mcp-Protocol-Version", tt.header))
			const supported = `"supported":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"requested":"`
			if got.Status != http.StatusBadRequest || !strings.Contains(got.Text, supported+tt.requested) {
				t.Errorf("header %q and _meta %q: %d %s", tt.header, tt.body, got.Status, got.Text)
			}
		}
	})
}

// A probe is a request of a newer, unsupported revision outside a session. All other messages of an unsupported
// revision are recorded as refusals.
func TestServe_OnlyProbesAreNotRecordedAsRefusals(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		for _, m := range []gatewaytest.Message{
			gatewaytest.Message{Body: request("tools/list", "")}.With("Mcp-Protocol-Version", "2031-01-01"),
			{Body: request("vendor/x", "2031-01-01")},
		} {
			g.Do(m.To(server))
		}
		if got := g.Journal.Refusals(); len(got) != 0 {
			t.Errorf("probes are recorded as %q", got)
		}
		for _, m := range []gatewaytest.Message{
			gatewaytest.Message{Body: request("tools/list", "")}.With("Mcp-Protocol-Version", "2031-01-01").In(session),
			gatewaytest.Message{Body: request("tools/list", "")}.With("Mcp-Protocol-Version", "newest"),
			gatewaytest.Message{Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}.With("Mcp-Protocol-Version", "2031-01-01"),
		} {
			g.Do(m.To(server))
		}
		if diff := cmp.Diff(slices.Repeat([]string{"protocol_version"}, 3), g.Journal.Refusals()); diff != "" {
			t.Errorf("recorded refusals (-want +got):\n%s", diff)
		}
		if passed := g.Passed(); passed["probe"] != 2 {
			t.Errorf("counted are %v, want 2 probes", passed)
		}
	})
}

func TestServe_ProbesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		probe := gatewaytest.Message{Body: request("tools/list", "2031-01-01")}
		for range 10_000 {
			if refused := g.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: protocol.MethodProbe}); refused != nil {
				t.Fatalf("refused as %+v", refused)
			}
		}
		if got := g.Do(probe); got.Code() != "abuse_limited" || strings.Contains(got.Text, "supported") {
			t.Errorf("one more: %d %s", got.Status, got.Text)
		}
	})
}
