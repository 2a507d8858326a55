package v2025_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case N2. A session id is not a credential: it is valid only for its principal and its server.
func TestPost_NeedsASessionOfTheCallerWithTheServer(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.New(t)
		g.Servers["notes"] = gatewaytest.NewServer(t)
		g.Start()
		session, notes := g.Connect(server), g.Connect("notes")
		for _, body := range []string{
			ping, gatewaytest.Call(prefix+"safe", "").Body, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `{"jsonrpc":"2.0","id":1,"result":{}}`,
		} {
			for name, tt := range map[string]struct {
				message gatewaytest.Message
				status  int
				code    string
			}{
				"no session":             {gatewaytest.Message{Server: server, Body: body}, 400, "session_required"},
				"an empty session":       {gatewaytest.Message{Server: server, Body: body}.With("Mcp-Session-Id", ""), 400, "session_required"},
				"an unknown session":     {gatewaytest.Message{Server: server, Body: body}.With("Mcp-Session-Id", "x"), 404, "session_unknown"},
				"a session of another":   {message(server, body, session).From("ben"), 404, "session_unknown"},
				"a session with another": {message(server, body, notes), 404, "session_unknown"},
				"its session":            {message(server, body, session), 200, ""},
			} {
				got := g.Do(tt.message)
				if accepted := tt.code == "" && (got.Status == 200 || got.Status == 202); got.Code() != tt.code || !accepted && got.Status != tt.status {
					t.Errorf("%.50s, %s: %d %s", body, name, got.Status, got.Text)
				}
			}
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.InFlight != 0 {
				t.Errorf("a session with %q is in use by %d requests", state.Key.Server, state.InFlight)
			}
		}
	})
}

func TestPing_IsAnsweredWithoutAServer(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		m := message(server, ping, session)
		if got := g.Do(m); got.Text != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("%d %s", got.Status, got.Text)
		}
		if got := g.Inside(m, nil); string(got.Joined) != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("inside: %s", got.Joined)
		}
		m.Caller = gatewaytest.Caller("ana")
		m.Caller.Stale = true
		if got := g.Do(m); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %s", got.Text)
		}
		if len(g.Files().Requests()) != 0 || g.Passed()["ping"] != 3 {
			t.Errorf("the server got %q, counted are %v", g.Files().Requests(), g.Passed())
		}
	})
}

