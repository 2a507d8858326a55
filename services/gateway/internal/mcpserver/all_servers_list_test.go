package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
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

// Some servers do not respond or are unavailable. The combined list reports these servers as unavailable, and contains
// the elements of all other servers.
func TestAllServers_ListNamesUnavailableServers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		own    func(upstream.Request) (upstream.Answer, error)
		code   string
		within time.Duration
	}{
		"it hangs": {func(upstream.Request) (upstream.Answer, error) {
			time.Sleep(time.Hour)
			return upstream.Answer{}, upstream.ErrTimeout
		}, "upstream_unavailable", 3 * time.Second},
		"it is away": {func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, "upstream_unavailable", 0},
		"it has no list": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{}}`), nil
		}, `upstream_unavailable","why":"the list of tools can't be read: the answer has no list of tools.`, 0},
		"it speaks something new": {func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2031-01-01","capabilities":{}}`), nil
		}, "upstream_unavailable", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newAllServers(t)
				w.notes.Discovery = tt.own
				begin := time.Now()
				h := w.connectAs(initializeWithAll)
				got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
				if took := time.Since(begin); took > 2*tt.within {
					t.Errorf("it took %v", took)
				}
				want := `"_meta":{"dev.sluice/unavailable":[{"server":"notes","code":"` + tt.code + `"}]}}}`
				if !strings.Contains(got.body, "files__safe") || strings.Contains(got.body, "notes__") || !strings.HasSuffix(got.body, want) {
					t.Errorf("it lists %s", got.body)
				}
				if got := w.do("POST", "/mcp", strings.Replace(toolCall, "safe", "files__safe", 1), h); got.code() != "" {
					t.Errorf("a call of the other: %s", got.body)
				}
				synctest.Wait()
				time.Sleep(2 * time.Hour) // longer than the hanging request
			})
		})
	}
}

// If a list's method needs a rule, the gateway requests all pages of the list from each server on behalf of the caller.
func TestAllServers_ListsAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if strings.Contains(string(r.Body()), `"cursor":"2"`) {
				return gatewaytest.Result(r, `{"prompts":[ {"name":"q"} ]}`), nil
			}
			if !strings.Contains(string(r.Body()), `"cursor":"1"`) {
				return gatewaytest.Result(r, `{"prompts":[],"nextCursor":"1"}`), nil
			}
			return gatewaytest.Result(r, `{"prompts":[{"name":"p","_meta":{"dev.sluice/x":1,"y":2}}],"nextCursor":"2"}`), nil
		}
		w.notes.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"prompts":[{"name":"p"}]}`), nil
		}
		h := w.connectAs(initializeWithAll)
		ask := func(method string) string {
			return w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`, h).body
		}
		want := `{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"files__p","_meta":{"y":2}},{"name":"files__q"},{"name":"notes__p"}]}}`
		if got := ask("prompts/list"); got != want {
			t.Errorf("prompts are %s", got)
		}
		if n := len(w.Journal.Records(journal.KindIntent)); n != 4 {
			t.Errorf("%d intents of 4 pages", n)
		}
		w.notes.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		want = `{"jsonrpc":"2.0","id":1,"result":{"resourceTemplates":[],"_meta":{"dev.sluice/unavailable":[{"server":"files","code":"upstream_unavailable","why":"its list can't be read: the answer has no list."}]}}}`
		if got := ask("resources/templates/list"); got != want {
			t.Errorf("templates are %s", got)
		}
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		if got := ask("resources/list"); got != `{"jsonrpc":"2.0","id":1,"result":{"resources":[]}}` {
			t.Errorf("what policy denies: %s", got)
		}
	})
}

