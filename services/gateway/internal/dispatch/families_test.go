package dispatch_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

// A client calls a tool in revision 2026-07-28, and the server, which uses MCP sessions, sends a request during the
// call. The policy service evaluates the request before it becomes part of the answer to the client. If the request is
// refused, the server receives an error.
func TestDecideServerRequest_AnswersTheServerIfItIsRefused(t *testing.T) {
	t.Parallel()
	const sample = `{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`
	for name, tt := range map[string]struct {
		message gatewaytest.Message
		ask     string
		methods []string
		effect  policyv1.Effect
		answer  string // the gateway's response to the server; empty if the request is allowed
		code    string // the recorded code
	}{
		"allowed":             {gatewaytest.ModernCall("safe", ""), sample, []string{"sampling/createMessage"}, policyv1.Effect_EFFECT_ALLOW, "", ""},
		"denied":              {gatewaytest.ModernCall("safe", ""), sample, []string{"sampling/createMessage"}, policyv1.Effect_EFFECT_DENY, `"code":-31403`, "denied_by_default"},
		"not offered":         {gatewaytest.ModernCall("safe", ""), sample, nil, policyv1.Effect_EFFECT_ALLOW, `"code":-32601`, "method_denied"},
		"more than offered":   {gatewaytest.ModernCall("safe", ""), strings.Replace(sample, `"maxTokens"`, `"tools":[],"maxTokens"`, 1), []string{"sampling/createMessage"}, policyv1.Effect_EFFECT_ALLOW, `"code":-32602`, "method_denied"},
		"a method of clients": {gatewaytest.ModernCall("safe", ""), `{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"x"}}`, []string{"sampling/createMessage"}, policyv1.Effect_EFFECT_ALLOW, `"code":-32601`, "method_denied"},
		"two readings":        {gatewaytest.ModernCall("safe", ""), `{"jsonrpc":"2.0","id":3,"method":"roots/list","x":1}`, gatewaytest.Methods(), policyv1.Effect_EFFECT_ALLOW, `"code":-31403`, "jsonrpc_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow(tt.methods...)
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: tt.effect} })
					events([]byte(tt.ask))
					g.Files().Notified(2) // notifications/initialized and the response
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				got := g.Do(tt.message)
				if asked := strings.Contains(got.Text, `"inputRequests"`); asked != (tt.answer == "") {
					t.Errorf("the client got %s", got.Text)
				}
				if tt.answer == "" {
					g.Sessions.CloseStreams()
					return
				}
				if sent := g.Files().Notified(2)[1]; !strings.Contains(sent, `"id":3,"error":{`+tt.answer) {
					t.Errorf("the server got %s", sent)
				}
				if refusals := g.Journal.Refusals(); len(refusals) != 1 || refusals[0] != tt.code {
					t.Errorf("on record is %q", refusals)
				}
			})
		})
	}
}

