package mcpserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// newModernAllServers starts a gateway with two servers. The server files supports only revision 2026-07-28, and the
// server notes supports only revisions that use sessions.
func newModernAllServers(t *testing.T) *testGateway {
	t.Helper()
	w := prepareTestGateway(t, "http")
	w.path, w.MaxSessions, w.notes = "/mcp", 10, newTestServer(t, "http")
	w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: everyMethod()}
	w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "server/discover" {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
		}
		return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"resources":{"subscribe":true}},"resultType":"complete"}`), nil
	}
	w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "tools/list" {
			return w.files.Open(r)
		}
		return gatewaytest.Result(r, `{"tools":[{"name":"safe","inputSchema":{"type":"object","properties":{"r":{"type":"string","x-mcp-header":"Region"}}}}]}`), nil
	}
	w.notes.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "server/discover" {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), upstream.ErrRevision
		}
		return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":{"subscribe":true}},"serverInfo":{"name":"x","version":"1"},"instructions":"Mind."}`), nil
	}
	w.notes.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "tools/list" {
			return w.notes.Open(r)
		}
		return gatewaytest.Result(r, toolList("safe")), nil
	}
	w.build()
	return w
}

func (w *testGateway) doAllServers(method, name, params string) httpResponse {
	w.t.Helper()
	body, head := modern(method, name, params)
	return w.do("POST", "/mcp", body, head)
}

// A client of revision 2026-07-28 uses two servers at one URL. One server uses sessions, and the other does not. The
// client discovers the servers with one request, lists their tools, and calls the tools by their combined names, which
// also appear in the headers.
func TestAllServers_ModernClientNeedsNoSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		var files, notes []string
		var mirrored []upstream.Header
		recordRequests(w.files, &files)
		before := w.files.Request
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			mirrored = append(mirrored, r.Mirrored...)
			return before(ctx, r, events)
		}
		recordRequests(w.notes, &notes)
		want := `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","supportedVersions":["2026-07-28","2025-11-25","2025-06-18","2025-03-26","2024-11-05"],` +
			`"capabilities":{"prompts":{},"resources":{"subscribe":true},"tools":{"listChanged":true}},` +
			`"instructions":"Tools and prompts are called <server>__<name> here, and URIs begin with mcp.<server>+.\n\nnotes says:\n> Mind.",` +
			`"_meta":{"io.modelcontextprotocol/serverInfo":{"name":"sluice","title":"Sluice","version":""}}}}`
		if diff := cmp.Diff(want, w.doAllServers("server/discover", "", "").body); diff != "" {
			t.Errorf("they greet (-want +got):\n%s", diff)
		}
		list := w.doAllServers("tools/list", "", "")
		if !strings.HasPrefix(list.body, `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"files__safe",`) || !strings.Contains(list.body, `{"name":"notes__safe"`) {
			t.Errorf("they list %s", list.body)
		}
		if len(w.files.Opened())+len(w.notes.Opened()) != 0 {
			t.Error("a server heard of a client that has only looked")
		}
		body, head := modern("tools/call", "files__safe", `"name":"files__safe","arguments":{"r":"eu","n":12345678901234567}`)
		head.Set("Mcp-Param-Region", "eu")
		if got := w.do("POST", "/mcp", body, head); got.status != 200 || got.body != `{"jsonrpc":"2.0","id":7,"result":{"content":[]}}` {
			t.Errorf("a call of files: %d %s", got.status, got.body)
		}
		if got := w.doAllServers("tools/call", "notes__safe", `"name":"notes__safe"`); got.status != 200 || !strings.Contains(got.body, `"resultType":"complete"`) {
			t.Errorf("a call of notes: %d %s", got.status, got.body)
		}
		if len(files) != 1 || !strings.Contains(files[0], `"name":"safe","arguments":{"r":"eu","n":12345678901234567}`) || len(mirrored) != 1 || mirrored[0].Value != "eu" {
			t.Errorf("files got %s, with the headers %+v", files, mirrored)
		}
		if len(notes) != 1 || !strings.Contains(notes[0], `"name":"safe"`) || strings.Contains(notes[0], "io.modelcontextprotocol") {
			t.Errorf("notes got %s", notes)
		}
		for i, r := range w.Journal.Records(journal.KindIntent) {
			if r.Server != []string{"files", "notes"}[i] || r.Tool != "safe" || r.Session != "" {
				t.Errorf("on record as %+v", r)
			}
		}
	})
}