// The combined list is valid even if one of the servers has no elements of this kind. Elements that clients might
// reject are omitted.
func TestAllServers_ListIsOnePage(t *testing.T) {
	t.Parallel()
	broken := `{"tools":[{"name":"safe","inputSchema":{"type":"object"}},{"name":"x"},{"name":"y","inputSchema":true},{"inputSchema":{}}]}`
	for name, tt := range map[string]struct{ files, notes, want string }{
		"the first is empty":  {toolList(), toolList("a"), toolList("notes__a")},
		"the last is empty":   {toolList("a"), toolList(), toolList("files__a")},
		"both are empty":      {toolList(), toolList(), toolList()},
		"the first is hidden": {toolList("secret"), toolList("a", "secret"), toolList("notes__a")},
		"one is broken": {broken, toolList("a"), strings.TrimSuffix(toolList("files__safe", "notes__a"), "}") + `,"_meta":{"dev.sluice/leftOut":[` +
			`{"server":"files","name":"x","why":"it is not a valid tool: inputSchema is missing"},{"server":"files","name":"y","why":"it is not a valid tool: inputSchema is not an object"}]}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newAllServers(t)
				for server, list := range map[*gatewaytest.Server]string{w.files: tt.files, w.notes: tt.notes} {
					own := server.Discovery
					server.Discovery = func(r upstream.Request) (upstream.Answer, error) {
						if r.Method() == "tools/list" {
							return gatewaytest.Result(r, list), nil
						}
						return own(r)
					}
				}
				w.Policy.Access.HidesNone = false
				h := w.connectAs(initializeWithAll)
				if got := w.do("POST", "/mcp/", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h); got.body != `{"jsonrpc":"2.0","id":1,"result":`+tt.want+`}` {
					t.Errorf("it lists %s", got.body)
				}
			})
		})
	}
}

// switchAvailability makes the server unavailable. The server becomes available when the test sets the returned value
// to true.
func switchAvailability(server *gatewaytest.Server) *atomic.Bool {
	there, own := new(atomic.Bool), server.Discovery
	server.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if !there.Load() {
			return upstream.Answer{}, upstream.ErrNeverSent
		}
		return own(r)
	}
	return there
}

// A server is unavailable at first. The gateway declares the server's features from the beginning. Once the gateway has
// listed the server, it uses the last list whenever the server is unavailable, and it notifies the client only if the
// list changes.
func TestAllServers_ListHasAServerThatIsAvailableAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		there := switchAvailability(w.notes)
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, map[string]string{"initialize": `{"protocolVersion":"2025-11-25","capabilities":{}}`, "tools/list": toolList("safe")}[r.Method()]), nil
		}
		greeting := w.do("POST", "/mcp", initializeWithAll, nil)
		if !strings.Contains(greeting.body, `"prompts":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}`) || strings.Contains(greeting.body, "logging") {
			t.Errorf("it greets %s", greeting.body)
		}
		h := http.Header{"Mcp-Session-Id": {greeting.header.Get("Mcp-Session-Id")}}
		list := func() string {
			return w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h).body
		}
		if got := list(); strings.Contains(got, "notes__") {
			t.Errorf("it lists %s", got)
		}
		there.Store(true)
		time.Sleep(time.Minute)
		list() // this lists the server; a change before the stream opens must not be lost
		lines, hangUp := w.openStream(h)
		defer hangUp()
		synctest.Wait()
		if got := list(); !strings.Contains(got, "notes__safe") || strings.Contains(got, "unavailable") {
			t.Errorf("once it is back it lists %s", got)
		}
		readLines(lines)
		there.Store(false)
		time.Sleep(10 * time.Minute)
		if got := list(); !strings.Contains(got, "notes__safe") || !strings.Contains(got, `"dev.sluice/unavailable":[{"server":"notes"`) {
			t.Errorf("while it is away again it lists %s", got)
		}
		if got := slices.DeleteFunc(readLines(lines), func(line string) bool { return line == "" || strings.HasPrefix(line, ":") }); len(got) != 0 {
			t.Errorf("of what has not changed was heard %q", got)
		}
	})
}

// One server slowly sends page after page. The combined list must be complete within a time limit, and must report this
// server as unavailable. Invalid elements of other servers are omitted.
func TestAllServers_ListIsCompleteInTimeIfAServerSendsPagesSlowly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		pages := 0
		w.notes.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			pages++
			time.Sleep(3 * time.Second)
			return gatewaytest.Result(r, fmt.Sprintf(`{"prompts":[{"name":"p%d"}],"nextCursor":"%d"}`, pages, pages)), nil
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"prompts":[{"name":"p"},{"title":"no name"},7]}`), nil
		}
		h := w.connectAs(initializeWithAll)
		begin := time.Now()
		body := `{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"_meta":{"dev.sluice/run":"r-1"}}}`
		got := w.do("POST", "/mcp", body, h)
		want := `{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"files__p"}],"_meta":{"dev.sluice/leftOut":[` +
			`{"server":"files","why":"it is not valid in MCP: name is missing"},{"server":"files","why":"it is not valid in MCP: it is not an object"}],` +
			`"dev.sluice/unavailable":[{"server":"notes","code":"upstream_timeout"}]}}}`
		if took := time.Since(begin); got.body != want || took > 15*time.Second {
			t.Errorf("after %v: %s", took, got.body)
		}
		for _, r := range w.Journal.Records(journal.KindIntent) {
			if r.Run != "r-1" {
				t.Errorf("a page of the run %q", r.Run)
			}
		}
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"cursor":"2"}}`, h); got.code() != "params_invalid" {
			t.Errorf("a cursor: %s", got.body)
		}
	})
}

// The gateway does not start an unused stdio server only to list its elements.
func TestAllServers_ListStartsNoProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := prepareTestGateway(t, "")
		w.path, w.MaxSessions, w.notes = "/mcp", 10, newTestServer(t, "stdio")
		var asked atomic.Int32
		w.notes.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			asked.Add(1)
			if r.Method() == "initialize" {
				return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`), nil
			}
			return gatewaytest.Result(r, toolList("safe")), nil
		}
		w.build()
		h := w.connectAs(initializeWithAll)
		before := asked.Load()
		for range 3 {
			time.Sleep(10 * time.Minute)
			if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h); !strings.Contains(got.body, "notes__safe") || strings.Contains(got.body, "unavailable") {
				t.Errorf("it lists %s", got.body)
			}
			synctest.Wait()
		}
		if asked.Load() != before {
			t.Errorf("it was asked %d times more", asked.Load()-before)
		}
	})
}

