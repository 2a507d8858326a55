package v2025_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func TestInitialize_AgreesOnARevisionThatBothSpeak(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ asked, sent, spoken, code string }{
		{"2025-11-25", "2025-11-25", "2025-11-25", ""},
		{"2025-03-26", "2025-03-26", "2025-03-26", ""},
		{"2025-11-25", "2025-11-25", "2024-11-05", ""},
		{"2031-01-01", "2025-11-25", "2025-11-25", ""},
		{"2026-07-28", "2025-11-25", "2025-06-18", ""},
		{"2025-11-25", "2025-11-25", "2026-07-28", "protocol_version"},
		{"2025-11-25", "2025-11-25", "2031-01-01", "protocol_version"},
		{"2025-11-25", "2025-11-25", "", "protocol_version"},
	} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewaytest.Start(t)
			g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
				return gatewaytest.Result(r, `{"protocolVersion":"`+tt.spoken+`","capabilities":{}}`), nil
			}
			got := g.Do(initialize("files", tt.asked, "{}"))
			if got.Status != http.StatusOK || got.Code() != tt.code || (got.Response.Session == "") != (tt.code != "") {
				t.Errorf("%s to a server of %q: %d %s", tt.asked, tt.spoken, got.Status, got.Text)
			}
			if sent := string(g.Files().Opened()[0].Body()); !strings.Contains(sent, `"protocolVersion":"`+tt.sent+`"`) {
				t.Errorf("%s: the server got %s", tt.asked, sent)
			}
			synctest.Wait()
			if states := g.Sessions.List(gatewaytest.Tenant); tt.code == "" && (states[0].Version != tt.spoken || g.Files().Closed() != 0) || tt.code != "" && (len(states) != 0 || g.Files().Closed() != 1) {
				t.Errorf("%s: %d sessions, and the server's session was closed %d times", tt.asked, len(states), g.Files().Closed())
			}
		})
	}
}

// At the URL for all servers, the gateway itself negotiates the revision and contacts no server.
func TestInitialize_AtAllServersTheGatewayAnswers(t *testing.T) {
	t.Parallel()
	for asked, want := range map[string]string{"2025-11-25": "2025-11-25", "2024-11-05": "2024-11-05", "2031-01-01": "2025-11-25", "x": "2025-11-25"} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewaytest.Start(t)
			got := g.Do(initialize("", asked, "{}"))
			if !strings.Contains(got.Text, `"protocolVersion":"`+want+`"`) || !strings.Contains(got.Text, `"serverInfo":{"name":"sluice"`) || got.Response.Session == "" {
				t.Errorf("%s: %d %s", asked, got.Status, got.Text)
			}
			if len(g.Files().Opened()) != 0 {
				t.Errorf("%s: a server was contacted", asked)
			}
		})
	}
}

