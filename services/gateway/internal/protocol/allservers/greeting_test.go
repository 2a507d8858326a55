package allservers_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// The gateway itself answers initialize at the URL for all servers, so it does not contact a server until the client
// uses that server.
func TestGreeting_JoinsWhatTheServersOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		for _, text := range []string{g.Do(gatewaytest.Message{Body: gatewaytest.Initialize}).Text, client{Gateway: g}.list("server/discover")} {
			for _, want := range []string{
				`"capabilities":{"prompts":{"listChanged":true},"resources":{"subscribe":true},"tools":{"listChanged":true}}`, `files says:\n> Mind.`, `notes says:\n> Mind.`,
				`{"name":"sluice","title":"Sluice","version":""}`,
			} {
				if !strings.Contains(text, want) {
					t.Errorf("no %s in %s", want, text)
				}
			}
		}
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			return &policyv1.CheckServerResponse{CouldAllow: server == "notes", HidesNone: true}
		}
		for _, text := range []string{g.Do(gatewaytest.Message{Body: gatewaytest.Initialize}).Text, client{Gateway: g}.list("server/discover")} {
			if strings.Contains(text, "files says") || !strings.Contains(text, "notes says") || strings.Contains(text, "prompts\":{") {
				t.Errorf("a caller without access to files and without methods reads %s", text)
			}
		}
		if len(g.Files().Opened())+len(g.Servers["notes"].Opened()) != 0 {
			t.Error("a server was contacted")
		}
	})
}

// If a client requests a revision that the gateway does not support, the gateway offers 2025-11-25, the newest revision
// that uses sessions.
func TestGreeting_OffersARevisionThatTheGatewaySpeaks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		for asked, want := range map[string]string{"2025-06-18": "2025-06-18", "2099-01-01": "2025-11-25", "x": "2025-11-25"} {
			if got := g.Do(gatewaytest.Message{Body: gatewaytest.Initialize}.Replace("2025-11-25", asked)); !strings.Contains(got.Text, `"protocolVersion":"`+want+`"`) {
				t.Errorf("%s: %s", asked, got.Text)
			}
		}
	})
}

// A server supports revision 2026-07-28 and a revision that uses sessions, and declares different capabilities in each.
// A client receives the capabilities that the server declares in the client's own revision.
func TestGreeting_IsThatOfTheFamily(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		delete(g.Servers, "notes")
		own := g.Files().Open
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28","2025-11-25"],"capabilities":{"tools":{}},"resultType":"complete"}`), nil
			}
			return own(r)
		}
		g.Start()
		modern := client{Gateway: g}
		modern.call("files__safe") // the gateway learns that the server supports 2026-07-28
		time.Sleep(time.Minute)
		if got := modern.list("server/discover"); !strings.Contains(got, `"capabilities":{"tools":{"listChanged":true}}`) {
			t.Errorf("a client of 2026-07-28: %s", got)
		}
		if got := g.Do(gatewaytest.Message{Body: gatewaytest.Initialize}).Text; !strings.Contains(got, `"prompts":{`) {
			t.Errorf("a client with sessions: %s", got)
		}
	})
}