// Case T1. A message to the URL for all servers is refused if the combined name in its headers differs from the
// combined name in its body.
func TestAllServers_HeadersMustAgreeWithTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		var files []string
		recordRequests(w.files, &files)
		for name, tt := range map[string]struct {
			change func(http.Header)
			status int
			want   string
		}{
			"the server's own name": {func(h http.Header) { h.Set("Mcp-Name", "safe") }, 400, `"code":-32020`},
			"another server":        {func(h http.Header) { h.Set("Mcp-Name", "notes__safe") }, 400, `"code":-32020`},
			"no name":               {func(h http.Header) { h.Del("Mcp-Name") }, 400, `"code":-32020`},
			"another method":        {func(h http.Header) { h.Set("Mcp-Method", "tools/list") }, 400, `"code":-32020`},
			"another argument":      {func(h http.Header) { h.Set("Mcp-Param-Region", "us") }, 400, `"code":-32020`},
			"a session besides":     {func(h http.Header) { h.Set("Mcp-Session-Id", "x") }, 400, `"code":-32022`},
		} {
			body, head := modern("tools/call", "files__safe", `"name":"files__safe","arguments":{"r":"eu"}`)
			head.Set("Mcp-Param-Region", "eu")
			tt.change(head)
			if got := w.do("POST", "/mcp", body, head); got.status != tt.status || !strings.Contains(got.body, tt.want) {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		for name, want := range map[string]string{"nobody__safe": "there is no server", "safe": "tools are called"} {
			if got := w.doAllServers("tools/call", name, `"name":"`+name+`"`); got.status != 200 || !strings.Contains(got.body, want) {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		for _, method := range []string{"tasks/get", "vendor/x"} {
			body, head := modern(method, "t", `"taskId":"t"`)
			if got := w.do("POST", "/mcp", body, head); !strings.Contains(got.body, "send it to /mcp/<server>") {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
		if len(files) != 0 || len(w.Journal.Records(journal.KindIntent)) != 0 {
			t.Errorf("files got %s", files)
		}
	})
}

// Case U1. The text of each request in a server's answer contains the server's name. The client's response is sent to
// the server that sent the request, with the server's original names.
func TestAllServers_InputRequestsAreDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		var files []string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if files = append(files, string(r.Body())); len(files) > 1 {
				return gatewaytest.Result(r, `{"resultType":"complete","content":[{"type":"resource_link","uri":"file:///a","name":"a"}]}`), nil
			}
			return gatewaytest.Result(r, `{"resultType":"input_required","inputRequests":{"f":{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{}}}},"requestState":"z"}`), nil
		}
		said := make(chan string, 1)
		w.notes.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"elicitation/create","params":{"message":"why?","requestedSchema":{"type":"object","properties":{}}}}`))
			said <- w.notes.Notified(2)[1]
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		got := w.doAllServers("tools/call", "files__safe", `"name":"files__safe"`)
		if !strings.Contains(got.body, `"message":"files asks: who?"`) || !strings.Contains(got.body, `"requestState":"z"`) {
			t.Errorf("files asks %s", got.body)
		}
		got = w.doAllServers("tools/call", "files__safe", `"name":"files__safe","requestState":"z","inputResponses":{"f":{"action":"accept","content":{}}}`)
		if !strings.Contains(got.body, `"uri":"mcp.files+file:///a"`) || len(files) != 2 || !strings.Contains(files[1], `"inputResponses":{"f":{"action":"accept","content":{}}}`) {
			t.Errorf("it answers %s to %s", got.body, files)
		}
		got = w.doAllServers("tools/call", "notes__safe", `"name":"notes__safe"`)
		if !strings.Contains(got.body, `"message":"notes asks: why?"`) || !strings.Contains(got.body, `"resultType":"input_required"`) {
			t.Errorf("notes asks %s", got.body)
		}
		between := func(begin string) string {
			_, rest, _ := strings.Cut(got.body, begin)
			text, _, _ := strings.Cut(rest, `"`)
			return text
		}
		state, key := between(`"requestState":"`), between(`"inputRequests":{"`)
		got = w.doAllServers("tools/call", "notes__safe", `"name":"notes__safe","requestState":"`+state+`","inputResponses":{"`+key+`":{"action":"accept","content":{}}}`)
		if sent := <-said; !strings.Contains(sent, `"action":"accept"`) || !strings.Contains(got.body, `"resultType":"complete"`) {
			t.Errorf("notes got %s, and answers %s", sent, got.body)
		}
	})
}

func TestAllServers_CallWaitsInRoundTrips(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
		waits := newWaitApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		waits.Terms = w.Policy.Decision.GetApproval()
		w.Approvals.Set(waits)
		for _, state := range []string{"", `"requestState":"sluice-leg.1.a-1",`} {
			body, head := modern("tools/call", "files__safe", state+`"name":"files__safe"`)
			body = strings.Replace(strings.Replace(body, `"name":"c"`, `"name":"patient"`, 1), `"tasks":{}`, `"extensions":{"io.modelcontextprotocol/tasks":{}}`, 1)
			if got := w.do("POST", "/mcp", body, head); !strings.Contains(got.body, `"requestState":"sluice-leg.`) {
				t.Errorf("%s: %s", state, got.body)
			}
		}
	})
}