// The gateway declares to a server only the client capabilities that the policy allows the server to use. It declares
// none if the server's requests could not reach the client.
func TestInitialize_DeclaresTheCapabilitiesThatTheServerMayUse(t *testing.T) {
	t.Parallel()
	const has = `{"sampling":{"tools":{},"x":{}},"elicitation":{"form":{}},"roots":{"listChanged":true},"tasks":{},"experimental":{"y":{}}}`
	for name, tt := range map[string]struct {
		accept, transport string
		methods           []string
		inside            bool
		want              string
	}{
		"all that policy allows":   {methods: gatewaytest.Methods(), want: `{"elicitation":{"form":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}`},
		"one that policy allows":   {methods: []string{"roots/list"}, want: `{"roots":{"listChanged":true}}`},
		"none that policy allows":  {want: `{}`},
		"a client without streams": {methods: gatewaytest.Methods(), accept: "application/json", want: `{}`},
		"a server that cannot ask": {methods: gatewaytest.Methods(), transport: "grpc", want: `{}`},
		"a caller inside the mesh": {methods: gatewaytest.Methods(), inside: true, want: `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachAddress(t, func(t *testing.T, server, prefix string) {
				g := gatewaytest.New(t)
				g.Files().Transport = tt.transport
				g.Policy.Access.Methods = tt.methods
				g.Start()
				open := initialize(server, "2025-11-25", has)
				if tt.accept != "" {
					open = open.With("Accept", tt.accept)
				}
				session := ""
				if tt.inside {
					session = g.Inside(open, func([]byte) {}).Session
				} else {
					session = g.Do(open).Response.Session
				}
				call := gatewaytest.Call(prefix+"safe", "").To(server).With("Mcp-Session-Id", session)
				if got := g.Do(call); got.Code() != "" || got.Status != http.StatusOK {
					t.Fatalf("a call: %d %s", got.Status, got.Text)
				}
				opened := g.Files().Opened()
				if diff := cmp.Diff(tt.want, declared(string(opened[len(opened)-1].Body()))); diff != "" {
					t.Errorf("the server got (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestInitialize_RemembersWhatTheClientHasDeclared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("roots/list")
		g.Do(initialize("files", "2025-11-25", `{"elicitation":{},"roots":{}}`))
		state := g.Sessions.List(gatewaytest.Tenant)[0]
		if state.Client.Name != "c" || state.Client.Version != "1" || !state.Client.Elicits || !state.Client.Offer.Has("roots/list") || state.Client.Offer.RequestedRevision != "2025-11-25" {
			t.Errorf("%+v", state.Client)
		}
		if state.Agent != "dev" || state.Key.Subject != "ana" || state.Key.Server != "files" || state.Ready.Load() {
			t.Errorf("%+v", state.Session)
		}
	})
}

// Case X9. A caller without permissions on a server receives the gateway's own discovery of the server, from which
// everything that identifies the server is removed. The gateway contacts the server for the caller only when the policy
// allows a request.
func TestInitialize_OfACallerWithoutAccessContactsNoServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Access.CouldAllow = false
		open := g.Files().Open
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"vendor":{}},"serverInfo":{"name":"payroll","version":"9"},"instructions":"secret"}`), nil
		}
		got := g.Do(initialize("files", "2025-06-18", "{}"))
		const want = `{"jsonrpc":"2.0","id":0,"result":{"capabilities":{"tools":{}},"protocolVersion":"2025-06-18","serverInfo":{"name":"sluice","title":"Sluice","version":""}}}`
		if diff := cmp.Diff(want, got.Text); diff != "" || len(g.Files().Opened()) != 0 {
			t.Errorf("the server was contacted %d times, and the client got (-want +got):\n%s", len(g.Files().Opened()), diff)
		}
		session := http.Header{"Mcp-Session-Id": {got.Response.Session}}
		g.Do(message("files", initialized, session))
		if len(g.Files().Opened()) != 0 {
			t.Error("the server was contacted because of a notification")
		}
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			if !strings.Contains(string(r.Body()), `"protocolVersion":"2025-06-18"`) || !strings.Contains(string(r.Body()), `"clientInfo":{"name":"c","version":"1"}`) {
				t.Errorf("the server got %s", r.Body())
			}
			return gatewaytest.Result(r, `{"protocolVersion":"2025-06-18","capabilities":{}}`), nil
		}
		g.Policy.Change(func() { g.Policy.Access.CouldAllow = true })
		if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Text != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
			t.Errorf("a call: %s", got.Text)
		}
		g.Do(message("files", initialized, session)) // sent again, because the client can't know that the server was contacted
		if notified := g.Files().Notified(1); len(notified) != 1 || notified[0] != initialized {
			t.Errorf("the server was notified of %q", notified)
		}
		g.Files().Open = open
	})
}

// If the gateway has answered initialize without contacting the server, it later declares no client capabilities to the
// server. The server may then use none.
func TestInitialize_OfACallerWithoutAccessOffersNothing(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.Policy.Access.CouldAllow, g.Policy.Access.Methods = false, []string{"roots/list"}
		g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		session := g.ConnectAs(gatewaytest.Message{Server: server, Body: gatewaytest.InitializeAll})
		call := gatewaytest.Call(prefix+"safe", "").To(server).In(session)
		if got := g.Do(call); got.Code() != "denied_by_default" {
			t.Errorf("without access: %s", got.Text)
		}
		g.Policy.Change(func() {
			g.Policy.Access.CouldAllow, g.Policy.Decision = true, &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}
		})
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
			g.Files().Notified(2) // notifications/initialized and the refusal
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		if got := g.Do(call); len(got.Events) != 0 || got.Code() != "" {
			t.Errorf("with access: %q, %s", got.Events, got.Text)
		}
		if got := g.Files().Notified(2)[1]; !strings.Contains(got, `"id":3,"error":{"code":-32601`) {
			t.Errorf("the server got %s", got)
		}
	})
}

func TestInitialize_IsCountedAndLimited(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		open := gatewaytest.Message{Server: server, Body: gatewaytest.Initialize}
		g.Do(open)
		if passed := g.Passed(); passed["initialize"] == 0 {
			t.Errorf("counted are %v", passed)
		}
		for g.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: "ping"}) == nil { // uses the whole quota
		}
		if got := g.Do(open); got.Code() != "abuse_limited" || got.Response.Session != "" || g.Sessions.Len() != 1 {
			t.Errorf("%d %s", got.Status, got.Text)
		}
	})
}

