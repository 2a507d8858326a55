package edge_test

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

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// everyMethod are those that policy opens in a world of two servers.
func everyMethod() []string {
	return []string{
		"completion/complete", "prompts/list", "resources/list", "resources/subscribe", "logging/setLevel",
		"elicitation/create", "roots/list", "sampling/createMessage",
	}
}

// newHub starts an edge before two servers, files and notes, whose clients reach both at one URL.
func newHub(t *testing.T) *world {
	t.Helper()
	w := unbuilt(t, "")
	w.path, w.most, w.beside = "/mcp", 10, unbuilt(t, "")
	w.standing = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, Methods: everyMethod()}
	for _, server := range []*world{w, w.beside} {
		server.own = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "initialize" {
				return answer(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"tasks":{}},"serverInfo":{"name":"x","version":"1"},"instructions":" Mind\nthe gap. "}`), nil
			}
			return answer(r, sound("safe", "pay")), nil
		}
	}
	w.build()
	return w
}

// sound is a list of tools as MCP requires them.
func sound(names ...string) string {
	var tools []string
	for _, name := range names {
		tools = append(tools, `{"name":"`+name+`","inputSchema":{"type":"object"}}`)
	}
	return `{"tools":[` + strings.Join(tools, ",") + `]}`
}

// sentTo are the requests that a server got in the sessions of clients, without their ids.
func sentTo(w *world, got *[]string) {
	before := w.request
	w.request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		*got = append(*got, string(r.Body()))
		return before(ctx, r, events)
	}
}

// One session stands for all servers: it greets for them, and none of them hears of it before it is
// called, with the client's own words but for its names.
func TestManyServersAreOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		var files, notes []string
		sentTo(w, &files)
		sentTo(w.beside, &notes)
		greeting := w.do("POST", "/mcp", able, nil)
		want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"prompts":{"listChanged":true},"resources":{"subscribe":true},"tools":{"listChanged":true}},` +
			`"serverInfo":{"name":"sluice","title":"Sluice","version":""},"instructions":"Tools and prompts are called <server>__<name> here, and URIs begin with mcp.<server>+.\n\nfiles says:\n> Mind\n> the gap.\n\nnotes says:\n> Mind\n> the gap."}}`
		if diff := cmp.Diff(want, greeting.body); diff != "" {
			t.Errorf("it greets (-want +got):\n%s", diff)
		}
		h := http.Header{"Mcp-Session-Id": {greeting.header.Get("Mcp-Session-Id")}}
		list := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`, h)
		if want := `{"jsonrpc":"2.0","id":"l","result":` + sound("files__safe", "files__pay", "notes__safe", "notes__pay") + `}`; list.body != want {
			t.Errorf("it lists %s", list.body)
		}
		if len(w.opened)+len(w.beside.opened) != 0 {
			t.Error("a server heard of a session that nobody has used")
		}
		call := func(name string) string {
			return `{"id":1, "params":{"name":"` + name + `","arguments":{"n":12345678901234567,"name":"files__x"},"_meta":{"progressToken":1,"x":2}},"method":"tools/call","jsonrpc":"2.0"}`
		}
		if got := w.do("POST", "/mcp", call("notes__safe"), h); got.status != 200 || got.body != `{"jsonrpc":"2.0","id":1,"result":{"content":[]}}` {
			t.Errorf("a call: %d %s", got.status, got.body)
		}
		if len(files) != 0 || !slices.Equal(notes, []string{call("safe")}) {
			t.Errorf("files got %s, notes %s", files, notes)
		}
		if told := string(w.beside.opened[0].Body()); !strings.Contains(told, `"name":"c"`) || !strings.Contains(told, `"capabilities":{"elicitation":{"form":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}`) {
			t.Errorf("notes was told %s", told)
		}
		for _, r := range w.of(journal.KindIntent) {
			if r.Server != "notes" || r.Tool != "safe" || r.Session == "" {
				t.Errorf("on record as %+v", r)
			}
		}
		if got := w.do("DELETE", "/mcp", "", h); got.status != 204 {
			t.Errorf("its end: %d", got.status)
		}
		synctest.Wait()
		if w.beside.closed != 1 || w.closed != 0 || w.sessions.Len() != 0 {
			t.Errorf("notes was ended %d times, files %d, %d sessions are left", w.beside.closed, w.closed, w.sessions.Len())
		}
		if got := w.do("POST", "/mcp", call("notes__safe"), h); got.status != 404 {
			t.Errorf("a call after its end: %d %s", got.status, got.body)
		}
	})
}

// What is for no server, or for no one of them, goes nowhere, says why, and is on record.
func TestWhatIsForNoServerGoesNowhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		h := w.connectAs(able)
		for name, tt := range map[string]struct{ method, params, code, says string }{
			"a tool of no server":          {"tools/call", `{"name":"safe"}`, "tool_unknown", "tools are called <server>__<tool> here"},
			"a tool of another":            {"tools/call", `{"name":"nobody__safe"}`, "tool_unknown", `there is no server \"nobody\" here`},
			"a prompt of no server":        {"prompts/get", `{"name":"p"}`, "params_invalid", "prompts are called <server>__<prompt> here"},
			"a resource of no server":      {"resources/read", `{"uri":"file:///a"}`, "params_invalid", "URIs begin with mcp.<server>+ here"},
			"a completion for two servers": {"completion/complete", `{"ref":{"name":"files__p","uri":"mcp.notes+x"}}`, "params_invalid", "more than one server"},
			"a level for all":              {"logging/setLevel", `{"level":"debug"}`, "method_denied", "send it to /mcp/<server>"},
			"a task":                       {"tasks/get", `{"taskId":"files__1"}`, "method_denied", "send it to /mcp/<server>"},
			"a vendor's method":            {"vendor/x", `{"name":"files__p"}`, "method_denied", "send it to /mcp/<server>"},
			"what servers ask":             {"sampling/createMessage", `{"uri":"mcp.files+x"}`, "method_denied", "send it to /mcp/<server>"},
			"a cursor":                     {"tools/list", `{"cursor":"x"}`, "params_invalid", "the cursor is none"},
		} {
			before := len(w.of(journal.KindRefusal))
			got := w.do("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}`, tt.method, tt.params), h)
			if got.status != 200 || got.code() != tt.code || !strings.Contains(got.body, tt.says) {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
			if records := w.of(journal.KindRefusal); len(records) != before+1 || records[before].Code != tt.code || records[before].Server != "" {
				t.Errorf("%s: on record as %+v", name, records[before:])
			}
		}
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/message"}`, h); got.status != 202 || len(w.of(journal.KindRefusal)) != 11 {
			t.Errorf("a notification that no client has: %d", got.status)
		}
		if got := w.do("POST", "/mcp", toolCall, http.Header{"Mcp-Session-Id": h["Mcp-Session-Id"], "Authorization": {"Bearer " + benToken}}); got.status != 404 {
			t.Errorf("N2: somebody else in the session: %d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 404 {
			t.Errorf("the session at one of its servers: %d %s", got.status, got.body)
		}
		if len(w.opened)+len(w.beside.opened) != 0 {
			t.Error("something reached a server")
		}
	})
}

