package v2026_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func TestDiscover_OffersWhatTheCallerMayUse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "prompts/list")
		const want = `{"jsonrpc":"2.0","id":7,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},` +
			`"instructions":"i","resultType":"complete","ttlMs":0,"cacheScope":"private"}}`
		if diff := cmp.Diff(want, g.Do(gatewaytest.Modern("server/discover", "", "")).Text); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		g.Files().Respond(`{"supportedVersions":"2026-07-28","capabilities":{"tools":{}},"resultType":"complete"}`)
		if got := g.Do(gatewaytest.Modern("server/discover", "", "")); !strings.Contains(got.Text, `"supportedVersions":[]`) {
			t.Errorf("versions that are no list: %s", got.Text)
		}
	})
}

// Case X9. A caller without permissions receives the gateway's own discovery of the server, from which everything that
// identifies the server is removed.
func TestDiscover_OfACallerWithoutAccessContactsNoServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		want   string
	}{
		"without sessions": {gatewaytest.NewModernServer, `"supportedVersions":["2026-07-28"],"ttlMs":0`},
		"with sessions":    {gatewaytest.NewServer, `"supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],"ttlMs":0`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Policy.Access.CouldAllow = false
				g.Start()
				got := g.Do(gatewaytest.Modern("server/discover", "", ""))
				if !strings.Contains(got.Text, tt.want) || !strings.Contains(got.Text, `"cacheScope":"private"`) || strings.Contains(got.Text, "instructions") || strings.Contains(got.Text, "serverInfo") {
					t.Errorf("%s", got.Text)
				}
				if got := g.Do(gatewaytest.Modern("tools/list", "", "")); !strings.Contains(got.Text, `"name":"safe"`) || !strings.Contains(got.Text, `"resultType":"complete"`) {
					t.Errorf("its list: %s", got.Text)
				}
				if len(g.Files().Opened()) != 0 {
					t.Error("the server was contacted")
				}
			})
		})
	}
}

func TestDiscover_WithRequestsForTheClientIsNotPassedOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, gatewaytest.Methods()...)
		own := g.Files().Open
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() != "server/discover" {
				return own(r)
			}
			return gatewaytest.Result(r, strings.Replace(gatewaytest.Discovered, "{", `{"inputRequests":{"a":{"method":"roots/list"}},`, 1)), nil
		}
		g.Policy.Access.CouldAllow = false
		if got := g.Do(gatewaytest.Modern("server/discover", "", "")); got.Code() != "outcome_unknown" || strings.Contains(got.Text, "roots/list") {
			t.Errorf("%s", got.Text)
		}
	})
}
