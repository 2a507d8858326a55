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

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

func everyMethod() []string {
	return []string{
		"completion/complete", "prompts/list", "resources/list", "resources/subscribe", "logging/setLevel",
		"elicitation/create", "roots/list", "sampling/createMessage",
	}
}

func newAllServers(t *testing.T) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, "")
	w.path, w.MaxSessions, w.notes = "/mcp", 10, newTestServer(t, "")
	w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: everyMethod()}
	for _, server := range []*gatewaytest.Server{w.files, w.notes} {
		server.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "initialize" {
				return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"prompts":{"listChanged":true},"resources":{"subscribe":true},"logging":{},"tasks":{}},"serverInfo":{"name":"x","version":"1"},"instructions":" Mind\nthe gap. "}`), nil
			}
			return gatewaytest.Result(r, toolList("safe", "pay")), nil
		}
	}
	w.build()
	return w
}

func toolList(names ...string) string {
	var tools []string
	for _, name := range names {
		tools = append(tools, `{"name":"`+name+`","inputSchema":{"type":"object"}}`)
	}
	return `{"tools":[` + strings.Join(tools, ",") + `]}`
}

func recordRequests(server *gatewaytest.Server, got *[]string) {
	before := server.Request
	server.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		*got = append(*got, string(r.Body()))
		return before(ctx, r, events)
	}
}

// At the URL for all servers, one session serves all servers. The gateway answers initialize itself, and contacts a
// server only when the client calls that server. The server receives the bytes that the client has sent, except that
// combined names are replaced with the server's own names.
func TestAllServers_AppearAsOneServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		var files, notes []string
		recordRequests(w.files, &files)
		recordRequests(w.notes, &notes)
		greeting := w.do("POST", "/mcp", initializeWithAll, nil)
		want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"prompts":{"listChanged":true},"resources":{"subscribe":true},"tools":{"listChanged":true}},` +
			`"serverInfo":{"name":"sluice","title":"Sluice","version":""},"instructions":"Tools and prompts are called <server>__<name> here, and URIs begin with mcp.<server>+.\n\nfiles says:\n> Mind\n> the gap.\n\nnotes says:\n> Mind\n> the gap."}}`
		if diff := cmp.Diff(want, greeting.body); diff != "" {
			t.Errorf("it greets (-want +got):\n%s", diff)
		}
		h := http.Header{"Mcp-Session-Id": {greeting.header.Get("Mcp-Session-Id")}}
		list := w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":"l","method":"tools/list"}`, h)
		if want := `{"jsonrpc":"2.0","id":"l","result":` + toolList("files__safe", "files__pay", "notes__safe", "notes__pay") + `}`; list.body != want {
			t.Errorf("it lists %s", list.body)
		}
		if len(w.files.Opened())+len(w.notes.Opened()) != 0 {
			t.Error("a server heard of a session that was not used")
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
		if sent := string(w.notes.Opened()[0].Body()); !strings.Contains(sent, `"name":"c"`) || !strings.Contains(sent, `"capabilities":{"elicitation":{"form":{}},"roots":{"listChanged":true},"sampling":{"tools":{}}}`) {
			t.Errorf("notes got %s", sent)
		}
		for _, r := range w.Journal.Records(journal.KindIntent) {
			if r.Server != "notes" || r.Tool != "safe" || r.Session == "" {
				t.Errorf("on record as %+v", r)
			}
		}
		if got := w.do("DELETE", "/mcp", "", h); got.status != 204 {
			t.Errorf("its end: %d", got.status)
		}
		synctest.Wait()
		if w.notes.Closed() != 1 || w.files.Closed() != 0 || w.Sessions.Len() != 0 {
			t.Errorf("notes was ended %d times, files %d, %d sessions are left", w.notes.Closed(), w.files.Closed(), w.Sessions.Len())
		}
		if got := w.do("POST", "/mcp", call("notes__safe"), h); got.status != 404 {
			t.Errorf("a call after its end: %d %s", got.status, got.body)
		}
	})
}