// A client of 2026-07-28 falls back, and its question is no refusal.
func TestManyServersHaveSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
			http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {"server/discover"}})
		if got.status != 404 || got.body != `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"There are sessions here, which initialize opens."}}` || len(w.of(journal.KindRefusal)) != 0 {
			t.Errorf("%d %s", got.status, got.body)
		}
		body, head := modern("tools/list", "", "")
		if got := w.do("POST", "/mcp", body, head); got.status != 400 || !strings.Contains(got.body, `"code":-32022`) || !strings.Contains(got.body, `"supported":["2025-11-25"`) {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

// U1: two servers ask under one id and one token, and each gets the answer to its own question.
func TestU1ManyServersAskByTheirNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		for _, server := range []*world{w, w.beside} {
			before := server.request
			server.request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(sample))
				server.told(3) // that it is in use, progress and the answer
				return before(ctx, r, events)
			}
		}
		h := w.connectAs(able)
		var next []func() string
		for i, server := range []string{"files", "notes"} {
			next = append(next, w.stream(h, strings.Replace(strings.Replace(toolCall, "safe", server+"__safe", 1), `"id":1`, fmt.Sprintf(`"id":%d`, i+1), 1)))
			want := strings.NewReplacer(`"id":7`, `"id":"`+server+`:7"`, `"progressToken":"p"`, `"progressToken":"`+server+`:\"p\""`).Replace(sample)
			if got := next[i](); got != want {
				t.Errorf("the client got %s", got)
			}
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":7,"result":{"of":"nobody"}}`, `{"jsonrpc":"2.0","id":"nobody:7","result":{"of":"nobody"}}`, `{"jsonrpc":"2.0","id":"files:8","result":{"of":"nobody"}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"notes:\"p\"","progress":2}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"files:\"p\"","progress":1}}`,
			`{"jsonrpc":"2.0","id":"notes:7","result":{"of":"notes"}}`, `{"jsonrpc":"2.0","id":"files:7","result":{"of":"files"}}`,
		} {
			if got := w.do("POST", "/mcp", body, h); got.status != 202 {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
		for i, server := range []*world{w, w.beside} {
			name := []string{"files", "notes"}[i]
			want := []string{
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d}}`, i+1),
				`{"jsonrpc":"2.0","id":7,"result":{"of":"` + name + `"}}`,
			}
			if diff := cmp.Diff(want, server.told(3)); diff != "" {
				t.Errorf("%s got (-want +got):\n%s", name, diff)
			}
			if got := next[i](); !strings.Contains(got, `"content":[]`) {
				t.Errorf("the call of %s was answered %s", name, got)
			}
		}
		if n := len(w.of(journal.KindRefusal)); n != 0 {
			t.Errorf("%d refusals", n)
		}
	})
}