// Case X9. A caller without permissions receives nothing that identifies the server. This applies to revisions with and
// without sessions.
func TestRedactGreeting_KeepsRevisionsAndCapabilities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.New(t)
		g.Config.Version = "1.2.3"
		const secrets = `"serverInfo":{"name":"payroll","version":"9"},"instructions":"key","_meta":{"a":1},"vendor":2`
		g.Files().Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete",`+secrets+`}`), nil
			}
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},`+secrets+`}`), nil
		}
		g.Policy.Access.CouldAllow = false
		g.Start()
		for want, m := range map[string]gatewaytest.Message{
			`"result":{"capabilities":{"tools":{}},"protocolVersion":"2025-11-25","serverInfo":{"name":"sluice","title":"Sluice","version":"1.2.3"}}`:             {Server: "files", Body: gatewaytest.Initialize},
			`"result":{"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/tasks":{}}},"resultType":"complete","supportedVersions":["2026-07-28"]}`: gatewaytest.Modern("server/discover", "", ""),
		} {
			if got := g.Do(m); !strings.Contains(got.Text, want) {
				t.Errorf("%s, want %s", got.Text, want)
			}
		}
	})
}

// The gateway declares to the server only those requests that the client can answer. In revisions that use sessions,
// the client needs a stream to receive such requests. A gRPC server cannot send requests.
func TestAbilities_AreThoseThatCanBeUsed(t *testing.T) {
	t.Parallel()
	initialize := gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}
	for name, tt := range map[string]struct {
		server          func(testing.TB) *gatewaytest.Server
		transport       string
		send            gatewaytest.Message
		inside, declare bool
	}{
		"with sessions":                        {gatewaytest.NewServer, "http", initialize, false, true},
		"with sessions, a gRPC server":         {gatewaytest.NewServer, "grpc", initialize, false, false},
		"with sessions, without a stream":      {gatewaytest.NewServer, "http", initialize.With("Accept", "application/json"), false, false},
		"without sessions":                     {gatewaytest.NewModernServer, "http", gatewaytest.ModernCall("safe", ""), false, true},
		"without sessions, without a stream":   {gatewaytest.NewModernServer, "http", gatewaytest.ModernCall("safe", "").With("Accept", "application/json"), false, true},
		"without sessions, inside the gateway": {gatewaytest.NewModernServer, "http", gatewaytest.ModernCall("safe", ""), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Files().Transport = tt.transport
				g.Policy.Access.Methods = gatewaytest.Methods()
				g.Start()
				if tt.inside {
					g.Inside(tt.send, nil)
				} else if got := g.Do(tt.send); got.Code() != "" {
					t.Errorf("the client got %s", got.Text)
				}
				sent := string(g.Files().Opened()[0].Body())
				if all := g.Files().Requests(); len(all) > 0 {
					sent = all[len(all)-1]
				}
				if strings.Contains(sent, `"sampling":{}`) != tt.declare {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}

// A client's capability counts only if its value is an object, as MCP requires.
func TestDeclaredAbilities_NeedTheirForm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		for declared, want := range map[string]string{
			`{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}}}`:  `{"roots":{"listChanged":true},"sampling":{"context":{},"tools":{}}}`,
			`{"roots":{"listChanged":1},"sampling":{"tools":true,"x":{}}}`:         `{"roots":{},"sampling":{}}`,
			`{"roots":true,"sampling":null,"elicitation":[],"Sampling":{},"x":{}}`: `{}`,
			`{"elicitation":{"url":{},"form":{}}}`:                                 `{"elicitation":{"form":{},"url":{}}}`,
		} {
			g.Do(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`{"sampling":{}}`, declared))
			opened := g.Files().Opened()
			if got := string(opened[len(opened)-1].Body()); !strings.Contains(got, `"capabilities":`+want+`,"clientInfo"`) {
				t.Errorf("%s: the server got %s", declared, got)
			}
		}
	})
}

// The gateway sends comments to keep an idle stream open. The stream ends when the client's token is no longer valid.
func TestKeepOpen_EndsWithTheToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.Files().Request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			<-ctx.Done()
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
		}
		var revoked atomic.Bool
		m := gatewaytest.Modern("subscriptions/listen", "", `"notifications":{}`)
		m.Caller = gatewaytest.Caller("ana")
		m.Caller.Credential = gatewaytest.RevokedWhen(revoked.Load)
		stream := g.Stream(m)
		time.Sleep(time.Minute)
		if comments := strings.Count(strings.Join(stream.Lines(), "\n"), ": alive"); comments != 2 {
			t.Errorf("%d comments in a minute", comments)
		}
		revoked.Store(true)
		time.Sleep(time.Minute)
		if !stream.Ended() {
			t.Error("the stream outlives its token")
		}
	})
}

// Event ids with this prefix are reserved for the gateway: a client sends them to resume a stored answer. If a server
// sends an event id with this prefix, the gateway removes the id.
func TestDeliver_DropsEventIDsThatLookLikeTheGateways(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Files().Listen = func(ctx context.Context, to upstream.Listener) error {
			to.Opened()
			for _, id := range []string{"sluice-1-1", "e1"} {
				if err := to.Event(upstream.Event{ID: id, Retry: "5", Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":1}}`)}); err != nil {
					return err
				}
			}
			if err := to.Event(upstream.Event{ID: "e2"}); err != nil {
				return err
			}
			<-ctx.Done()
			return ctx.Err()
		}
		stream := g.Listen(gatewaytest.Message{Server: "files"}.In(g.Connect("files")), http.MethodGet)
		stream.Next()
		stream.Next()
		synctest.Wait()
		var ids []string
		for _, line := range stream.Lines() {
			if strings.HasPrefix(line, "id: ") || strings.HasPrefix(line, "retry: ") {
				ids = append(ids, line)
			}
		}
		if diff := cmp.Diff([]string{"retry: 5", "id: e1", "retry: 5", "id: e2"}, ids); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		stream.HangUp()
		stream.End()
	})
}