// A message that does not contain the name of exactly one server is not sent to any server. The client receives the
// reason, and the refusal is recorded.
func TestAllServers_RefusesMessagesThatNameNoServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		h := w.connectAs(initializeWithAll)
		for name, tt := range map[string]struct{ method, params, code, says string }{
			"a tool of no server":          {"tools/call", `{"name":"safe"}`, "tool_unknown", "tools are called <server>__<tool> here"},
			"a tool of another":            {"tools/call", `{"name":"none__safe"}`, "tool_unknown", `there is no server \"none\" here`},
			"a prompt of no server":        {"prompts/get", `{"name":"p"}`, "params_invalid", "prompts are called <server>__<prompt> here"},
			"a resource of no server":      {"resources/read", `{"uri":"file:///a"}`, "params_invalid", "URIs begin with mcp.<server>+ here"},
			"a completion for two servers": {"completion/complete", `{"ref":{"name":"files__p","uri":"mcp.notes+x"}}`, "params_invalid", "more than one server"},
			"a level for all":              {"logging/setLevel", `{"level":"debug"}`, "method_denied", "send it to /mcp/<server>"},
			"a task":                       {"tasks/get", `{"taskId":"files__1"}`, "method_denied", "send it to /mcp/<server>"},
			"a vendor's method":            {"vendor/x", `{"name":"files__p"}`, "method_denied", "send it to /mcp/<server>"},
			"what servers ask":             {"sampling/createMessage", `{"uri":"mcp.files+x"}`, "method_denied", "send it to /mcp/<server>"},
			"a cursor":                     {"tools/list", `{"cursor":"x"}`, "params_invalid", "the cursor was not given"},
		} {
			before := len(w.Journal.Records(journal.KindRefusal))
			got := w.do("POST", "/mcp", fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"%s","params":%s}`, tt.method, tt.params), h)
			if got.status != 200 || got.code() != tt.code || !strings.Contains(got.body, tt.says) {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
			if records := w.Journal.Records(journal.KindRefusal); len(records) != before+1 || records[before].Code != tt.code || records[before].Server != "" {
				t.Errorf("%s: on record as %+v", name, records[before:])
			}
		}
		if got := w.do("POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/message"}`, h); got.status != 202 || len(w.Journal.Records(journal.KindRefusal)) != 11 {
			t.Errorf("a notification that no client has: %d", got.status)
		}
		if got := w.do("POST", "/mcp", toolCall, http.Header{"Mcp-Session-Id": h["Mcp-Session-Id"], "Authorization": {"Bearer " + benToken}}); got.status != 404 {
			t.Errorf("N2: another caller in the session: %d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 404 {
			t.Errorf("the session at one of its servers: %d %s", got.status, got.body)
		}
		if len(w.files.Opened())+len(w.notes.Opened()) != 0 {
			t.Error("something reached a server")
		}
	})
}

// Case U1. Two servers send requests with the same id and progress token. Each server receives the response to its own
// request.
func TestAllServers_ServerRequestsHaveCombinedIDs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		for _, server := range []*gatewaytest.Server{w.files, w.notes} {
			before := server.Request
			server.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(sample))
				server.Notified(3) // notifications/initialized, the progress notification and the response
				return before(ctx, r, events)
			}
		}
		h := w.connectAs(initializeWithAll)
		var next []func() string
		for i, server := range []string{"files", "notes"} {
			next = append(next, w.callStream(h, strings.Replace(strings.Replace(toolCall, "safe", server+"__safe", 1), `"id":1`, fmt.Sprintf(`"id":%d`, i+1), 1)))
			want := strings.NewReplacer(`"id":7`, `"id":"`+server+`:7"`, `"progressToken":"p"`, `"progressToken":"`+server+`:\"p\""`).Replace(sample)
			if got := next[i](); got != want {
				t.Errorf("the client got %s", got)
			}
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":7,"result":{"of":"none"}}`, `{"jsonrpc":"2.0","id":"none:7","result":{"of":"none"}}`, `{"jsonrpc":"2.0","id":"files:8","result":{"of":"none"}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"notes:\"p\"","progress":2}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"files:\"p\"","progress":1}}`,
			`{"jsonrpc":"2.0","id":"notes:7","result":{"of":"notes"}}`, `{"jsonrpc":"2.0","id":"files:7","result":{"of":"files"}}`,
		} {
			if got := w.do("POST", "/mcp", body, h); got.status != 202 {
				t.Errorf("%s: %d %s", body, got.status, got.body)
			}
		}
		for i, server := range []*gatewaytest.Server{w.files, w.notes} {
			name := []string{"files", "notes"}[i]
			want := []string{
				`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
				fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":%d}}`, i+1),
				`{"jsonrpc":"2.0","id":7,"result":{"of":"` + name + `"}}`,
			}
			if diff := cmp.Diff(want, server.Notified(3)); diff != "" {
				t.Errorf("%s got (-want +got):\n%s", name, diff)
			}
			if got := next[i](); !strings.Contains(got, `"content":[]`) {
				t.Errorf("the call of %s was answered %s", name, got)
			}
		}
		if n := len(w.Journal.Records(journal.KindRefusal)); n != 0 {
			t.Errorf("%d refusals", n)
		}
	})
}

// If the client cancels a call, the gateway sends the cancellation to the called server. If the client's roots change,
// the gateway notifies all servers that the session has used.
func TestAllServers_NotificationsReachMembers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		w.notes.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			w.notes.Notified(3)
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		h := w.connectAs(initializeWithAll)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.do("POST", "/mcp", strings.Replace(toolCall, "safe", "notes__safe", 1), h)
		}()
		w.notes.Notified(1)
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
		if diff := cmp.Diff(want, w.notes.Notified(3)); diff != "" || len(w.files.Notified(0)) != 0 {
			t.Errorf("notes got (-want +got):\n%s, files %v", diff, w.files.Notified(0))
		}
	})
}