// A call that is given up is given up at its server, and what a client's roots are is for those that
// the session has used.
func TestManyServersHearNotifications(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		w.beside.request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			w.beside.told(3)
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		h := w.connectAs(able)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.do("POST", "/mcp", strings.Replace(toolCall, "safe", "notes__safe", 1), h)
		}()
		w.beside.told(1)
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"reason":"x"}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"x"}}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
		} {
			if got := w.do("POST", "/mcp", body, h); got.status != 202 || got.body != "" {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
		<-ended
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
		}
		if diff := cmp.Diff(want, w.beside.told(3)); diff != "" || len(w.notified) != 0 {
			t.Errorf("notes got (-want +got):\n%s, files %v", diff, w.notified)
		}
	})
}

// A server that hangs, and one that is away, take nobody with them and are named.
func TestAServerThatIsAwayIsNamed(t *testing.T) {
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
		"its list is none": {func(r upstream.Request) (upstream.Answer, error) {
			return answer(r, `{"protocolVersion":"2025-11-25","capabilities":{}}`), nil
		}, "upstream_unavailable", 0},
		"it speaks something new": {func(r upstream.Request) (upstream.Answer, error) {
			return answer(r, `{"protocolVersion":"2031-01-01","capabilities":{}}`), nil
		}, "upstream_unavailable", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newHub(t)
				w.beside.own = tt.own
				begin := time.Now()
				h := w.connectAs(able)
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
				time.Sleep(2 * time.Hour) // for who hangs
			})
		})
	}
}

