package mcpserver_test

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// initializeWithAll is the initialize request of a client that declares all capabilities that servers may use.
const initializeWithAll = `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{` +
	`"sampling":{"tools":{},"x":{}},"elicitation":{"form":{}},"roots":{"listChanged":true},"tasks":{},"experimental":{"y":{}}},"clientInfo":{"name":"c","version":"1"}}}`

// newServerRequestGateway returns a gateway whose policy allows the methods in the parameter open. Before the gateway's
// server answers a call, it runs the function ask, which sends requests to the client.
func newServerRequestGateway(t *testing.T, open []string, ask func(ctx context.Context, say func(message string))) *testGateway {
	t.Helper()
	w := newTestGateway(t)
	w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: open}
	w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		ask(ctx, func(message string) { events([]byte(message)) })
		if ctx.Err() != nil {
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrTimeout, context.Cause(ctx))
		}
		return gatewaytest.Result(r, `{"content":[]}`), nil
	}
	return w
}

// callStream makes a call, and returns a function that reads the next message in the response. At the end of the
// response, that function returns "".
func (w *testGateway) callStream(h http.Header, body string) (next func() string) {
	w.t.Helper()
	next, _ = w.callStreamUntil(h, body)
	return next
}

// callStreamUntil is like callStream, but also returns a function hangUp that disconnects the client.
func (w *testGateway) callStreamUntil(h http.Header, body string) (next func() string, hangUp func()) {
	w.t.Helper()
	ctx, hangUp := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost"+w.path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + anaToken}, "Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"},
	}
	maps.Copy(req.Header, h)
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	messages := make(chan string, 100)
	go func() { // read in a goroutine, because the gateway disconnects a client that reads late
		defer close(messages)
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			if text := strings.TrimPrefix(lines.Text(), "data: "); strings.HasPrefix(text, "{") {
				messages <- text
			}
		}
	}()
	return func() string { return <-messages }, hangUp
}

const sample = `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"maxTokens":9007199254740993,"x":[1e2,"é"],"_meta":{"progressToken":"p"}}}`

// If the policy allows a server's request and the client can answer the request, the request and the client's response
// are forwarded unchanged. The request is recorded as a request from the server.
func TestServerRequest_ReachesTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *testGateway
		w = newServerRequestGateway(t, []string{"sampling/createMessage"}, func(_ context.Context, say func(string)) {
			say(strings.Replace(sample, `{"progressToken"`, `{"dev.sluice/decision":1,"progressToken"`, 1))
			w.files.Notified(2)
		})
		h := w.connectAs(initializeWithAll)
		if got := string(w.files.Opened()[0].Body()); !strings.Contains(got, `"capabilities":{"sampling":{"tools":{}}}`) {
			t.Errorf("the server got %s", got)
		}
		next := w.callStream(h, toolCall)
		if got := next(); got != sample {
			t.Errorf("the client got %s", got)
		}
		progress := `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1.50}}`
		for _, body := range []string{
			progress, strings.Replace(progress, `"p"`, `"q"`, 1),
			`{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890,"_meta":{"dev.sluice/x":1,"y":2}}}`, `{"jsonrpc":"2.0","id":7,"result":{"late":1}}`,
		} {
			if got := w.do("POST", "/mcp/files", body, h); got.status != http.StatusAccepted {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
		if got := next(); !strings.Contains(got, `"id":1,"result":{"content":[]}`) {
			t.Errorf("the call was answered %s", got)
		}
		want := []string{progress, `{"jsonrpc":"2.0","id":7,"result":{"n":12345678901234567890,"_meta":{"y":2}}}`}
		if got := w.files.Notified(2); !slices.Equal(got, want) {
			t.Errorf("the server got %s", got)
		}
		intents, outcomes := w.Journal.Records(journal.KindIntent), w.Journal.Records(journal.KindOutcome)
		if len(intents) != 2 || !intents[1].FromServer || intents[1].Method != "sampling/createMessage" || intents[0].FromServer || intents[1].Subject != "ana" {
			t.Errorf("intents %+v", intents)
		}
		if len(outcomes) != 2 || !outcomes[0].FromServer || outcomes[0].ResultClass != journal.ResultOK || outcomes[0].DecisionID != intents[1].DecisionID {
			t.Errorf("outcomes %+v", outcomes)
		}
	})
}

