package allservers_test

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

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// A request that contains no server's name, or the names of several servers, is sent to no server. The refusal
// describes how a request must name its server.
func TestRoute_RefusesRequestsThatNameNoServer(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Servers["hidden"] = gatewaytest.NewServer(t)
		allowed := g.Policy.Access
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			if server == "hidden" {
				return new(policyv1.CheckServerResponse)
			}
			return allowed
		}
	}, func(t *testing.T, c client) {
		for name, tt := range map[string]struct{ method, named, params, code, says string }{
			"a tool of no server":          {"tools/call", "safe", `"name":"safe"`, "tool_unknown", "tools are called <server>__<tool> here"},
			"a tool of an absent server":   {"tools/call", "none__safe", `"name":"none__safe"`, "tool_unknown", `there is no server \"none\" here`},
			"a tool of a hidden server":    {"tools/call", "hidden__safe", `"name":"hidden__safe"`, "tool_unknown", `there is no server \"hidden\" here`},
			"a prompt of no server":        {"prompts/get", "p", `"name":"p"`, "params_invalid", "prompts are called <server>__<prompt> here"},
			"a completion for two servers": {"completion/complete", "", `"ref":{"type":"ref/prompt","name":"files__p","uri":"mcp.notes+x"},"argument":{"name":"a","value":"b"}`, "params_invalid", "more than one server"},
			"a resource of no server":      {"resources/read", "file:///a", `"uri":"file:///a"`, "params_invalid", "URIs begin with mcp.<server>+ here"},
			"a resource of an absent one":  {"resources/read", "mcp.none+a", `"uri":"mcp.none+a"`, "params_invalid", `there is no server \"none\" here`},
			"a method of extensions":       {"vendor/x", "", `"name":"files__p"`, "method_denied", "send it to /mcp/<server>"},
			"a task":                       {"tasks/get", "files__t", `"taskId":"files__t"`, "method_denied", "send it to /mcp/<server>"},
			"a request of servers":         {"sampling/createMessage", "", `"uri":"mcp.files+x"`, "method_denied", "send it to /mcp/<server>"},
		} {
			before := len(c.Journal.Refusals())
			got := c.do(tt.method, tt.named, tt.params)
			if got.Status != http.StatusOK || got.Code() != tt.code || !strings.Contains(got.Text, tt.says) {
				t.Errorf("%s: %d %s", name, got.Status, got.Text)
			}
			if records := c.Journal.Records(journal.KindRefusal)[before:]; len(records) != 1 || records[0].Code != tt.code || records[0].Server != "" {
				t.Errorf("%s: on record is %+v", name, records)
			}
		}
		for server, s := range c.Servers {
			if len(s.Opened()) != 0 {
				t.Errorf("%s was contacted", server)
			}
		}
	})
}

// Case X9. The refusal for a hidden server equals the refusal for an absent one.
func TestRoute_HiddenServerIsAnsweredLikeAnAbsentOne(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		allowed := g.Policy.Access
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			if server != "files" {
				return new(policyv1.CheckServerResponse)
			}
			return allowed
		}
	}, func(t *testing.T, c client) {
		text := func(server string) string {
			got := c.call(server + "__safe").Text
			_, id, _ := strings.Cut(got, `"id":"`)
			id, _, _ = strings.Cut(id, `"`)
			return strings.NewReplacer(server, "SERVER", id, "ID").Replace(got)
		}
		if diff := cmp.Diff(text("nodes"), text("notes")); diff != "" {
			t.Errorf("the answers differ (-absent +hidden):\n%s", diff)
		}
	})
}

// The server receives the client's bytes, in which only the combined names are replaced with the server's own names.
// The client receives the answer with combined names.
func TestRoute_SendsARequestToTheServerThatItNames(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		notes := c.Servers["notes"]
		for _, tt := range []struct{ method, named, params, sent, result, want string }{
			{"tools/call", "notes__safe", `"name":"notes__safe","arguments":{"n":1.50}`, `"name":"safe","arguments":{"n":1.50}`, `"content":[{"type":"resource_link","uri":"a:b","name":"n"}]`, `"uri":"mcp.notes+a:b"`},
			{"prompts/get", "notes__p", `"name":"notes__p"`, `"name":"p"`, `"messages":[]`, `"messages":[]`},
			{"resources/read", "mcp.notes+a:b", `"uri":"mcp.notes+a:b"`, `"uri":"a:b"`, `"contents":[{"uri":"a:b","text":""}]`, `"uri":"mcp.notes+a:b"`},
			{"completion/complete", "", `"ref":{"type":"ref/prompt","name":"notes__p"},"argument":{"name":"a","value":"b"}`, `"ref":{"type":"ref/prompt","name":"p"}`, `"completion":{"values":[]}`, `"completion":{"values":[]}`},
		} {
			notes.Respond(`{` + tt.result + `}`)
			got := c.do(tt.method, tt.named, tt.params)
			if got.Code() != "" || !strings.Contains(got.Text, tt.want) {
				t.Errorf("%s: %d %s", tt.method, got.Status, got.Text)
			}
			sent := notes.Requests()
			if last := sent[len(sent)-1]; !strings.Contains(last, tt.sent) || strings.Contains(last, "notes__") || strings.Contains(last, "mcp.notes") {
				t.Errorf("%s: the server got %s", tt.method, last)
			}
			intents := c.Journal.Records(journal.KindIntent)
			if last := intents[len(intents)-1]; last.Server != "notes" || last.Method != tt.method {
				t.Errorf("%s: on record is %+v", tt.method, last)
			}
		}
		if len(c.Files().Opened()) != 0 || len(notes.Opened()) != 1 {
			t.Errorf("sessions were opened with files %d times, and with notes %d times", len(c.Files().Opened()), len(notes.Opened()))
		}
	})
}