// A list whose method policy has to allow is read of each server, page by page, as the caller's.
func TestListsOfManyServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if strings.Contains(string(r.Body()), `"cursor":"2"`) {
				return answer(r, `{"prompts":[ {"name":"q"} ]}`), nil
			}
			if !strings.Contains(string(r.Body()), `"cursor":"1"`) {
				return answer(r, `{"prompts":[],"nextCursor":"1"}`), nil
			}
			return answer(r, `{"prompts":[{"name":"p","_meta":{"dev.sluice/x":1,"y":2}}],"nextCursor":"2"}`), nil
		}
		w.beside.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return answer(r, `{"prompts":[{"name":"p"}]}`), nil
		}
		h := w.connectAs(able)
		ask := func(method string) string {
			return w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`, h).body
		}
		want := `{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"files__p","_meta":{"y":2}},{"name":"files__q"},{"name":"notes__p"}]}}`
		if got := ask("prompts/list"); got != want {
			t.Errorf("prompts are %s", got)
		}
		if n := len(w.of(journal.KindIntent)); n != 4 {
			t.Errorf("%d intents of 4 pages", n)
		}
		w.beside.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
		}
		w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return answer(r, `{"content":[]}`), nil
		}
		want = `{"jsonrpc":"2.0","id":1,"result":{"resourceTemplates":[],"_meta":{"dev.sluice/unavailable":[{"server":"files","code":"upstream_unavailable"}]}}}`
		if got := ask("resources/templates/list"); got != want {
			t.Errorf("templates are %s", got)
		}
		w.decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		if got := ask("resources/list"); got != `{"jsonrpc":"2.0","id":1,"result":{"resources":[]}}` {
			t.Errorf("what policy denies: %s", got)
		}
	})
}

// T4: on the stream of all is what those servers say that the session has used, without the ids of
// their events, as long as the caller may hear it.
func TestT4ManyServersSayOnOneStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		say, changed, own := make(chan string), new(atomic.Bool), w.own
		w.own = func(r upstream.Request) (upstream.Answer, error) {
			if changed.Load() && r.Method() == "tools/list" {
				return answer(r, sound("new")), nil
			}
			return own(r)
		}
		w.beside.listen = func(ctx context.Context, to upstream.Listener) error {
			to.Opened()
			for {
				select {
				case text := <-say:
					if err := to.Event(upstream.Event{ID: "e1", Message: []byte(text)}); err != nil {
						return err
					}
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		h := w.connectAs(able)
		lines, hangUp := w.hear(h)
		for _, server := range []string{"files", "notes"} {
			w.do("POST", "/mcp", strings.Replace(toolCall, "safe", server+"__safe", 1), h)
		}
		for _, text := range []string{
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`, `{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/message","params":{"x":1.50}}`,
		} {
			say <- text
		}
		want := []string{
			"event: message", `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"mcp.notes+a:b"}}`, "",
			"event: message", `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"x":1.50}}`, "",
		}
		if diff := cmp.Diff(want, heard(lines)); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
		changed.Store(true)
		time.Sleep(6 * time.Minute) // by then it is listed anew for who asks
		w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
		got := slices.DeleteFunc(heard(lines), func(line string) bool { return line == "" || strings.HasPrefix(line, ":") })
		if diff := cmp.Diff([]string{"event: message", `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}, got); diff != "" {
			t.Errorf("of a list that has changed was heard (-want +got):\n%s", diff)
		}
		w.stands(&policyv1.CheckServerResponse{})
		say <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"x":2}}`
		if got := heard(lines); len(got) != 0 {
			t.Errorf("who may come by nothing hears %q", got)
		}
		hangUp()
		synctest.Wait()
		w.do("DELETE", "/mcp", "", h)
	})
}

// A list is one whatever of the servers adds nothing to it, and what a reader could refuse it for is
// left out of it.
func TestAListOfManyServersIsOne(t *testing.T) {
	t.Parallel()
	broken := `{"tools":[{"name":"safe","inputSchema":{"type":"object"}},{"name":"x"},{"name":"y","inputSchema":true},{"inputSchema":{}}]}`
	for name, tt := range map[string]struct{ files, notes, want string }{
		"the first is empty":  {sound(), sound("a"), sound("notes__a")},
		"the last is empty":   {sound("a"), sound(), sound("files__a")},
		"both are empty":      {sound(), sound(), sound()},
		"the first is hidden": {sound("secret"), sound("a", "secret"), sound("notes__a")},
		"one is broken":       {broken, sound("a"), sound("files__safe", "notes__a")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newHub(t)
				for server, list := range map[*world]string{w: tt.files, w.beside: tt.notes} {
					own := server.own
					server.own = func(r upstream.Request) (upstream.Answer, error) {
						if r.Method() == "tools/list" {
							return answer(r, list), nil
						}
						return own(r)
					}
				}
				w.standing.HidesNone = false
				h := w.connectAs(able)
				if got := w.do("POST", "/mcp/", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h); got.body != `{"jsonrpc":"2.0","id":1,"result":`+tt.want+`}` {
					t.Errorf("it lists %s", got.body)
				}
			})
		})
	}
}