func TestInitialize_LateSessionWithAnotherRevisionIsClosed(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(upstream.Request) upstream.Answer{
		"another revision": func(r upstream.Request) upstream.Answer {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{}}`)
		},
		"an error": func(r upstream.Request) upstream.Answer {
			return gatewaytest.ErrorAnswer(r, `{"code":-32602,"message":"no"}`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Access.CouldAllow = false
				session := g.ConnectAs(initialize("files", "2025-06-18", "{}"))
				g.Policy.Change(func() { g.Policy.Access.CouldAllow = true })
				g.Files().Open = func(r upstream.Request) (upstream.Answer, error) { return answer(r), nil }
				got := g.Do(gatewaytest.Call("safe", "").In(session))
				synctest.Wait()
				if got.Code() == "" || g.Files().Closed() != 1 || len(g.Files().Requests()) != 0 {
					t.Errorf("a call: %s; the server's session was closed %d times, and it got %q", got.Text, g.Files().Closed(), g.Files().Requests())
				}
			})
		})
	}
}

func TestInitialize_OpensNoSessionWithoutAUsableServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		open func(upstream.Request) (upstream.Answer, error)
		// withdraw is true if the caller has no permissions on the server when it sends initialize.
		withdraw bool
		closed   int
		code     string // the refusal code, or empty if the server returns an error
	}{
		"the server is away": {open: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, code: "upstream_unavailable"},
		"the server is slow": {open: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrTimeout }, code: "upstream_timeout"},
		"the server refuses": {open: func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.ErrorAnswer(r, `{"code":-32602,"message":"no"}`), nil
		}, closed: 1},
		"the server asks": {open: func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{},"inputRequests":{"a":{"method":"roots/list"}}}`), nil
		}, closed: 1, code: "outcome_unknown"},
		"nothing discovered": {open: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, withdraw: true, code: "upstream_unavailable"},
		"discovered is an ask": {open: func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{},"inputRequests":{"a":{"method":"roots/list"}}}`), nil
		}, withdraw: true, code: "outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Access.CouldAllow = !tt.withdraw
				own := g.Files().Open
				g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() == "server/discover" { // the server supports only revisions with sessions
						return own(r)
					}
					return tt.open(r)
				}
				got := g.Do(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll})
				synctest.Wait()
				if got.Status != http.StatusOK || got.Response.Session != "" || g.Sessions.Len() != 0 || got.Code() != tt.code || !strings.Contains(got.Text, `"id":0,`) || !strings.Contains(got.Text, `"error"`) {
					t.Errorf("%d %s; %d sessions", got.Status, got.Text, g.Sessions.Len())
				}
				if g.Files().Closed() != tt.closed {
					t.Errorf("the server's session was closed %d times", g.Files().Closed())
				}
			})
		})
	}
}

func TestInitialize_IsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		open := gatewaytest.Message{Server: server, Body: gatewaytest.Initialize, Caller: gatewaytest.Caller("ana")}
		open.Caller.Stale = true
		if got := g.Do(open); got.Code() != "policy_unavailable" || got.Response.Session != "" {
			t.Errorf("a stale token: %s", got.Text)
		}
		open.Caller.Stale, g.Policy.Access = false, nil
		if got := g.Do(open); got.Code() != "policy_unavailable" || got.Response.Session != "" {
			t.Errorf("without policy: %s", got.Text)
		}
	})
}

func TestInitialize_IsRefusedWhileTheCatalogIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Access.CouldAllow = false
		g.Catalog.Fail(errors.New("away"))
		if got := g.Do(initialize("files", "2025-11-25", "{}")); got.Code() != "policy_unavailable" {
			t.Errorf("%s", got.Text)
		}
	})
}

func TestInitialize_SessionsThatAreBeingOpenedCount(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.New(t)
		g.MaxSessions = 1
		g.Start()
		opening, own := make(chan struct{}), g.Files().Open
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) { <-opening; return own(r) }
		open := gatewaytest.Message{Server: server, Body: gatewaytest.Initialize}
		first, other := g.Stream(open), g.Stream(open.From("ben"))
		synctest.Wait()
		if got := g.Do(open); got.Code() != "too_many_sessions" || !strings.Contains(got.Text, "session.max_per_principal") {
			t.Errorf("while a session is being opened: %s", got.Text)
		}
		close(opening)
		for name, stream := range map[string]*gatewaytest.Stream{"the first": first, "another caller": other} {
			if reply, _ := stream.End(); reply.Response.Session == "" {
				t.Errorf("%s: %s", name, reply.Text)
			}
		}
		if refusals := g.Journal.Records(journal.KindRefusal); len(refusals) != 1 || refusals[0].Method != "initialize" {
			t.Errorf("recorded refusals: %+v", refusals)
		}
	})
}