// Case T4. The client's stream at the URL for all servers contains the messages that the caller may receive from the
// servers that the session has used. The gateway removes the servers' event ids.
func TestAllServers_StreamsAreJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		say, changed, own := make(chan string), new(atomic.Bool), w.files.Discovery
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if changed.Load() && r.Method() == "tools/list" {
				return gatewaytest.Result(r, toolList("new")), nil
			}
			return own(r)
		}
		w.notes.Listen = func(ctx context.Context, to upstream.Listener) error {
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
		h := w.connectAs(initializeWithAll)
		lines, hangUp := w.openStream(h)
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
			"event: message", `data: {"jsonrpc":"2.0","method":"notifications/message","params":{"x":1.50,"logger":"notes"}}`, "",
		}
		if diff := cmp.Diff(want, readLines(lines)); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
		changed.Store(true)
		time.Sleep(6 * time.Minute) // after this time the next request lists the server again
		w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
		got := slices.DeleteFunc(readLines(lines), func(line string) bool { return line == "" || strings.HasPrefix(line, ":") })
		if diff := cmp.Diff([]string{"event: message", `data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`}, got); diff != "" {
			t.Errorf("of a list that has changed was heard (-want +got):\n%s", diff)
		}
		w.setAccess(&policyv1.CheckServerResponse{HidesNone: true})
		say <- `{"jsonrpc":"2.0","method":"notifications/message","params":{"x":2}}`
		if got := readLines(lines); len(got) != 0 {
			t.Errorf("a caller that may use nothing gets %q", got)
		}
		hangUp()
		synctest.Wait()
		w.do("DELETE", "/mcp", "", h)
	})
}

// When a client opens its stream, the gateway notifies it of each list that has changed since the client last read that
// list. If the gateway has discovered a further server meanwhile, it notifies the client of all lists.
func TestAllServers_ChangeBetweenListAndStreamIsNotified(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		there := switchAvailability(w.notes)
		h := w.connectAs(initializeWithAll)
		w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, h)
		there.Store(true)
		time.Sleep(time.Minute)
		w.connectAs(initializeWithAll) // the gateway lists the server when another client sends initialize
		lines, hangUp := w.openStream(h)
		defer hangUp()
		got := slices.DeleteFunc(readLines(lines), func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		want := []string{
			`data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`, `data: {"jsonrpc":"2.0","method":"notifications/prompts/list_changed"}`,
			`data: {"jsonrpc":"2.0","method":"notifications/resources/list_changed"}`,
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("heard (-want +got):\n%s", diff)
		}
		w.setAccess(&policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: everyMethod(), PolicyRevision: "next"})
		time.Sleep(time.Minute)
		got = slices.DeleteFunc(readLines(lines), func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		if diff := cmp.Diff(want[:1], got); diff != "" {
			t.Errorf("of another policy was heard (-want +got):\n%s", diff)
		}
	})
}

// An aggregate session has a member session for each server that it uses. A member session lasts as long as its
// aggregate session. An aggregate session and its member sessions count as one session.
func TestAllServers_MembersEndWithTheAggregateSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		ctx, cancel := context.WithCancel(t.Context())
		swept := make(chan error)
		go func() { swept <- w.Sessions.Run(ctx) }()
		h := w.connectAs(initializeWithAll)
		call := strings.Replace(toolCall, "safe", "notes__safe", 1)
		w.do("POST", "/mcp", call, h)
		for range 4 { // the aggregate session is in use, but its member session is idle
			time.Sleep(40 * time.Minute)
			w.do("POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, h)
		}
		w.do("POST", "/mcp", call, h)
		if n := w.Sessions.Len(); n != 1 || len(w.notes.Opened()) != 1 {
			t.Errorf("%d sessions, of which notes has heard %d times", n, len(w.notes.Opened()))
		}
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		if n := w.Sessions.Len(); n != 0 || w.notes.Closed() != 1 {
			t.Errorf("%d sessions are left, the server notes has had %d sessions closed", n, w.notes.Closed())
		}
		cancel()
		<-swept
	})
}

// Case A4. The policy service evaluates a call with the tool definition that the client has received, even if the
// server now lists a different definition.
func TestAllServers_CallsAreDecidedByTheListedDefinition(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		changed, own := new(atomic.Bool), w.notes.Discovery
		w.notes.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if changed.Load() && r.Method() == "tools/list" {
				return gatewaytest.Result(r, `{"tools":[{"name":"safe","description":"other","inputSchema":{"type":"object"}}]}`), nil
			}
			return own(r)
		}
		h := w.connectAs(initializeWithAll)
		list := `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`
		call := strings.Replace(toolCall, "safe", "notes__safe", 1)
		w.do("POST", "/mcp", list, h)
		w.do("POST", "/mcp", call, h)
		changed.Store(true)
		time.Sleep(6 * time.Minute)
		other := w.connectAs(initializeWithAll) // makes the gateway list the server again
		w.do("POST", "/mcp", list, other)
		w.do("POST", "/mcp", call, h)
		w.do("POST", "/mcp", call, other)
		var digests []string
		for _, d := range w.Policy.Decided() {
			digests = append(digests, fmt.Sprintf("%x", d.Call.GetDefinitionDigest()))
		}
		if len(digests) != 3 || digests[0] == "" || digests[0] != digests[1] || digests[1] == digests[2] {
			t.Errorf("the calls were judged by %q", digests)
		}
	})
}
