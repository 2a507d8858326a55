package mcpserver_test

import (
	"bufio"
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newEventGateway returns a gateway whose policy allows the methods in the parameter open. The gateway's server sends
// exactly the given events on its stream.
func newEventGateway(t *testing.T, open []string, events ...upstream.Event) *testGateway {
	t.Helper()
	w := newTestGateway(t)
	w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: open}
	w.files.Listen = func(ctx context.Context, to upstream.Listener) error {
		to.Opened()
		for _, event := range events {
			if err := to.Event(event); err != nil {
				return err
			}
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return w
}

func notificationEvent(method string) upstream.Event {
	return upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"` + method + `","params":{"x":1.50}}`)}
}

// openStream opens a session's stream and returns the lines that arrive on it. The channel is closed when the stream
// ends.
func (w *testGateway) openStream(h http.Header) (lines <-chan string, hangUp func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost"+w.path, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header = http.Header{"Authorization": {"Bearer " + anaToken}, "Accept": {"text/event-stream"}}
	maps.Copy(req.Header, h)
	resp, err := w.client.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/event-stream" {
		w.t.Fatalf("the stream: %d %s", resp.StatusCode, resp.Header)
	}
	w.t.Cleanup(func() { _ = resp.Body.Close() })
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		in := bufio.NewScanner(resp.Body)
		for in.Scan() {
			out <- in.Text()
		}
		if in.Err() != nil {
			out <- "BROKEN"
		}
	}()
	return out, cancel
}

// readLines returns the lines that have arrived so far.
func readLines(lines <-chan string) (out []string) {
	synctest.Wait()
	for {
		select {
		case line, open := <-lines:
			if !open {
				return append(out, "END")
			}
			out = append(out, line)
		default:
			return out
		}
	}
}

// Case T4. A client's stream contains log messages, and those notifications that are related to methods that the client
// may use. The bytes of the messages are unchanged.
func TestStream_ForwardsWhatPolicyAllows(t *testing.T) {
	t.Parallel()
	said := []upstream.Event{
		notificationEvent("notifications/tools/list_changed"), notificationEvent("notifications/prompts/list_changed"), notificationEvent("notifications/resources/list_changed"),
		notificationEvent("notifications/resources/updated"), notificationEvent("notifications/elicitation/complete"), notificationEvent("notifications/message"), notificationEvent("notifications/other"), notificationEvent("x/y"),
		{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{"dev.sluice/decision":1}}}`)},
	}
	text := func(i int) string { return string(said[i].Message) }
	for name, tt := range map[string]struct {
		open []string
		want []int
	}{
		"nothing but tools": {nil, []int{0, 5}},
		"all": {
			[]string{"elicitation/create", "prompts/list", "resources/list", "resources/subscribe"},
			[]int{0, 1, 2, 3, 4, 5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newEventGateway(t, tt.open, said...)
				lines, _ := w.openStream(w.connectAs(initializeWithAll))
				var want []string
				for _, i := range tt.want {
					want = append(want, "event: message", "data: "+text(i), "")
				}
				want = append(want, "event: message", `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{}}}`, "")
				if got := readLines(lines); strings.Join(got, "\n") != strings.Join(want, "\n") {
					t.Errorf("heard\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
			})
		})
	}
}

// The gateway sends comments on an idle stream. A client can resume the stream after the last event that it has
// received.
func TestStream_ContinuesAfterLastEventID(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		event := notificationEvent("notifications/message")
		event.ID = "one"
		w := newEventGateway(t, nil, upstream.Event{ID: "zero", Retry: "500"}, event)
		var after []string
		listen := w.files.Listen
		w.files.Listen = func(ctx context.Context, to upstream.Listener) error {
			after = append(after, to.After)
			return listen(ctx, to)
		}
		h := w.connect()
		lines, hangUp := w.openStream(h)
		want := "id: zero\nretry: 500\ndata: \n\nid: one\nevent: message\ndata: " + string(event.Message) + "\n"
		if got := strings.Join(readLines(lines), "\n"); got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		time.Sleep(26 * time.Second)
		if got := readLines(lines); len(got) != 2 || got[0] != ": alive" {
			t.Errorf("then heard %q", got)
		}
		hangUp()
		h.Set("Last-Event-ID", "one")
		h["Last-Event-Id"] = []string{"one"}
		w.openStream(h)
		if len(after) != 2 || after[0] != "" || after[1] != "one" {
			t.Errorf("the server was asked for what is behind %q", after)
		}
		for _, values := range [][]string{{"two"}, {""}, {"one", "one"}} {
			h["Last-Event-Id"] = values
			h["Accept"] = []string{"text/event-stream"}
			if got := w.do("GET", "/mcp/files", "", h); got.status != 400 || got.code() != "header_mismatch" {
				t.Errorf("%q: %d %s", values, got.status, got.body)
			}
		}
		if len(after) != 2 {
			t.Errorf("the server was asked for what is behind %q", after)
		}
	})
}