// Case U1. If a server may not send a request, the client does not receive it. The server receives an error, and the
// refusal is recorded.
func TestServerRequest_NeedsARuleAndACapability(t *testing.T) {
	t.Parallel()
	all := []string{"elicitation/create", "roots/list", "sampling/createMessage"}
	deny := &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
	for name, tt := range map[string]struct {
		initialize string
		open       []string
		decision   *policyv1.Decision
		ask        string
		code       string
		error      string
	}{
		"policy denies it by now":             {initializeWithAll, all, deny, sample, "denied_by_default", `"code":-31403`},
		"policy has denied it from the start": {initializeWithAll, nil, nil, sample, "method_denied", `"code":-32601`},
		"the client can't do it":              {initialize, all, nil, `{"jsonrpc":"2.0","id":7,"method":"roots/list"}`, "method_denied", `"code":-32601`},
		"it is what clients ask":              {initializeWithAll, all, nil, strings.Replace(toolCall, `"id":1`, `"id":7`, 1), "method_denied", `"code":-32601`},
		"another spelling":                    {initializeWithAll, all, nil, `{"jsonrpc":"2.0","id":7,"method":"Roots/List"}`, "method_invalid", `"code":-31403`},
		"two readers read two methods":        {initializeWithAll, all, nil, `{"jsonrpc":"2.0","id":7,"method":"roots/list","x":1}`, "jsonrpc_invalid", `"code":-31403`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w *testGateway
				allow := &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}
				w = newServerRequestGateway(t, tt.open, func(_ context.Context, say func(string)) {
					w.Policy.Change(func() {
						if w.Policy.Decision = allow; tt.decision != nil {
							w.Policy.Decision = tt.decision
						}
					})
					say(tt.ask)
					w.files.Notified(1)
				})
				h := w.connectAs(tt.initialize)
				if got := w.do("POST", "/mcp/files", toolCall, h).body; got != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
					t.Errorf("the client got %s", got)
				}
				if got := w.files.Notified(1)[0]; !strings.Contains(got, tt.error) || !strings.Contains(got, `"id":7,`) {
					t.Errorf("the server got %s", got)
				}
				if records := w.Journal.Records(journal.KindRefusal); len(records) != 1 || records[0].Code != tt.code || !records[0].FromServer || records[0].Subject != "ana" {
					t.Errorf("on record is %+v", records)
				}
			})
		})
	}
}

// Case T4.
func TestServerMethods_AreRefusedFromClients(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connectAs(initializeWithAll)
		for _, method := range []string{"elicitation/create", "roots/list", "sampling/createMessage"} {
			if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`, h); got.code() != "method_denied" {
				t.Errorf("%s: %s", method, got.body)
			}
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n != 0 {
			t.Errorf("%d reached the server", n)
		}
	})
}

// While a server's request waits for the client's response, the call's timeout is paused. If the client never responds,
// the server's request fails, but the call continues.
func TestServerRequest_PausesTheTimeoutOfTheCall(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		after time.Duration
		want  string
		class journal.ResultClass
	}{
		"for nine minutes": {9 * time.Minute, `{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`, journal.ResultOK},
		"for eleven":       {11 * time.Minute, `{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"The client gave no answer."}}`, journal.ResultUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w *testGateway
				w = newServerRequestGateway(t, []string{"elicitation/create"}, func(_ context.Context, say func(string)) {
					say(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
					w.files.Notified(1)
				})
				h := w.connectAs(initializeWithAll)
				next := w.callStream(h, toolCall)
				next()
				time.Sleep(tt.after)
				w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`, h)
				said := next()
				if strings.Contains(said, `"method":"notifications/cancelled","params":{"requestId":7,`) {
					said = next()
				}
				if !strings.Contains(said, `"result":{"content":[]}`) {
					t.Errorf("the call was answered %s", said)
				}
				if got := w.files.Notified(1); len(got) != 1 || got[0] != tt.want {
					t.Errorf("the server got %s", got)
				}
				if outcomes := w.Journal.Records(journal.KindOutcome); len(outcomes) != 2 || outcomes[0].ResultClass != tt.class {
					t.Errorf("outcomes %+v", outcomes)
				}
			})
		})
	}
}