// A call is evaluated and recorded under the server's own tool name, and the client's bytes are forwarded unchanged.
func TestCall_IsForwardedAsItWasDecided(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		call := gatewaytest.Call(prefix+"safe", `{"n":1.50,"big":9007199254740993}`).To(server).In(session)
		if got := g.Do(call); got.Text != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` || got.Response.ID == "" {
			t.Errorf("the client got %d %s", got.Status, got.Text)
		}
		if got := g.Inside(call, nil); string(got.Joined) != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
			t.Errorf("a caller inside got %s", got.Joined)
		}
		want := gatewaytest.Call("safe", `{"n":1.50,"big":9007199254740993}`).Body
		if diff := cmp.Diff([]string{want, want}, g.Files().Requests()); diff != "" {
			t.Errorf("the server got (-want +got):\n%s", diff)
		}
		digest := g.Sessions.List(gatewaytest.Tenant)[0].Digest
		for _, r := range g.Journal.Records(journal.KindIntent) {
			if r.Server != "files" || r.Tool != "safe" || r.Session != digest || r.Subject != "ana" {
				t.Errorf("on record is %+v", r)
			}
		}
		if decided := g.Policy.Decided(); len(decided) != 2 || decided[0].Call.GetName() != "safe" || decided[0].Call.GetServer() != "files" || decided[0].Principal.GetSession() != digest {
			t.Errorf("policy has decided %+v", decided)
		}
	})
}

func TestRoute_RefusesInputResponsesInSessions(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		call := gatewaytest.Call(prefix+"safe", "").To(server).In(session).Replace(`"params":{`, `"params":{"inputResponses":{},`)
		if got := g.Do(call); got.Code() != "method_denied" || !strings.Contains(got.Text, "JSON-RPC response instead of inputResponses") || len(g.Files().Requests()) != 0 {
			t.Errorf("%d %s", got.Status, got.Text)
		}
	})
}

// The caller has used up its quota of requests to a server. Only pings are still accepted, because they show the client
// that its session is alive.
func TestRoute_RequestsToAServerAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		for range 256 {
			slot, err := g.MCP.InFlight.Begin(gatewaytest.Caller("ana").Principal, "files")
			if err != nil {
				t.Fatal(err)
			}
			defer slot.End()
			if err := slot.Admit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Code() != "abuse_limited" || !strings.Contains(got.Text, "too many requests to this server") {
			t.Errorf("a call: %s", got.Text)
		}
		if got := g.Do(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}); got.Code() != "abuse_limited" {
			t.Errorf("initialize: %s", got.Text)
		}
		for _, body := range []string{ping, initialized, `{"jsonrpc":"2.0","id":1,"result":{}}`} {
			if got := g.Do(message("files", body, session)); got.Code() != "" {
				t.Errorf("%s: %s", body, got.Text)
			}
		}
	})
}

// A notification has no response, so its refusal is only recorded.
func TestNotification_IsAcceptedEvenIfItIsRefused(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, _ string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		for method, refused := range map[string]bool{
			"notifications/initialized": false, "notifications/cancelled": false, "notifications/progress": false,
			"notifications/roots/list_changed": true, "notifications/message": true, "notifications/vendor": true, "tools/call": true,
		} {
			before := len(g.Journal.Refusals())
			params := ""
			if method == "tools/call" {
				params = `,"params":{"name":"safe"}`
			}
			got := g.Do(message(server, `{"jsonrpc":"2.0","method":"`+method+`"`+params+`}`, session))
			if method == "tools/call" { // a request without an id is not a notification
				if got.Code() != "id_invalid" {
					t.Errorf("%s without an id: %d %s", method, got.Status, got.Text)
				}
				continue
			}
			if got.Status != http.StatusAccepted || got.Text != "" || (len(g.Journal.Refusals()) > before) != refused {
				t.Errorf("%s: %d %s, %d refusals", method, got.Status, got.Text, len(g.Journal.Refusals())-before)
			}
		}
	})
}

// A client's request may contain client capabilities, and the server could rely on them. The gateway replaces them with
// the capabilities that it has declared to the server in initialize.
func TestCall_CapabilitiesInRequestsAreReplaced(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("roots/list")
		session := g.ConnectAs(initialize(server, "2025-11-25", `{"roots":{},"sampling":{}}`))
		call := gatewaytest.Call(prefix+"safe", "").To(server).In(session)
		g.Do(call.Replace(`"params":{`, `"params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"sampling":{},"x":{}}},`))
		g.Do(call.Replace(`"params":{`, `"params":{"_meta":{"a":1},`))
		got := g.Files().Requests()
		if len(got) != 2 || !strings.Contains(got[0], `"_meta":{"io.modelcontextprotocol/clientCapabilities":{"roots":{}}}`) || !strings.Contains(got[1], `"_meta":{"a":1}`) {
			t.Errorf("the server got %q", got)
		}
	})
}

// A stream of an answer can be resumed only if the client's revision supports the event that begins such a stream.
func TestCall_OnlyNewClientsGetStreamsThatCanBeResumed(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		for version, want := range map[string]bool{"2025-11-25": true, "2025-06-18": false, "2024-11-05": false} {
			open := g.Files().Open
			g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
				return gatewaytest.Result(r, `{"protocolVersion":"`+version+`","capabilities":{}}`), nil
			}
			session := g.ConnectAs(initialize(server, version, "{}"))
			call := gatewaytest.Call(prefix+"safe", "").To(server).In(session)
			stream := g.Stream(call)
			stream.End()
			if resumable := strings.HasPrefix(stream.Lines()[0], "id: sluice-"); resumable != want {
				t.Errorf("%s: the stream is %q", version, stream.Lines())
			}
			events := 0
			if got := g.Inside(call, func([]byte) { events++ }); events != 1 || got.Refusal != nil {
				t.Errorf("%s: inside, %d messages came before %s", version, events, got.Joined)
			}
			g.Files().Open = open
		}
	})
}