// Requests that a server sends on its session's stream are handled like requests that it sends during a call. They are
// forwarded if the policy allows them and the client can answer them.
func TestStream_CarriesServerRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, []string{"roots/list"}, upstream.Event{Message: []byte(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)}, upstream.Event{Message: []byte(sample)})
		h := w.connectAs(initializeWithAll)
		lines, hangUp := w.openStream(h)
		if got := readLines(lines); len(got) != 3 || got[1] != `data: {"jsonrpc":"2.0","id":7,"method":"roots/list"}` {
			t.Errorf("heard %q", got)
		}
		w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}`, h)
		got := w.files.Notified(2)
		// The server has used the same id for both of its requests.
		if !strings.Contains(got[0], `"id":7,"error":{"code":-31403`) || got[1] != `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}` {
			t.Errorf("the server got %q", got)
		}
		if intents := w.Journal.Records(journal.KindIntent); len(intents) != 1 || intents[0].Method != "roots/list" || !intents[0].FromServer {
			t.Errorf("on record is %+v", intents)
		}
		hangUp()
	})
}

// A server has sent a request on its session's stream and waits for the client's answer. Meanwhile, the timeouts of the
// session's calls are paused, as they are when the server sends a request during a call.
func TestStream_ServerRequestPausesTheTimeoutOfCalls(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, []string{"roots/list"})
		called := make(chan struct{})
		w.files.Request = func(ctx context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			close(called)
			w.files.Notified(1)
			if ctx.Err() != nil {
				return upstream.Answer{}, upstream.ErrTimeout
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		w.files.Listen = func(ctx context.Context, to upstream.Listener) error {
			to.Opened()
			<-called
			_ = to.Event(upstream.Event{Message: []byte(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)})
			<-ctx.Done()
			return ctx.Err()
		}
		h := w.connectAs(initializeWithAll)
		_, hangUp := w.openStream(h)
		var answering sync.WaitGroup
		answering.Go(func() {
			time.Sleep(5 * time.Minute)
			w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":7,"result":{"roots":[]}}`, h)
		})
		if got := w.do("POST", "/mcp/files", toolCall, h); !strings.Contains(got.body, `"content":[]`) {
			t.Errorf("the call was answered %s", got.body)
		}
		answering.Wait()
		hangUp()
	})
}

// A server has sent a request on a stream. When the stream ends, the gateway answers the request with an error.
func TestStream_EndCancelsServerRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, []string{"roots/list"}, upstream.Event{Message: []byte(`{"jsonrpc":"2.0","id":7,"method":"roots/list"}`)})
		lines, hangUp := w.openStream(w.connectAs(initializeWithAll))
		readLines(lines)
		hangUp()
		if got := w.files.Notified(1); !strings.Contains(got[0], `"id":7,"error":{"code":-32603`) {
			t.Errorf("the server got %q", got)
		}
	})
}

// A session has only one stream, so a second stream replaces the first one. A stream ends when its session ends or its
// token is revoked.
func TestStream_EndsWithTokenAndSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, nil)
		h := w.connect()
		first, _ := w.openStream(h)
		second, _ := w.openStream(h)
		if got := readLines(first); len(got) != 1 || got[0] != "END" {
			t.Errorf("the first goes on: %q", got)
		}
		if got := readLines(second); len(got) != 0 {
			t.Errorf("the second: %q", got)
		}
		if got := w.do("DELETE", "/mcp/files", "", h); got.status != http.StatusNoContent {
			t.Fatalf("the end of the session: %d", got.status)
		}
		if got := readLines(second); len(got) != 1 || got[0] != "END" {
			t.Errorf("it outlives its session: %q", got)
		}
		third, _ := w.openStream(w.connect())
		if err := w.tokens.Replace([]*identityv1.TokenRecord{token("ben", benToken, authv1.TokenRole_TOKEN_ROLE_AGENT)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(26 * time.Second)
		if got := readLines(third); len(got) != 1 || got[0] != "END" {
			t.Errorf("it outlives its token: %q", got)
		}
	})
}