// A tool whose combined name would not be accepted by model APIs has an alias. An alias must refer to only one tool.
func TestRoute_ResolvesAliases(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		lists(g.Files(), tool("a.b")+","+tool("x"))
	}, func(t *testing.T, c client) {
		list := c.list("tools/list")
		_, alias, found := strings.Cut(list, `"name":"files__a_b_`)
		alias, _, _ = strings.Cut(alias, `"`)
		if alias = "files__a_b_" + alias; !found || strings.Contains(list, "a.b") {
			t.Fatalf("the list is %s", list)
		}
		if got := c.call(alias); got.Code() != "" {
			t.Errorf("a call by the alias: %s", got.Text)
		}
		if sent := c.Files().Requests(); len(sent) != 1 || !strings.Contains(sent[0], `"name":"a.b"`) {
			t.Errorf("the server got %q", sent)
		}
		lists(c.Files(), tool("a.b")+","+tool(strings.TrimPrefix(alias, "files__"))) // another tool is named like the alias
		time.Sleep(10 * time.Minute)                                                 // the list is outdated and is read again
		c.list("tools/list")
		if got := c.call(alias); got.Code() != "tool_unknown" || len(c.Files().Requests()) != 1 {
			t.Errorf("a call by an alias that means two tools: %s", got.Text)
		}
	})
}

// At the URL for all servers, the gateway reads longer ids than a server accepts, because the id in a client's response
// may contain the server's name. A request is nevertheless refused if its id is longer than a server accepts.
func TestRoute_RewrittenMessagesAreParsedAsStrictly(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		m := c.message("tools/call", "files__safe", `"name":"files__safe"`)
		for length, want := range map[int]string{128: "", 129: "id_invalid"} {
			got := c.Do(m.Replace(`"id":1,`, `"id":"`+strings.Repeat("i", length)+`",`, `"id":7,`, `"id":"`+strings.Repeat("i", length)+`",`))
			if got.Code() != want {
				t.Errorf("an id of %d characters: %d %s", length, got.Status, got.Text)
			}
		}
	})
}

func TestRoute_ServersRequestsAreLimitedOneByOne(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		for range 256 {
			slot, err := c.MCP.InFlight.Begin(gatewaytest.Caller("ana").Principal, "files")
			if err != nil {
				t.Fatal(err)
			}
			defer slot.End()
			if err := slot.Admit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := c.call("files__safe"); got.Status != http.StatusOK || got.Code() != "abuse_limited" || !strings.Contains(got.Text, "too many requests to this server") {
			t.Errorf("a call of files: %d %s", got.Status, got.Text)
		}
		if got := c.call("notes__safe"); got.Code() != "" {
			t.Errorf("a call of notes: %d %s", got.Status, got.Text)
		}
		for range 256 - 1 { // the message itself and the message to the server are also requests in flight
			slot, err := c.MCP.InFlight.Begin(gatewaytest.Caller("ana").Principal, "files")
			if err != nil {
				t.Fatal(err)
			}
			defer slot.End()
		}
		if got := c.call("notes__safe"); got.Status != http.StatusOK || got.Code() != "abuse_limited" || !strings.Contains(got.Text, "requests in flight") {
			t.Errorf("a call whose request is one too many: %d %s", got.Status, got.Text)
		}
	})
}

func TestRoute_IsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		c.call("files__safe") // makes the server's revisions known
		c.Policy.Change(func() { c.Policy.Access = nil })
		for _, got := range []gatewaytest.Reply{c.call("files__safe"), c.do("tools/list", "", ""), c.do("prompts/list", "", "")} {
			if got.Code() != "policy_unavailable" {
				t.Errorf("%d %s", got.Status, got.Text)
			}
		}
		stale := c.message("tools/list", "", "")
		stale.Caller = gatewaytest.Caller("ana")
		stale.Caller.Stale = true
		c.Policy.Change(func() { c.Policy.Access = gatewaytest.NewPolicy(t).Access })
		if got := c.Do(stale); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %s", got.Text)
		}
		if len(c.Files().Requests()) != 1 {
			t.Errorf("the server got %q", c.Files().Requests())
		}
	})
}