// If the client disconnects, cancels its own request or ends the session, the server's request immediately fails with
// an error.
func TestServerRequest_FailsWhenTheClientDisconnects(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(w *testGateway, h http.Header, hangUp func()){
		"hangs up": func(_ *testGateway, _ http.Header, hangUp func()) { hangUp() },
		"gives up": func(w *testGateway, h http.Header, _ func()) {
			w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, h)
		},
		"ends the session": func(w *testGateway, h http.Header, _ func()) { w.do("DELETE", "/mcp/files", "", h) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w *testGateway
				sent := make(chan time.Time, 1)
				refused := func() bool {
					return slices.ContainsFunc(w.files.Notified(0), func(n string) bool { return strings.Contains(n, `"id":7,"error":{"code":-32603`) })
				}
				w = newServerRequestGateway(t, []string{"elicitation/create"}, func(_ context.Context, say func(string)) {
					say(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
					for !refused() {
						time.Sleep(time.Millisecond)
					}
					sent <- time.Now()
				})
				h := w.connectAs(initializeWithAll)
				next, hangUp := w.callStreamUntil(h, toolCall)
				next()
				begin := time.Now()
				leave(w, h, hangUp)
				if took := (<-sent).Sub(begin); took > time.Second {
					t.Errorf("it got the error after %v", took)
				}
			})
		})
	}
}

// A gRPC server cannot send requests. The gateway therefore declares no client capabilities to it, and never pauses the
// timeouts of its calls.
func TestGRPCServer_GetsNoClientCapabilities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newServerRequestGateway(t, []string{"sampling/createMessage"}, nil)
		w.files.Transport = "grpc"
		w.files.Request = func(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("the call has no deadline")
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		w.do("POST", "/mcp/files", toolCall, w.connectAs(initializeWithAll))
		if got := string(w.files.Opened()[0].Body()); !strings.Contains(got, `"capabilities":{}`) {
			t.Errorf("the server got %s", got)
		}
	})
}

// The time before and after a server's request to the client counts toward the call's timeout.
func TestServerTimeout_CountsOutsideOfServerRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *testGateway
		w = newServerRequestGateway(t, []string{"elicitation/create"}, func(ctx context.Context, say func(string)) {
			time.Sleep(40 * time.Second)
			say(`{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
			w.files.Notified(1)
			<-ctx.Done()
		})
		h := w.connectAs(initializeWithAll)
		begin := time.Now()
		next := w.callStream(h, toolCall)
		next()
		time.Sleep(5 * time.Minute)
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"action":"accept"}}`, h)
		if got := next(); !strings.Contains(got, "upstream_timeout") {
			t.Errorf("the call was answered %s", got)
		}
		if took := time.Since(begin).Round(time.Second); took != 6*time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// Case X1. At most 16 of a server's requests to a client may be unanswered at a time, and their ids must be different.
func TestServerRequests_OpenOnesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most = 16
		var w *testGateway
		w = newServerRequestGateway(t, []string{"sampling/createMessage"}, func(_ context.Context, say func(string)) {
			for i := range most {
				say(strings.Replace(sample, `"id":7`, fmt.Sprintf(`"id":%d`, i), 1))
			}
			say(strings.Replace(sample, `"id":7`, `"id":3`, 1))
			say(strings.Replace(sample, `"id":7`, `"id":99`, 1))
			w.files.Notified(2)
		})
		next := w.callStream(w.connectAs(initializeWithAll), toolCall)
		asked, void := 0, 0
		for got := next(); got != ""; got = next() {
			switch {
			case strings.Contains(got, "sampling/createMessage"):
				asked++
			case strings.Contains(got, "notifications/cancelled"):
				void++
			}
		}
		if asked != most || void != most {
			t.Errorf("%d requests reached the client, of which %d became void with the call's end", asked, void)
		}
		got := w.files.Notified(2 + most)
		if !strings.Contains(got[0], `"id":3,"error"`) || !strings.Contains(got[1], `"id":99,"error"`) {
			t.Errorf("the server got %s", got[:2])
		}
	})
}