// A subscription covers the resources whose URIs it contains, and the resources below them.
func TestDeliver_ForwardsWhatIsSubscribedTo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "resources/list", "prompts/list", "resources/subscribe")
		of := func(method, uri string) string {
			return `{"jsonrpc":"2.0","method":"notifications/` + method + `","params":{"uri":"` + uri + `"}}`
		}
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for _, uri := range []string{"x:a", "x:a/b", "x:a?q", "x:a#f", "x:ab", "x:A", "x:", "x:d/", "x:d/e", "x:d", ""} {
				events([]byte(of("resources/updated", uri)))
			}
			for _, method := range []string{"tools/list_changed", "prompts/list_changed", "resources/list_changed", "subscriptions/acknowledged"} {
				events([]byte(of(method, "")))
			}
			return gatewaytest.Result(r, `{"resultType":"complete"}`), nil
		}
		got := g.Do(gatewaytest.Modern("subscriptions/listen", "", `"notifications":{"promptsListChanged":true,"resourceSubscriptions":["x:a","x:d/"]}`))
		want := []string{
			of("resources/updated", "x:a"), of("resources/updated", "x:a/b"), of("resources/updated", "x:a?q"), of("resources/updated", "x:a#f"), of("resources/updated", "x:d/"), of("resources/updated", "x:d/e"),
			of("prompts/list_changed", ""), of("subscriptions/acknowledged", ""),
		}
		if diff := cmp.Diff(want, got.Events); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// The catalog's cached answer says that a tool is not accepted, but an operator may have accepted it since then. The
// gateway asks the catalog again if that answer is old, or if the gateway itself has not yet listed the server's tools
// in the session's revision.
func TestListTools_AsksTheCatalogOnceMore(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		after  time.Duration
		asks   int
	}{
		"a recent answer":                   {gatewaytest.NewServer, time.Second, 1},
		"an old answer":                     {gatewaytest.NewServer, time.Minute, 2},
		"a recent answer, without sessions": {gatewaytest.NewModernServer, time.Second, 1},
		"an old answer, without sessions":   {gatewaytest.NewModernServer, time.Minute, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				asked := 0
				g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
					asked++
					resp, err := gatewaytest.FilterSecrets(r)
					for _, tool := range resp.GetTools() {
						tool.Visible, tool.Code = false, commonv1.Code_CODE_TOOL_UNKNOWN
					}
					return resp, err
				}
				g.Start()
				session := g.Connect("files")
				g.Do(list("{}").In(session))
				time.Sleep(tt.after)
				asked = 0
				if got := g.Do(list("{}").In(session)); !strings.Contains(got.Text, `"tools":[]`) || asked != tt.asks {
					t.Errorf("policy was asked %d times; %s", asked, got.Text)
				}
			})
		})
	}
}

// There is a limit on a caller's concurrent requests to one server. The refusal says which limit was reached.
func TestNotAdmitted_SaysWhatToWaitFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
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
		if got := g.Do(gatewaytest.ModernCall("safe", "")); got.Code() != "abuse_limited" || !strings.Contains(got.Text, "too many requests to this server are in flight") {
			t.Errorf("%s", got.Text)
		}
	})
}

// If the client supports forms and accepts streams, the gateway tells the approval service that a call can be confirmed
// in a form.
func TestConfirm_IsOfferedToClientsThatCanShowForms(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		capabilities, accept string
		want                 bool
	}{
		"a client with forms":      {`{"elicitation":{}}`, "application/json, text/event-stream", true},
		"a client without":         {`{}`, "application/json, text/event-stream", false},
		"a client without streams": {`{"elicitation":{}}`, "application/json", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.RequireApproval("safe")
				session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`{"sampling":{}}`, tt.capabilities, `"name":"c"`, `"name":"`+gatewaytest.Patient+`"`))
				g.Do(gatewaytest.Call("safe", "").In(session).With("Accept", tt.accept))
				requests := g.Approvals.Requests()
				if len(requests) == 0 || requests[0].GetCanConfirm() != tt.want {
					t.Errorf("requested are %v", requests)
				}
			})
		})
	}
}