// If a client may not open a stream, the gateway refuses the request with an HTTP status that clients understand.
func TestStream_IsRefusedWithoutASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, nil)
		h := w.connect()
		events := func(more http.Header) http.Header {
			out := http.Header{"Mcp-Session-Id": h["Mcp-Session-Id"], "Accept": {"text/event-stream"}}
			maps.Copy(out, more)
			return out
		}
		for name, tt := range map[string]struct {
			method, path string
			header       http.Header
			status       int
			code         string
		}{
			"no session yet":          {"GET", "/mcp/files", http.Header{"Accept": {"text/event-stream"}}, 405, ""},
			"reads no events":         {"GET", "/mcp/files", events(http.Header{"Accept": {"application/json"}}), 405, ""},
			"wants the head":          {"HEAD", "/mcp/files", events(nil), 405, ""},
			"another's session":       {"GET", "/mcp/files", events(http.Header{"Authorization": {"Bearer " + benToken}}), 404, "session_unknown"},
			"no such session":         {"GET", "/mcp/files", events(http.Header{"Mcp-Session-Id": {"x"}}), 404, "session_unknown"},
			"no such server":          {"GET", "/mcp/none", events(nil), 404, "tool_unknown"},
			"no token":                {"GET", "/mcp/files", events(http.Header{"Authorization": nil}), 401, "unauthenticated"},
			"an operator":             {"GET", "/mcp/files", events(http.Header{"Authorization": {"Bearer " + operatorToken}}), 403, "forbidden"},
			"a page of another's":     {"GET", "/mcp/files", events(http.Header{"Origin": {"https://evil.example"}}), 403, "origin_refused"},
			"a rebound name of hosts": {"GET", "/mcp/files", events(http.Header{"Host": {"evil.example"}}), 403, "host_refused"},
		} {
			if got := w.do(tt.method, tt.path, "", tt.header); got.status != tt.status || got.code() != tt.code {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		if got := w.do("GET", "/mcp/files", "", events(nil)); got.status != 405 {
			t.Errorf("nothing is in reach: %d", got.status)
		}
		w.Policy.Access = nil
		if got := w.do("GET", "/mcp/files", "", events(nil)); got.status != 503 || got.code() != "policy_unavailable" {
			t.Errorf("policy is away: %d %s", got.status, got.body)
		}
		w.Policy.Access, w.files.Listen = &policyv1.CheckServerResponse{CouldAllow: true}, nil
		if got := w.do("GET", "/mcp/files", "", events(nil)); got.status != 405 {
			t.Errorf("the server has none: %d", got.status)
		}
	})
}

// The notification that a client's roots have changed is sent to a server only if the client has declared roots and the
// policy allows that server to request the roots.
func TestRootsChanged_ReachesServersThatMayListRoots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, []string{"roots/list"})
		for name, tt := range map[string]struct {
			initialize string
			want       int
		}{"may": {initializeWithAll, 1}, "may not": {initialize, 0}} {
			before := len(w.files.Notified(0))
			w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","method":"notifications/roots/list_changed","params":{"x":1}}`, w.connectAs(tt.initialize))
			if got := w.files.Notified(0)[before:]; len(got) != tt.want || tt.want > 0 && got[0] != `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}` {
				t.Errorf("%s: the server got %q", name, got)
			}
		}
	})
}

// A client's stream ends before the server has opened its own stream. If the session has ended, the client must open
// another session. Otherwise the stream must end without a refusal, because a client opens another session if the
// response says that its session is unknown (MCP 2025-11-25, Transports, Session Management).
func TestStream_EndsBeforeTheServerOpensIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		var opens atomic.Bool
		w.files.Listen = func(ctx context.Context, to upstream.Listener) error {
			if opens.Load() {
				to.Opened()
			}
			<-ctx.Done()
			return ctx.Err()
		}
		h := w.connect()
		h["Accept"] = []string{"text/event-stream"}
		listen := func() <-chan httpResponse {
			got := make(chan httpResponse, 1)
			go func() { got <- w.do("GET", "/mcp/files", "", h) }()
			synctest.Wait()
			return got
		}
		replaced := listen()
		opens.Store(true)
		_, hangUp := w.openStream(h)
		if got := <-replaced; got.status != http.StatusOK || got.header.Get("Content-Type") != "text/event-stream" || got.body != "" {
			t.Errorf("the replaced stream got %d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", ping, h); got.status != http.StatusOK || got.code() != "" {
			t.Errorf("in the session, a ping got %d %s", got.status, got.body)
		}
		hangUp()
		if refused := w.Journal.Records(journal.KindRefusal); len(refused) != 0 {
			t.Errorf("refusals are on record: %+v", refused)
		}
		opens.Store(false)
		ended := listen()
		if got := w.do("DELETE", "/mcp/files", "", h); got.status != http.StatusNoContent {
			t.Fatalf("the end of the session: %d", got.status)
		}
		if got := <-ended; got.status != http.StatusNotFound || got.code() != "session_unknown" {
			t.Errorf("the stream of the ended session got %d %s", got.status, got.body)
		}
	})
}

// A request for a stream does not count as a use of the server, because some clients request a stream again and again.
// If it counted, the gateway would start an unused stdio server each time it lists the server's tools.
func TestStream_RequestDoesNotStartAnUnusedProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := prepareTestGateway(t, "stdio")
		w.Policy.Revision = "r1"
		var lists atomic.Int64
		discovery := w.files.Discovery
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				lists.Add(1)
			}
			return discovery(r)
		}
		w.build()
		ctx, cancel := context.WithCancel(t.Context())
		var discovers sync.WaitGroup
		defer discovers.Wait()
		defer cancel()
		discovers.Go(func() { _ = w.MCP.Discover(ctx) })
		for range 20 {
			time.Sleep(10 * time.Minute)
			if got := w.do("GET", "/mcp/files", "", nil); got.status != http.StatusMethodNotAllowed {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		if n := lists.Load(); n != 1 {
			t.Errorf("the program was listed %d times", n)
		}
	})
}