// A stateless server expects some arguments in headers, too. A client that uses a session does not send these headers,
// so the gateway derives them from the arguments.
func TestCall_DerivesHeadersForServersWithoutSessions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		want   string
	}{"without sessions": {gatewaytest.NewModernServer, "Mcp-Param-Region: eu"}, "with sessions": {gatewaytest.NewServer, ""}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachAddress(t, func(t *testing.T, server, prefix string) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Start()
				got := ""
				own := g.Files().Request
				g.Files().Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					for _, h := range r.Mirrored {
						got += h.Name + ": " + h.Value
					}
					return own(ctx, r, events)
				}
				session := g.Connect(server)
				for range 2 { // makes the server known
					got = ""
					if reply := g.Do(gatewaytest.Call(prefix+"region", `{"r":"eu"}`).To(server).In(session)); reply.Code() != "" {
						t.Fatalf("%d %s", reply.Status, reply.Text)
					}
				}
				if !strings.EqualFold(got, tt.want) {
					t.Errorf("the headers are %q", got)
				}
			})
		})
	}
}

// A stateless server responds that a header is wrong. Its tools may now expect different arguments in headers, so the
// gateway lists the server's tools again.
func TestCall_HeaderErrorMakesTheGatewayListAServerWithoutSessions(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		code   int
		want   bool
	}{
		"without sessions":                {gatewaytest.NewModernServer, -32020, true},
		"without sessions, another error": {gatewaytest.NewModernServer, -32603, false},
		"with sessions":                   {gatewaytest.NewServer, -32020, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Start()
				lists, own := 0, g.Files().Discovery
				g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						lists++
					}
					return own(r)
				}
				session := g.Connect("files")
				g.Do(gatewaytest.Call("safe", "").In(session))
				time.Sleep(time.Minute) // the gateway does not renew a list that is younger
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.ErrorAnswer(r, fmt.Sprintf(`{"code":%d,"message":"no"}`, tt.code)), nil
				}
				synctest.Wait()
				before := lists
				got := g.Do(gatewaytest.Call("safe", "").In(session))
				synctest.Wait()
				if !strings.Contains(got.Text, fmt.Sprint(tt.code)) || (lists > before) != tt.want {
					t.Errorf("listed %d times, then %d times; the client got %s", before, lists, got.Text)
				}
			})
		})
	}
}

// The gateway lists the tools of a stateless server in the server's revision, not in the client's revision.
func TestListTools_AreReportedInTheRevisionOfTheServer(t *testing.T) {
	t.Parallel()
	for want, server := range map[string]func(testing.TB) *gatewaytest.Server{"2025-06-18": gatewaytest.NewServer, "2026-07-28": gatewaytest.NewModernServer} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = server(t)
				g.Start()
				if own := g.Files().Open; want != "2026-07-28" {
					g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
						if r.Method() == "server/discover" {
							return own(r)
						}
						return gatewaytest.Result(r, `{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}`), nil
					}
				}
				session := g.ConnectAs(initialize("files", "2025-06-18", "{}"))
				g.Files().Respond(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}],"resultType":"complete"}`)
				if got := g.Do(gatewaytest.Plain("tools/list", "{}").In(session)); !strings.Contains(got.Text, `"name":"new"`) {
					t.Fatalf("%s", got.Text)
				}
				reports := g.Catalog.Reports()
				if got := reports[len(reports)-1].Head.GetProtocolVersion(); got != want {
					t.Errorf("the list is reported in %s", got)
				}
			})
		})
	}
}

// At the URL for all servers, the client receives a server's form only if the form has a message to which the gateway
// can add the server's name. The server must not receive messages of other servers as context.
func TestServerRequest_AtAllServersIsCheckedForOneOfMany(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		session := g.ConnectAs(initialize(server, "2025-11-25", `{"elicitation":{},"sampling":{}}`))
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"requestedSchema":{}}}`))
			events([]byte(`{"jsonrpc":"2.0","id":4,"method":"sampling/createMessage","params":{"messages":[],"includeContext":"thisServer"}}`))
			synctest.Wait()
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		got := strings.Join(g.Do(gatewaytest.Call(prefix+"safe", "").To(server).In(session)).Events, "\n")
		if all := server == ""; strings.Contains(got, `"elicitation/create"`) == all || strings.Contains(got, `"includeContext":"none"`) != all {
			t.Errorf("the client got %s", got)
		}
	})
}

// Case U1. In revisions that use sessions, an answer must not contain requests to the client, but clients might act on
// such requests anyway. The gateway does not forward such answers.
func TestAnswer_WithRequestsForTheClientIsNotPassedOn(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		session := g.ConnectAs(gatewaytest.Message{Server: server, Body: gatewaytest.InitializeAll})
		g.Files().Respond(`{"content":[],"inputRequests":{"a":{"method":"roots/list"}}}`)
		if got := g.Do(gatewaytest.Call(prefix+"safe", "").To(server).In(session)); got.Code() != "outcome_unknown" || strings.Contains(got.Text, "roots/list") {
			t.Errorf("the client got %s", got.Text)
		}
	})
}