// Each client has its own member session for each server. The member sessions end with the aggregate session.
func TestMembers_BelongToOneClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		first, second := connect(g), connect(g)
		for range 2 {
			for _, c := range []client{first, second} {
				c.call("files__safe")
			}
		}
		if n := len(g.Files().Opened()); n != 2 {
			t.Errorf("%d sessions were opened for two clients", n)
		}
		digests := make(map[string]int)
		for _, r := range g.Journal.Records(journal.KindIntent) {
			digests[r.Session]++
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.Members != nil && digests[state.Digest] != 2 { // records contain the client's session
				t.Errorf("the sessions on record are %v", digests)
			}
		}
		if n := g.Sessions.Len(); n != 2 {
			t.Errorf("%d sessions count", n)
		}
		if err := g.Sessions.End(first.session.Get("Mcp-Session-Id"), protocol.SessionKey(gatewaytest.Caller("ana"), "")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := first.call("files__safe"); got.Code() != "session_unknown" || g.Files().Closed() != 1 {
			t.Errorf("%s; %d sessions were closed", got.Text, g.Files().Closed())
		}
		if got := second.call("files__safe"); got.Code() != "" {
			t.Errorf("the other client: %s", got.Text)
		}
	})
}

// If no member session can be created for a message, the message is refused and no longer counts as in flight.
func TestMembers_RefusedMessagesAreNotInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		c := connect(g)
		answered := 0
		g.Policy.AccessOf = func(string) *policyv1.CheckServerResponse {
			if answered++; answered%2 == 0 { // policy answers the first request, which finds the server, but not the second
				return nil
			}
			return g.Policy.Access
		}
		refused := 0
		for range 1000 {
			if got := c.call("files__safe"); got.Code() == "policy_unavailable" {
				refused++
			}
		}
		g.Policy.AccessOf = nil
		if got := c.call("files__safe"); got.Code() != "" || refused < 300 { // more requests than may be in flight to a server
			t.Errorf("after %d refusals: %s", refused, got.Text)
		}
	})
}