// switched has a server be away until it is there.
func switched(w *world) *atomic.Bool {
	there, own := new(atomic.Bool), w.own
	w.own = func(r upstream.Request) (upstream.Answer, error) {
		if !there.Load() {
			return upstream.Answer{}, upstream.ErrNeverSent
		}
		return own(r)
	}
	return there
}

// A server that was away is offered from the start, listed as it was, and told of when it is known.
func TestAServerComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		there := switched(w.beside)
		w.own = func(r upstream.Request) (upstream.Answer, error) {
			return answer(r, map[string]string{"initialize": `{"protocolVersion":"2025-11-25","capabilities":{}}`, "tools/list": sound("safe")}[r.Method()]), nil
		}
		greeting := w.do("POST", "/mcp", able, nil)
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
		list() // by which the server is asked: between a client's list and its stream nothing is lost
		lines, hangUp := w.hear(h)
		defer hangUp()
		synctest.Wait()
		if got := list(); !strings.Contains(got, "notes__safe") || strings.Contains(got, "unavailable") {
			t.Errorf("once it is back it lists %s", got)
		}
		heard(lines)
		there.Store(false)
		time.Sleep(10 * time.Minute)
		if got := list(); !strings.Contains(got, "notes__safe") || !strings.Contains(got, `"dev.sluice/unavailable":[{"server":"notes"`) {
			t.Errorf("while it is away again it lists %s", got)
		}
		if got := slices.DeleteFunc(heard(lines), func(line string) bool { return line == "" || strings.HasPrefix(line, ":") }); len(got) != 0 {
			t.Errorf("of what has not changed was heard %q", got)
		}
	})
}

// A client that has listed is told of what has changed since then, when it listens, and of all lists
// where a server is known that was not.
func TestNothingIsLostBetweenAListAndAStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		there := switched(w.beside)
		h := w.connectAs(able)
		w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
		there.Store(true)
		time.Sleep(time.Minute)
		w.connectAs(able) // another client's greeting has the server asked
		lines, hangUp := w.hear(h)
		defer hangUp()
		got := slices.DeleteFunc(heard(lines), func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		want := []string{
			`data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `data: {"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
			`data: {"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
		w.stands(&policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, Methods: everyMethod(), PolicyRevision: "next"})
		time.Sleep(time.Minute)
		got = slices.DeleteFunc(heard(lines), func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		if diff := cmp.Diff(want[:1], got); diff != "" {
			t.Errorf("of another policy was heard (-want +got):\n%s", diff)
		}
	})
}

// A session with a server lasts as long as the one that it is a part of, which counts as one.
func TestMembersLastAsLongAsTheirHub(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		ctx, cancel := context.WithCancel(t.Context())
		swept := make(chan error)
		go func() { swept <- w.sessions.Run(ctx) }()
		h := w.connectAs(able)
		call := strings.Replace(toolCall, "safe", "notes__safe", 1)
		w.do("POST", "/mcp", call, h)
		for range 4 { // it is not idle, though its member is
			time.Sleep(40 * time.Minute)
			w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, h)
		}
		w.do("POST", "/mcp", call, h)
		if n := w.sessions.Len(); n != 1 || len(w.beside.opened) != 1 {
			t.Errorf("%d sessions, of which notes has heard %d times", n, len(w.beside.opened))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := w.sessions.Len(); n != 0 || w.beside.closed != 1 {
			t.Errorf("%d sessions are left, notes was told %d times", n, w.beside.closed)
		}
		cancel()
		<-swept
	})
}

// What a list of all servers costs has bounds: one that gives page after page, and one whose list a
// person has to approve, hold nobody up for long, and are named.
func TestAListOfManyServersEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		pages := 0
		w.beside.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			pages++
			time.Sleep(3 * time.Second)
			return answer(r, fmt.Sprintf(`{"prompts":[{"name":"p%d"}],"nextCursor":"%d"}`, pages, pages)), nil
		}
		w.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return answer(r, `{"prompts":[{"name":"p"},{"title":"no name"},7]}`), nil
		}
		h := w.connectAs(able)
		begin := time.Now()
		body := `{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"_meta":{"dev.sluice/run":"r-1"}}}`
		got := w.do("POST", "/mcp", body, h)
		want := `{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"files__p"}],"_meta":{"dev.sluice/unavailable":[{"server":"notes","code":"upstream_timeout"}]}}}`
		if took := time.Since(begin); got.body != want || took > 15*time.Second {
			t.Errorf("after %v: %s", took, got.body)
		}
		for _, r := range w.of(journal.KindIntent) {
			if r.Run != "r-1" {
				t.Errorf("a page of the run %q", r.Run)
			}
		}
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list","params":{"cursor":"2"}}`, h); got.code() != "params_invalid" {
			t.Errorf("a cursor: %s", got.body)
		}
	})
}