func TestCall_ThatWaitsIsRefusedWithATicket(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		g := gatewaytest.Start(t)
		g.RequireApproval("safe")
		session := g.Connect(server)
		call := gatewaytest.Call(prefix+"safe", "").To(server).In(session)
		got := g.Do(call)
		if got.Code() != "approval_pending" || !strings.Contains(got.Text, `"approval":{"id":"a-1"`) || strings.Contains(got.Text, "requestState") || strings.Contains(got.Text, "taskId") {
			t.Errorf("%s", got.Text)
		}
		if got := g.Inside(call, nil); got.Refusal == nil || got.Refusal.Code != commonv1.Code_CODE_APPROVAL_PENDING || got.Refusal.Approval.ID != "a-1" {
			t.Errorf("inside: %s", got.Joined)
		}
		if len(g.Files().Requests()) != 0 {
			t.Errorf("the server got %q", g.Files().Requests())
		}
	})
}

// At the URL for all servers, the gateway opens a session with a server in the revision of the client's session. If the
// server answers with a revision that the gateway does not support, the client can't use the server.
func TestOpenMember_NeedsASupportedRevision(t *testing.T) {
	t.Parallel()
	for spoken, want := range map[string]string{"2025-03-26": "", "2031-01-01": "upstream_unavailable"} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewaytest.Start(t)
			own := g.Files().Open
			g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
				if r.Method() == "tools/list" {
					return gatewaytest.Result(r, gatewaytest.Tools), nil
				}
				return own(r)
			}
			session := g.ConnectAs(initialize("", "2025-06-18", "{}"))
			g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
				return gatewaytest.Result(r, `{"protocolVersion":"`+spoken+`","capabilities":{}}`), nil
			}
			got := g.Do(gatewaytest.Call("files__safe", "").To("").In(session))
			synctest.Wait()
			if got.Code() != want || (g.Files().Closed() == 1) != (want != "") {
				t.Errorf("a server of %s: %s; its session was closed %d times", spoken, got.Text, g.Files().Closed())
			}
			if sent := string(g.Files().Opened()[0].Body()); !strings.Contains(sent, `"protocolVersion":"2025-06-18"`) {
				t.Errorf("the server got %s", sent)
			}
			if notified := g.Files().Notified(0); (len(notified) == 1 && notified[0] == initialized) != (want == "") {
				t.Errorf("the server was notified of %q", notified)
			}
		})
	}
}

// A server's request reaches the client only if the gateway has declared the required capability to the server. The
// gateway refuses the request if the call during which the server sends it does not come from a client.
func TestServerRequest_NeedsWhatTheServerWasTold(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server, prefix string) {
		for _, tt := range []struct {
			capabilities string
			methods      []string
			inside, want bool
		}{
			{`{"roots":{}}`, []string{"roots/list"}, false, true},
			{`{"roots":{}}`, nil, false, false},
			{`{}`, []string{"roots/list"}, false, false},
			{`{"roots":{}}`, []string{"roots/list"}, true, false},
		} {
			g := gatewaytest.Start(t)
			g.Policy.Allow(tt.methods...)
			session := g.ConnectAs(initialize(server, "2025-11-25", tt.capabilities))
			before := 0
			if server == "" {
				before = 1 // notifications/initialized
			}
			g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
				if !tt.want {
					got := g.Files().Notified(before + 1)
					if last := got[len(got)-1]; !strings.Contains(last, `"id":3,"error":{"code":-32601`) {
						t.Errorf("%+v: the server got %q", tt, got)
					}
				}
				return gatewaytest.Result(r, `{"content":[]}`), nil
			}
			call, asked := gatewaytest.Call(prefix+"safe", "").To(server).In(session), false
			see := func(message string) { asked = asked || strings.Contains(message, `"method":"roots/list"`) }
			if tt.inside {
				g.Inside(call, func(message []byte) { see(string(message)) })
			} else {
				for _, message := range g.Do(call).Events {
					see(message)
				}
			}
			if asked != tt.want {
				t.Errorf("%+v: the client was asked: %t", tt, asked)
			}
		}
	})
}