// The gateway's own tool for waiting for approvals runs in the client's session, and the client can cancel the call.
func TestNotification_CancelsTheWaitForAnApproval(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		g.RequireApproval("safe")
		session := g.ConnectAs(gatewaytest.Message{Body: gatewaytest.Initialize}.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`))
		begin := time.Now()
		stream := g.Stream(gatewaytest.Call("sluice_approval_wait", `{"id":"a-1"}`).To("").In(session))
		synctest.Wait()
		if stream.Ended() {
			t.Fatal("the client does not wait")
		}
		g.Do(gatewaytest.Message{Body: `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`}.In(session))
		if stream.End(); time.Since(begin) != 0 {
			t.Errorf("the client waited for %v", time.Since(begin))
		}
	})
}

// The notification that roots have changed is sent only to servers that may request roots. For the other servers, no
// refusal is recorded.
func TestNotification_OfRootsReachesServersThatMayAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t)
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			if server == "files" {
				return g.Policy.Access
			}
			return &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true}
		}
		g.Start()
		c := connect(g)
		c.call("files__safe")
		c.call("notes__safe")
		g.Do(gatewaytest.Message{Body: `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`}.In(c.session))
		const want = `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`
		if files, notes := g.Files().Notified(0), g.Servers["notes"].Notified(0); !slices.Contains(files, want) || slices.Contains(notes, want) || len(g.Journal.Refusals()) != 0 {
			t.Errorf("files got %q, notes %q, refused are %q", files, notes, g.Journal.Refusals())
		}
	})
}

// A client's response is sent to the server that has sent the request. All other responses are dropped and counted.
func TestResponse_ReachesTheServerThatHasAsked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		for _, s := range g.Servers {
			s.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
				s.Notified(2) // notifications/initialized and the response
				return gatewaytest.Result(r, `{"content":[]}`), nil
			}
		}
		c := connect(g)
		streams := make(map[string]*gatewaytest.Stream)
		for server := range g.Servers {
			streams[server] = g.Stream(c.message("tools/call", "", `"name":"`+server+`__safe"`))
			if got, want := streams[server].Next(), `{"jsonrpc":"2.0","id":"`+server+`:3","method":"roots/list"}`; got != want {
				t.Errorf("the client got %s, want %s", got, want)
			}
		}
		for _, id := range []string{"3", `"3"`, `"none:3"`, `"files:4"`, `"files"`, `"files:"`, `"notes:\"3\""`} {
			if got := g.Do(gatewaytest.Message{Body: `{"jsonrpc":"2.0","id":` + id + `,"result":{"of":"none"}}`}.In(c.session)); got.Status != http.StatusAccepted {
				t.Errorf("a response to %s: %d %s", id, got.Status, got.Text)
			}
		}
		for server, s := range g.Servers {
			body := `{"jsonrpc":"2.0","id":"` + server + `:3","result":{"of":"` + server + `"}}`
			if got := g.Do(gatewaytest.Message{Body: body}.In(c.session)); got.Status != http.StatusAccepted {
				t.Errorf("a response to %s: %d %s", server, got.Status, got.Text)
			}
			if got, want := s.Notified(2)[1], `{"jsonrpc":"2.0","id":3,"result":{"of":"`+server+`"}}`; got != want {
				t.Errorf("%s got %s", server, got)
			}
			streams[server].End()
		}
		large := `{"jsonrpc":"2.0","id":"%s:9","result":{"x":"` + strings.Repeat("x", 64<<10) + `"}}`
		for _, server := range []string{"files", "none"} {
			if got := g.Do(gatewaytest.Message{Body: fmt.Sprintf(large, server)}.In(c.session)); got.Code() != "body_too_large" {
				t.Errorf("a large response to %s: %d %s", server, got.Status, got.Text)
			}
		}
	})
}

func TestNotification_ReachesTheServersThatItConcerns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		release := make(chan struct{})
		for _, s := range g.Servers {
			s.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
				events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list","params":{"_meta":{"progressToken":"p"}}}`))
				<-release
				return gatewaytest.Result(r, `{"content":[]}`), nil
			}
		}
		c := connect(g)
		stream := g.Stream(c.message("tools/call", "", `"name":"files__safe"`))
		if got := stream.Next(); !strings.Contains(got, `"progressToken":"files:\"p\""`) {
			t.Errorf("the client got %s", got)
		}
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"notes:\"p\"","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"none:\"p\"","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"files:[1]","progress":1}}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"files:\"p\"","progress":2}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		} {
			if got := g.Do(gatewaytest.Message{Body: body}.In(c.session)); got.Status != http.StatusAccepted || got.Text != "" {
				t.Errorf("%s: %d %s", body, got.Status, got.Text)
			}
		}
		synctest.Wait()
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":2}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		}
		// When the call is cancelled, the gateway answers the server's pending request. The server may receive that
		// answer before or after the cancellation notification, so the comparison ignores it.
		isAnswer := func(message string) bool { return strings.Contains(message, `"id":3,"error"`) }
		if diff := cmp.Diff(want, slices.DeleteFunc(slices.Clone(g.Files().Notified(4)), isAnswer)); diff != "" {
			t.Errorf("files got (-want +got):\n%s", diff)
		}
		if got := g.Servers["notes"].Notified(0); len(got) != 0 {
			t.Errorf("notes, which the session has not used, got %q", got)
		}
		close(release)
		stream.HangUp()
		stream.End()
		if n := len(g.Journal.Refusals()); n != 0 {
			t.Errorf("refused are %q", g.Journal.Refusals())
		}
	})
}

func TestNotification_ThatNoServerMayGetIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		c := client{g, g.Connect("")} // a client without roots
		for _, method := range []string{"notifications/roots/list_changed", "notifications/message", "notifications/vendor"} {
			before := len(g.Journal.Refusals())
			if got := g.Do(gatewaytest.Message{Body: `{"jsonrpc":"2.0","method":"` + method + `"}`}.In(c.session)); got.Status != http.StatusAccepted {
				t.Errorf("%s: %d %s", method, got.Status, got.Text)
			}
			if got := g.Journal.Refusals()[before:]; len(got) != 1 || got[0] != "method_denied" {
				t.Errorf("%s: recorded is %q", method, got)
			}
		}
	})
}

// The gateway does not offer servers the option to include context in sampling requests, because that context would
// contain other servers' messages.
func TestMembers_AreNotOfferedTheContextOfAllServers(t *testing.T) {
	t.Parallel()
	for name, modern := range map[string]bool{"with sessions": false, "2026-07-28": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := startGateway(t)
				if modern {
					g.Do(gatewaytest.ModernCall("files__safe", "").To("").Replace(`"sampling":{}`, `"sampling":{"context":{},"tools":{}}`))
				} else {
					session := g.ConnectAs(gatewaytest.Message{Body: gatewaytest.InitializeAll}.Replace(`"tools":{}`, `"context":{},"tools":{}`))
					client{g, session}.call("files__safe")
				}
				if sent := string(g.Files().Opened()[0].Body()); strings.Contains(sent, "context") || !strings.Contains(sent, `"sampling":{"tools":{}}`) {
					t.Errorf("the server got %s", sent)
				}
			})
		})
	}
}
