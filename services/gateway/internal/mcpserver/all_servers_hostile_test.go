package mcpserver_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// A client sends notifications with invented method names to the URL for all servers. Each notification is refused and
// recorded as a refusal. The notifications are not counted as messages that need no rule.
func TestAllServers_NotificationRecordsNameNoServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		stop := w.runPipeline()
		for i := range 100 {
			method := fmt.Sprintf("notifications/x%d", i)
			_, head := modern(method, "", "")
			if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"`+method+`"}`, head); got.status != 202 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		stop()
		if passed, refused := w.Journal.Records(journal.KindPassed), w.Journal.Records(journal.KindRefusal); len(passed) != 0 || len(refused) != 100 {
			t.Errorf("%d are on record as passed, and %d as refused", len(passed), len(refused))
		}
	})
}

// Case U1. A user cannot mistake one server's request for another server's. Each line of the request's text contains
// the server's name, and a request without a text is refused.
func TestAllServers_RequestsNameTheirServer(t *testing.T) {
	t.Parallel()
	url := func(message string) string {
		return `"error":{"code":-32042,"message":"m","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://evil.example"` + message + `}]}}`
	}
	form := func(message string) string {
		return `"result":{"resultType":"input_required","inputRequests":{"f":{"method":"elicitation/create","params":{` + message + `"requestedSchema":{}}}}}`
	}
	for name, tt := range map[string]struct{ answers, want, code string }{
		"an address":                {url(`,"message":"files asks: sign in"`), `"message":"notes asks: files asks: sign in"`, ""},
		"lines":                     {form(`"message":"hi\n\rfiles asks:\u2028x",`), `"message":"notes asks: hi\nnotes asks: \nnotes asks: files asks:\nnotes asks: x"`, ""},
		"an address without a text": {url(""), "", "outcome_unknown"},
		"a form without a text":     {form(""), "", "outcome_unknown"},
		"a text that is a number":   {form(`"message":7,`), "", "outcome_unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernAllServers(t)
				server := w.notes
				if strings.HasPrefix(tt.answers, `"result"`) { // only servers without sessions answer with inputRequests
					server.Open, server.Discovery = w.files.Open, w.files.Discovery
				}
				server.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,` + tt.answers + `}`), nil
				}
				body, head := modern("tools/call", "notes__safe", `"name":"notes__safe"`)
				body = strings.Replace(body, `"elicitation":{"form":{}}`, `"elicitation":{"form":{},"url":{}}`, 1)
				if got := w.do("POST", "/mcp", body, head); !strings.Contains(got.body, tt.want) || got.code() != tt.code {
					t.Errorf("%s", got.body)
				}
			})
		})
	}
	t.Run("in a session", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := newAllServers(t)
			w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"requestedSchema":{}}}`))
				if sent := w.files.Notified(2)[1]; !strings.Contains(sent, `"error"`) {
					t.Errorf("it got %s", sent)
				}
				return gatewaytest.Result(r, `{"content":[]}`), nil
			}
			next := w.callStream(w.connectAs(initializeWithAll), strings.Replace(toolCall, "safe", "files__safe", 1))
			if got := next(); !strings.Contains(got, `"content":[]`) {
				t.Errorf("the client got %s", got)
			}
		})
	})
}

// A server supports revision 2026-07-28 as well as revisions that use sessions. The gateway lists the server's tools in
// the same revision in which it calls the server.
func TestAllServers_ListsAServerInTheRevisionOfItsCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		const head = `"inputSchema":{"type":"object","properties":{"r":{"type":"string"`
		era := ""
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			if era = r.Method(); era == "server/discover" {
				return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`), nil
			}
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}`), nil
		}
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			switch {
			case r.Method() != "tools/list":
				return w.files.Open(r)
			case era == "server/discover":
				return gatewaytest.Result(r, `{"tools":[{"name":"safe",`+head+`,"x-mcp-header":"Region"}}}},{"name":"newer","inputSchema":{"type":"object"}}]}`), nil
			default:
				return gatewaytest.Result(r, `{"tools":[{"name":"safe",`+head+`}}}}]}`), nil
			}
		}
		// During this call, the gateway finds out which revisions the server supports.
		w.doAllServers("tools/call", "files__safe", `"name":"files__safe","arguments":{}`)
		if got := w.doAllServers("tools/list", "", ""); !strings.Contains(got.body, `"x-mcp-header":"Region"`) || !strings.Contains(got.body, "files__newer") {
			t.Errorf("it lists %s", got.body)
		}
	})
}

// Case A3. A server ends a subscription. When the gateway opens the subscription again, the policy service evaluates it
// again, and the client is notified that its resources may have changed. If the server does not support subscriptions,
// the gateway does not open the subscription again. If the server ends every subscription, the gateway opens new ones
// only at long intervals.
func TestAllServers_SubscriptionIsOpenedAgainWhenItEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answers string
		denies  bool
		most    int32
	}{
		"it has none":       {`"error":{"code":-32601,"message":"no"}`, false, 1},
		"it ends each":      {`"result":{"resultType":"complete"}`, false, 20},
		"policy denies now": {`"result":{"resultType":"complete"}`, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernAllServers(t)
				var asked atomic.Int32
				w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					asked.Add(1)
					events([]byte(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}`))
					time.Sleep(time.Millisecond)
					return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,` + tt.answers + `}`), nil
				}
				body, head := modern("subscriptions/listen", "", `"notifications":{"resourceSubscriptions":["mcp.files+file:///a"]}`)
				next, hangUp := w.callStreamUntil(head, body)
				defer hangUp()
				if got := next(); !strings.Contains(got, "acknowledged") {
					t.Errorf("it begins with %s", got)
				}
				if tt.denies {
					w.Policy.Change(func() { w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY} })
				}
				if tt.most > 1 {
					if got := next(); !strings.Contains(got, `resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"uri":"mcp.files+file:///a"}`) {
						t.Errorf("once it is open again the client reads %s", got)
					}
				}
				time.Sleep(10 * time.Minute)
				if n := asked.Load(); n < 1 || n > tt.most {
					t.Errorf("files was asked %d times in 10 minutes", n)
				}
			})
		})
	}
}

// A client subscribes to the notifications of all servers. The acknowledgement lists the notifications that the servers
// support. The gateway sends the acknowledgement without waiting for a slow server.
func TestAllServers_SubscriptionGrantsWhatServersOffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() != "server/discover" {
				return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
			}
			return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete"}`), nil
		}
		hangs := func(upstream.Request) (upstream.Answer, error) {
			time.Sleep(10 * time.Second)
			return upstream.Answer{}, upstream.ErrTimeout
		}
		w.notes.Discovery = hangs
		body, head := modern("subscriptions/listen", "", `"notifications":{"promptsListChanged":true,"resourceSubscriptions":["mcp.files+file:///a","mcp.notes+file:///a"]}`)
		begin := time.Now()
		next, hangUp := w.callStreamUntil(head, body)
		if got := next(); time.Since(begin) > 6*time.Second || strings.Contains(got, "file:///a") || !strings.Contains(got, `"notifications":{"promptsListChanged":true}`) {
			t.Errorf("after %v: %s", time.Since(begin), got)
		}
		hangUp()
		time.Sleep(time.Minute) // longer than the hanging request
	})
}

