package dispatch_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

const roots = `{"jsonrpc":"2.0","id":3,"method":"roots/list"}`

// startAsking returns a gateway and a tool call in a session. During the call, the server runs the function ask, which
// sends messages to the client. The client has all capabilities, and the policy denies no method.
func startAsking(t *testing.T, ask func(ctx context.Context, g *gatewaytest.Gateway, say func(string))) (*gatewaytest.Gateway, gatewaytest.Message) {
	t.Helper()
	g := gatewaytest.Start(t)
	g.Policy.Allow(gatewaytest.Methods()...)
	g.Files().Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		ask(ctx, g, func(message string) { events([]byte(message)) })
		if ctx.Err() != nil {
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrTimeout, context.Cause(ctx))
		}
		return gatewaytest.Result(r, `{"content":[]}`), nil
	}
	return g, gatewaytest.Call("safe", "").In(g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll}))
}

// reply returns a message with the given body in the same session as the message to.
func reply(to gatewaytest.Message, body string) gatewaytest.Message {
	to.Body = body
	return to
}

// A server's request and the client's response are forwarded byte for byte, except that the gateway's own metadata keys
// are removed. The request is recorded as a request from the server.
func TestServerRequest_IsForwardedAsItWasDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
			say(`{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"maxTokens":9007199254740993,"x":[1e2],"_meta":{"dev.sluice/x":1,"progressToken":"p"}}}`)
			g.Files().Notified(2)
		})
		stream := g.Stream(call)
		if got := stream.Next(); got != `{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"maxTokens":9007199254740993,"x":[1e2],"_meta":{"progressToken":"p"}}}` {
			t.Errorf("the client got %s", got)
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"q","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1.50}}`,
			`{"jsonrpc":"2.0","id":3,"result":{"n":12345678901234567890,"_meta":{"dev.sluice/x":1,"y":2}}}`,
			`{"jsonrpc":"2.0","id":3,"result":{"late":1}}`,
		} {
			if got := g.Do(reply(call, body)); got.Status != http.StatusAccepted {
				t.Errorf("%s: %d %s", body, got.Status, got.Text)
			}
		}
		want := []string{`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1.50}}`, `{"jsonrpc":"2.0","id":3,"result":{"n":12345678901234567890,"_meta":{"y":2}}}`}
		if diff := cmp.Diff(want, g.Files().Notified(2)); diff != "" {
			t.Errorf("the server got (-want +got):\n%s", diff)
		}
		if got := stream.Next(); !strings.Contains(got, `"content":[]`) {
			t.Errorf("the call is answered %s", got)
		}
		stream.End()
		outcomes := g.Journal.Records(journal.KindOutcome)
		if len(outcomes) != 2 || !outcomes[0].FromServer || outcomes[0].Method != "sampling/createMessage" || outcomes[0].ResultClass != journal.ResultOK || outcomes[1].FromServer {
			t.Errorf("on record is %+v", outcomes)
		}
	})
}

// Case U1. If the server may not send a request, the client does not receive the request. The server receives the id of
// the refusal, but no other information about the policy.
func TestServerRequest_ThatIsNotAllowedIsAnsweredWithAnError(t *testing.T) {
	t.Parallel()
	large := `{"jsonrpc":"2.0","id":3,"method":"roots/list","params":{"x":"` + strings.Repeat("x", 4<<20) + `"}}`
	for name, tt := range map[string]struct {
		ask, code, answer string
		change            func(*gatewaytest.Gateway)
	}{
		"policy denies it": {roots, "denied_by_default", `"code":-31403`, func(g *gatewaytest.Gateway) {
			g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		}},
		"an operator has stopped it": {roots, "stopped", `"message":"The gateway does not forward this request: stopped, decision `, func(g *gatewaytest.Gateway) {
			g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_STOPPED, Message: "it loops"}
		}},
		"policy is away":          {roots, "policy_unavailable", `"code":-31403`, func(g *gatewaytest.Gateway) { g.Policy.Decision = nil }},
		"what clients send":       {strings.Replace(gatewaytest.Call("safe", "").Body, `"id":1`, `"id":3`, 1), "method_denied", `"code":-32601`, nil},
		"a task of the server":    {`{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"task":{}}}`, "method_denied", `"code":-32602`, nil},
		"a URL that is not https": {`{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"message":"m","mode":"form","url":"http://a.example"}}`, "method_invalid", `"code":-32602`, nil},
		"another spelling":        {`{"jsonrpc":"2.0","id":3,"method":"Roots/List"}`, "method_invalid", `"code":-31403`, nil},
		"two readings":            {`{"jsonrpc":"2.0","id":3,"method":"roots/list","x":1}`, "jsonrpc_invalid", `"code":-31403`, nil},
		"a large request":         {large, "body_too_large", `"code":-31403`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
					if tt.change != nil {
						g.Policy.Change(func() { tt.change(g) })
					}
					say(tt.ask)
					g.Files().Notified(1)
				})
				got := g.Do(call)
				if len(got.Events) != 0 || !strings.Contains(got.Text, `"content":[]`) {
					t.Errorf("the client got %q, %s", got.Events, got.Text)
				}
				records := g.Journal.Records(journal.KindRefusal)
				if len(records) != 1 || records[0].Code != tt.code || !records[0].FromServer || records[0].Subject != "ana" {
					t.Fatalf("on record is %+v", records)
				}
				if sent := g.Files().Notified(1)[0]; !strings.Contains(sent, `"id":3,`) || !strings.Contains(sent, tt.answer) || !strings.Contains(sent, records[0].DecisionID) {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}