// Case U1. If a server sends too many names, only this server's answer is refused. If a server lists pages without end,
// the gateway reads only 20 pages.
func TestAllServers_LongNamesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		pages := 0
		w.notes.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "tools/call" {
				return gatewaytest.Result(r, `{"content":[`+strings.TrimSuffix(strings.Repeat(`{"uri":"a"},`, 30_001), ",")+`]}`), nil
			}
			pages++
			return gatewaytest.Result(r, fmt.Sprintf(`{"prompts":[{"name":"p"}],"nextCursor":"%d"}`, pages)), nil
		}
		h := w.connectAs(initializeWithAll)
		if got := w.do("POST", "/mcp", strings.Replace(toolCall, "safe", "notes__safe", 1), h); got.code() != "outcome_unknown" || !strings.Contains(got.body, "more than 30000 names and titles") || !strings.Contains(got.body, "use the URL of the server") {
			t.Errorf("its answer: %d, %.500s", got.status, got.body)
		}
		got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, h)
		if pages != 20 || !strings.Contains(got.body, `"dev.sluice/unavailable":[{"server":"files"`) || !strings.Contains(got.body, `{"server":"notes","code":"body_too_large","why":"its list can't be read: it has more than 20 pages."}`) {
			t.Errorf("after %d pages: %s", pages, got.body)
		}
	})
}

func TestAllServers_GatheringEndsWhenTheClientDisconnects(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		w.Policy.Access.PromptsAlike = false
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"prompts":[{"name":"p"}]}`), nil
		}
		h := w.connectAs(initializeWithAll)
		ctx, cancel := context.WithCancel(t.Context())
		begin, took := time.Now(), make(chan time.Duration, 2)
		w.Policy.BeforeNames = func(ctx context.Context) {
			<-ctx.Done()
			took <- time.Since(begin)
		}
		time.AfterFunc(time.Second/2, cancel)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h.Clone()
		for key, value := range map[string]string{"Authorization": "Bearer " + anaToken, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			req.Header.Set(key, value)
		}
		if resp, err := w.client.Do(req); err == nil {
			resp.Body.Close()
			t.Fatal("it was answered")
		}
		if got := <-took; got != time.Second/2 {
			t.Errorf("it went on for %v", got)
		}
	})
}

// If a server's answer to initialize is too large, the combined list omits the server.
func TestAllServers_GreetingSizeIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		own := w.notes.Discovery
		w.notes.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "initialize" {
				return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"instructions":"`+strings.Repeat("x", 300<<10)+`"}`), nil
			}
			return own(r)
		}
		h := w.connectAs(initializeWithAll)
		got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
		if !strings.Contains(got.body, "files__safe") || !strings.HasSuffix(got.body, `"_meta":{"dev.sluice/unavailable":[{"server":"notes","code":"body_too_large"}]}}}`) {
			t.Errorf("it lists %s", got.body)
		}
	})
}