// If a server cancels its request, the client is notified, and no answer is sent to the server.
func TestServerRequest_CanBeCancelledByTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *testGateway
		w = newServerRequestGateway(t, []string{"sampling/createMessage"}, func(_ context.Context, say func(string)) {
			say(sample)
			synctest.Wait()
			say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)
			w.files.Notified(1)
		})
		next := w.callStream(w.connectAs(initializeWithAll), toolCall)
		got := []string{next(), next(), next()}
		if !strings.Contains(got[0], "sampling/createMessage") || !strings.Contains(got[1], `"method":"notifications/cancelled","params":{"requestId":7,`) || !strings.Contains(got[2], `"content":[]`) {
			t.Errorf("the client got %s", got)
		}
	})
}

// Case A3.
func TestServerRequest_IsAnsweredOnlyInItsSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w *testGateway
		w = newServerRequestGateway(t, []string{"sampling/createMessage"}, func(_ context.Context, say func(string)) {
			say(sample)
			w.files.Notified(1)
		})
		own, other := w.connectAs(initializeWithAll), w.connectAs(initializeWithAll)
		next := w.callStream(own, toolCall)
		next()
		ben := http.Header{"Authorization": {"Bearer " + benToken}}
		ben.Set("Mcp-Session-Id", w.do("POST", "/mcp/files", initializeWithAll, ben).header.Get("Mcp-Session-Id"))
		for _, h := range []http.Header{other, ben} {
			w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"forged":1}}`, h)
		}
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"own":1}}`, own)
		next()
		if got := w.files.Notified(1); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","id":7,"result":{"own":1}}` {
			t.Errorf("the server got %s", got)
		}
	})
}

// Cases U1, A1. If a message in a session contains client capabilities, the gateway replaces them with the capabilities
// that it has declared to the server.
func TestSession_CapabilitiesInRequestsAreReplaced(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ path, call, want string }{
		"of one server":   {"/mcp/files", toolCall, `{"sampling":{"tools":{}}}`},
		"of many servers": {"/mcp", strings.Replace(toolCall, "safe", "files__safe", 1), `{"elicitation":{"form":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newAllServers(t)
				if w.path = tt.path; tt.path != "/mcp" {
					w.Policy.Access.Methods = []string{"sampling/createMessage"}
				}
				var sent []string
				recordRequests(w.files, &sent)
				h := w.connectAs(initializeWithAll)
				w.do("POST", tt.path, strings.Replace(tt.call, `"params":{`, `"params":{"_meta":{"io.modelcontextprotocol/clientCapabilities":{"experimental":{"pay twice":{}}},"progressToken":1},`, 1), h)
				w.do("POST", tt.path, tt.call, h)
				if len(sent) != 2 || !strings.Contains(sent[0], `{"io.modelcontextprotocol/clientCapabilities":`+tt.want+`,"progressToken":1}`) || strings.Contains(sent[1], "_meta") {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}