// A call is held to the definition that the client was shown, whatever the server lists by then.
func TestA4AHubHoldsToWhatItHasShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		changed, own := new(atomic.Bool), w.beside.own
		w.beside.own = func(r upstream.Request) (upstream.Answer, error) {
			if changed.Load() && r.Method() == "tools/list" {
				return answer(r, `{"tools":[{"name":"safe","description":"other","inputSchema":{"type":"object"}}]}`), nil
			}
			return own(r)
		}
		h := w.connectAs(able)
		list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
		call := strings.Replace(toolCall, "safe", "notes__safe", 1)
		w.do("POST", "/mcp", list, h)
		w.do("POST", "/mcp", call, h)
		changed.Store(true)
		time.Sleep(6 * time.Minute)
		other := w.connectAs(able) // by which it is listed anew
		w.do("POST", "/mcp", list, other)
		w.do("POST", "/mcp", call, h)
		w.do("POST", "/mcp", call, other)
		var digests []string
		for _, d := range w.judgedBy() {
			digests = append(digests, fmt.Sprintf("%x", d))
		}
		if len(digests) != 3 || digests[0] == "" || digests[0] != digests[1] || digests[1] == digests[2] {
			t.Errorf("the calls were judged by %q", digests)
		}
	})
}

// U1: a server that says names without an end takes nothing but its own answer with it, and one that
// lists pages without an end is asked for a few.
func TestU1AServerSaysNamesWithoutAnEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newHub(t)
		pages := 0
		w.beside.request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "tools/call" {
				return answer(r, `{"content":[`+strings.TrimSuffix(strings.Repeat(`{"uri":"a"},`, 10_001), ",")+`]}`), nil
			}
			pages++
			return answer(r, fmt.Sprintf(`{"prompts":[{"name":"p"}],"nextCursor":"%d"}`, pages)), nil
		}
		h := w.connectAs(able)
		if got := w.do("POST", "/mcp", strings.Replace(toolCall, "safe", "notes__safe", 1), h); got.status != 500 {
			t.Errorf("its answer: %d, %d bytes", got.status, len(got.body))
		}
		got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"prompts/list"}`, h)
		if pages != 20 || !strings.Contains(got.body, `"dev.sluice/unavailable":[{"server":"files"`) || !strings.Contains(got.body, `{"server":"notes","code":"body_too_large"}`) {
			t.Errorf("after %d pages: %s", pages, got.body)
		}
	})
}

// A program that nobody uses is not started for a list.
func TestAListStartsNoProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := unbuilt(t, "")
		w.path, w.most, w.beside = "/mcp", 10, unbuilt(t, "stdio")
		var asked atomic.Int32
		w.beside.own = func(r upstream.Request) (upstream.Answer, error) {
			asked.Add(1)
			if r.Method() == "initialize" {
				return answer(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}}}`), nil
			}
			return answer(r, sound("safe")), nil
		}
		w.build()
		h := w.connectAs(able)
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