// There is a limit on a server's unanswered requests, and a limit on its requests per minute.
func TestServerRequest_IsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, call := startAsking(t, func(ctx context.Context, g *gatewaytest.Gateway, say func(string)) {
			for id := range 700 {
				say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"roots/list"}`, id+100))
			}
			say(`{"jsonrpc":"2.0","id":100,"method":"roots/list"}`)
			<-ctx.Done()
		})
		stream := g.Stream(call)
		synctest.Wait()
		asked := 0
		for _, line := range stream.Lines() {
			if strings.Contains(line, `"method":"roots/list"`) {
				asked++
			}
		}
		if asked != 16 {
			t.Errorf("the client got %d requests", asked)
		}
		if answered := len(g.Files().Notified(0)); answered != 600-16 { // requests beyond 600 in a minute are not answered
			t.Errorf("the server got %d answers", answered)
		}
		stream.HangUp()
		time.Sleep(2 * gatewaytest.ServerTimeout)
		stream.End()
	})
}

// While the client answers a server's request, the call's timeout is paused. The client has ten minutes to answer.
func TestServerRequest_PausesTheTimeoutOfTheCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after time.Duration
		want  string
	}{
		"nine minutes":   {9 * time.Minute, `{"jsonrpc":"2.0","id":3,"result":{"roots":[]}}`},
		"eleven minutes": {11 * time.Minute, `{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"The client gave no answer."}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
					say(roots)
					g.Files().Notified(1)
				})
				stream := g.Stream(call)
				stream.Next()
				time.Sleep(tt.after)
				g.Do(reply(call, `{"jsonrpc":"2.0","id":3,"result":{"roots":[]}}`))
				answer, _ := stream.End()
				if got := g.Files().Notified(1); got[0] != tt.want || !strings.Contains(answer.Text, `"content":[]`) {
					t.Errorf("the server got %s, and the client %s", got, answer.Text)
				}
				if withdrawn := strings.Contains(answer.Text, `"method":"notifications/cancelled","params":{"requestId":3,`); withdrawn != (tt.after > 10*time.Minute) {
					t.Errorf("the client got %s", answer.Text)
				}
			})
		})
	}
}

// The call ends, so the client can no longer answer the server's request. The server receives an error, unless the
// session has ended.
func TestServerRequest_EndsWithItsCall(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(g *gatewaytest.Gateway, s *gatewaytest.Stream, call gatewaytest.Message){
		"the client disconnects": func(_ *gatewaytest.Gateway, s *gatewaytest.Stream, _ gatewaytest.Message) { s.HangUp() },
		"the client cancels its call": func(g *gatewaytest.Gateway, _ *gatewaytest.Stream, call gatewaytest.Message) {
			g.Do(reply(call, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
		},
		"the session ends": func(g *gatewaytest.Gateway, _ *gatewaytest.Stream, call gatewaytest.Message) {
			_ = g.Sessions.End(call.Header.Get("Mcp-Session-Id"), g.Sessions.List(gatewaytest.Tenant)[0].Key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
					say(roots)
					time.Sleep(time.Minute / 2)
				})
				stream := g.Stream(call)
				stream.Next()
				end(g, stream, call)
				time.Sleep(time.Second)
				found := false
				for _, sent := range g.Files().Notified(0) {
					found = found || strings.Contains(sent, `"id":3,"error":{"code":-32603`)
				}
				if !found && name != "the session ends" { // no messages are sent in a session that has ended
					t.Errorf("the server got %q", g.Files().Notified(0))
				}
				time.Sleep(time.Minute)
				stream.End()
				outcomes := g.Journal.Records(journal.KindOutcome)
				if len(outcomes) != 2 || !outcomes[0].FromServer || outcomes[0].ResultClass != journal.ResultUnknown {
					t.Errorf("on record is %+v", outcomes)
				}
			})
		})
	}
}