// The list contains the elements of a server that uses sessions and of one that does not. Each server receives the
// request in a revision that it supports.
func TestAllServers_ListsHaveServersOfBothEras(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		var files, notes []string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			files = append(files, string(r.Body()))
			if r.Method() == "resources/list" {
				return gatewaytest.Result(r, `{"resultType":"complete","resources":[],"ttlMs":0,"cacheScope":"public"}`), nil
			}
			return gatewaytest.Result(r, `{"resultType":"complete","prompts":[{"name":"p"}],"ttlMs":60000,"cacheScope":"public"}`), nil
		}
		w.notes.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			notes = append(notes, string(r.Body()))
			return gatewaytest.Result(r, `{"resources":[{"name":"a","uri":"file:///a"}]}`), nil
		}
		for method, want := range map[string]string{
			"prompts/list":   `"resultType":"complete","ttlMs":0,"cacheScope":"private","prompts":[{"name":"files__p"}]}}`,
			"resources/list": `"resultType":"complete","ttlMs":0,"cacheScope":"private","resources":[{"name":"notes: a","uri":"mcp.notes+file:///a"}]}}`,
		} {
			if got := w.doAllServers(method, "", ""); got.status != 200 || !strings.HasSuffix(got.body, want) {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
			if got := w.doAllServers(method, "", `"requestState":"sluice-leg.1.a-1"`); got.code() != "params_invalid" {
				t.Errorf("%s with what goes on: %s", method, got.body)
			}
		}
		if len(files) != 2 || !strings.Contains(files[0], "io.modelcontextprotocol/protocolVersion") || len(notes) != 1 || strings.Contains(notes[0], "io.modelcontextprotocol/protocolVersion") {
			t.Errorf("files was asked %s, and notes %s", files, notes)
		}
	})
}

// Case T4. A client has one subscription. It receives updates of two servers' resources under combined names, and a
// notification when the gateway detects that a list has changed. The policy service first evaluates each resource.
func TestAllServers_SubscriptionForwardsWhatItNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		asked := make(chan string, 4)
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			asked <- string(r.Body())
			for _, said := range []string{
				`subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}`, `resources/updated","params":{"uri":"file:///a"}`,
				`resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":99},"uri":"file:///a"}`,
				`resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"uri":"file:///b"}`,
				`prompts/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}`, `tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}`,
				`resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"uri":"file:///a"}`,
			} {
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/` + said + `}`))
			}
			<-ctx.Done()
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, ctx.Err())
		}
		body, head := modern("subscriptions/listen", "", `"notifications":{"toolsListChanged":true,"resourceSubscriptions":["mcp.files+file:///a","mcp.none+file:///a","file:///a","files+file:///a","mcp.files+"]}`)
		next, hangUp := w.callStreamUntil(head, body)
		defer hangUp()
		for _, want := range []string{
			`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"toolsListChanged":true,"resourceSubscriptions":["mcp.files+file:///a"]}}}`,
			`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"uri":"mcp.files+file:///a"}}`,
		} {
			if got := next(); got != want {
				t.Errorf("the client got %s, want %s", got, want)
			}
		}
		if got := <-asked; !strings.HasSuffix(got, `"notifications":{"toolsListChanged":false,"promptsListChanged":false,"resourcesListChanged":false,"resourceSubscriptions":["file:///a"]}}}`) {
			t.Errorf("files got %s", got)
		}
		if got := w.Journal.Records(journal.KindIntent); len(got) != 1 || got[0].Method != "resources/subscribe" || got[0].Tool != "file:///a" || got[0].Server != "files" {
			t.Errorf("on record: %+v", got)
		}
		w.setAccess(&policyv1.CheckServerResponse{CouldAllow: true, PromptsAlike: true, ResourcesAlike: true, Methods: everyMethod(), PolicyRevision: "another"})
		if got := next(); got != `{"jsonrpc":"2.0","method":"notifications/tools/list_changed","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7}}}` {
			t.Errorf("of a change of lists the client got %s", got)
		}
		if len(w.notes.Opened()) != 0 {
			t.Error("notes heard of who wants nothing of it")
		}
		w.Sessions.CloseStreams()
		if got := next(); got != "" {
			t.Errorf("after the gateway has hung up the client got %s", got)
		}
	})
}

// Case S1. At the URL for all servers, a client's state is not shared with another caller, or with a client that
// declares other capabilities.
func TestAllServers_StateIsNotSharedBetweenCallers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernAllServers(t)
		for range 2 {
			w.doAllServers("tools/call", "notes__safe", `"name":"notes__safe"`)
		}
		body, head := modern("tools/call", "notes__safe", `"name":"notes__safe"`)
		w.do("POST", "/mcp", strings.Replace(body, `"sampling":{},`, "", 1), head)
		head = head.Clone()
		head["Authorization"] = []string{"Bearer " + benToken}
		w.do("POST", "/mcp", body, head)
		if len(w.notes.Opened()) != 3 {
			t.Errorf("notes has %d sessions, want one of each of three clients", len(w.notes.Opened()))
		}
		sent := string(w.notes.Opened()[1].Body())
		if strings.Contains(sent, "sampling") || !strings.Contains(sent, "elicitation") {
			t.Errorf("for the second client it got %s", sent)
		}
	})
}