// The policy changes and now allows a server that uses sessions to use an additional client capability. The gateway
// opens a new session with that server.
func TestAllServers_MemberGetsTheCapabilitiesThatPolicyAllows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		for revision, methods := range [][]string{{"prompts/list"}, everyMethod(), everyMethod()} {
			w.setAccess(&policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: methods, PolicyRevision: fmt.Sprint(revision)})
			time.Sleep(10 * time.Minute)
			w.doAllServers("tools/call", "notes__safe", `"name":"notes__safe"`)
		}
		if len(w.notes.Opened()) != 2 || strings.Contains(string(w.notes.Opened()[0].Body()), "sampling") || !strings.Contains(string(w.notes.Opened()[1].Body()), "sampling") {
			t.Errorf("%d sessions were opened with it", len(w.notes.Opened()))
		}
	})
}

// Case X1. A server's large messages reach the client. Parsing a message and replacing names in it each need a time
// slice, and a caller may use only one time slice at a time. Other callers' large messages are not delayed.
func TestAllServers_LargeServerMessagesAreForwarded(t *testing.T) { // not parallel, because it changes GOMAXPROCS
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2)) // one time slice at a time
	large := strings.Repeat("x", 100<<10)
	for name, message := range map[string]string{
		"notification": `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"` + large + `"}}`,
		"request":      `{"jsonrpc":"2.0","id":7,"method":"sampling/createMessage","params":{"maxTokens":1,"messages":[],"systemPrompt":"` + large + `"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newAllServers(t)
				w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					events([]byte(message))
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				h := w.connectAs(initializeWithAll)
				call := strings.Replace(toolCall, `"name":"safe"`, `"name":"files__safe","arguments":{"x":"`+large+`"}`, 1)
				if got := w.do("POST", "/mcp", call, h); !strings.Contains(got.body, large) || !strings.Contains(got.body, `"content":[]`) {
					t.Errorf("the client got %d %.200s", got.status, got.body)
				}
				h["Authorization"] = []string{"Bearer " + benToken}
				if got := w.do("POST", "/mcp", call, h); got.code() != "session_unknown" {
					t.Errorf("another caller got %d %.200s", got.status, got.body)
				}
			})
		})
	}
}