// A server sends a notification that cancels its own request. The client receives the cancellation, and the server
// receives no response.
func TestServerRequest_CanBeWithdrawnByTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		withdraw, answer := make(chan string), make(chan struct{})
		g, call := startAsking(t, func(_ context.Context, _ *gatewaytest.Gateway, say func(string)) {
			say(roots)
			for id := range withdraw {
				say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`)
			}
			<-answer
		})
		stream := g.Stream(call)
		stream.Next()
		withdraw <- "4"
		withdraw <- "3"
		close(withdraw)
		synctest.Wait() // waits until the call is in flight; it has no answer yet
		const want = `data: {"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3,"reason":"no request waits for the answer any longer"}}`
		if lines := stream.Lines(); !slices.Contains(lines, want) || strings.Count(strings.Join(lines, ""), "cancelled") != 1 {
			t.Errorf("the client got %q", lines)
		}
		close(answer)
		stream.End()
	})
}

// A response to a server's pending request may be as large as any message. A large response that no request waits for
// is refused.
func TestServerRequest_OnlyAnExpectedResponseMayBeLarge(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
			say(roots)
			g.Files().Notified(1)
		})
		stream := g.Stream(call)
		stream.Next()
		large := `,"result":{"roots":["` + strings.Repeat("x", 64<<10) + `"]}}`
		if got := g.Do(reply(call, `{"jsonrpc":"2.0","id":4`+large)); !strings.Contains(got.Text, "may have at most 65536 bytes") {
			t.Errorf("a response to nothing: %d %s", got.Status, got.Text)
		}
		if got := g.Do(reply(call, `{"jsonrpc":"2.0","id":3`+large)); got.Status != http.StatusAccepted {
			t.Errorf("the response: %d %s", got.Status, got.Text)
		}
		stream.End()
		if got := g.Files().Notified(1)[0]; len(got) < 64<<10 {
			t.Errorf("the server got %s", got)
		}
	})
}

// A client that requests progress receives a notification every ten seconds while its call waits for an approval.
func TestProgress_IsSentToClientsThatWantIt(t *testing.T) {
	t.Parallel()
	for meta, want := range map[string]int{`{"progressToken":"p"}`: 3, `{}`: 0} {
		t.Run(meta, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.RequireApproval("safe")
				session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`))
				call := gatewaytest.Call("safe", "").In(session).Replace(`"arguments":{}`, `"arguments":{},"_meta":`+meta)
				var sent []string
				for _, event := range g.Do(call).Events {
					if strings.Contains(event, `notifications/progress`) {
						sent = append(sent, event)
					}
				}
				if len(sent) != want || want > 0 && !strings.Contains(sent[0], `"params":{"progressToken":"p","progress":0.000001,"message":"waiting for a person's approval"}`) {
					t.Errorf("the client got %q", sent)
				}
			})
		})
	}
}

// Case N2. A server's request can be answered only in the session in which it was sent.
func TestServerRequest_IsAnsweredOnlyInItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
			say(roots)
			g.Files().Notified(1)
		})
		stream := g.Stream(call)
		stream.Next()
		other := call.In(g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll}))
		g.Do(reply(other, `{"jsonrpc":"2.0","id":3,"result":{"of":"another"}}`))
		stale := reply(call, `{"jsonrpc":"2.0","id":3,"result":{"of":"a stale token"}}`)
		stale.Caller = gatewaytest.Caller("ana")
		stale.Caller.Stale = true
		g.Do(stale)
		synctest.Wait()
		if got := g.Files().Notified(0); len(got) != 0 {
			t.Errorf("the server got %q", got)
		}
		g.Do(reply(call, `{"jsonrpc":"2.0","id":3,"result":{"of":"the session"}}`))
		if got := g.Files().Notified(1)[0]; !strings.Contains(got, `"of":"the session"`) {
			t.Errorf("the server got %s", got)
		}
		stream.End()
	})
}

func TestServerRequest_PanicIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g, call := startAsking(t, func(_ context.Context, g *gatewaytest.Gateway, say func(string)) {
			g.Policy.Change(func() { g.Policy.Decide = func(*policyv1.Call) *policyv1.Decision { panic("oh") } })
			say(roots)
			synctest.Wait()
			g.Policy.Change(func() { g.Policy.Decide = nil })
		})
		if got := g.Do(call); !strings.Contains(got.Text, `"content":[]`) || !strings.Contains(g.Logged(), "request panicked") {
			t.Errorf("the client got %s", got.Text)
		}
	})
}

// A request that only servers may send is refused if a client sends it.
func TestHandle_RefusesRequestsOfServersFromClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		session := g.Connect("files")
		for _, method := range []string{"elicitation/create", "roots/list", "sampling/createMessage"} {
			if got := g.Do(gatewaytest.Plain(method, "{}").In(session)); got.Code() != "method_denied" || !strings.Contains(got.Text, "only servers send this request") {
				t.Errorf("%s: %s", method, got.Text)
			}
		}
		if len(g.Files().Requests()) != 0 || len(g.Policy.Decided()) != 0 {
			t.Errorf("the server got %q", g.Files().Requests())
		}
	})
}
