package mcpserver_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// everything contains the methods that a policy without denials allows.
var everything = []string{"prompts/list", "resources/list", "resources/subscribe", "completion/complete", "logging/setLevel", "sampling/createMessage", "elicitation/create", "roots/list"}

// newModernGateway returns a gateway whose policy allows the methods in the parameter open. The gateway's server
// supports only revision 2026-07-28. newModernGateway must be called inside a synctest bubble.
func newModernGateway(t *testing.T, open ...string) *testGateway {
	t.Helper()
	w := newTestGatewayWithTransport(t, "http")
	w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: open}
	w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "server/discover" {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
		}
		return gatewaytest.Result(r, discovered), nil
	}
	w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() != "tools/list" {
			return w.files.Open(r)
		}
		return gatewaytest.Result(r, `{"tools":[{"name":"safe"},{"name":"region","inputSchema":{"properties":{"r":{"type":"string","x-mcp-header":"Region"}}}}]}`), nil
	}
	return w
}

const discovered = `{"supportedVersions":["2027-01-01","2026-07-28"],"capabilities":{"tools":{"listChanged":true},"prompts":{},"tasks":{}},"instructions":"i","resultType":"complete","ttlMs":60000,"cacheScope":"public"}`

// modern returns the body of a request of revision 2026-07-28 with the given params, and headers that match the body.
// name may be empty.
func modern(method, name, params string) (body string, head http.Header) {
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"sampling":{},"elicitation":{"form":{}},"tasks":{}},"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"}}`
	if params != "" {
		meta += ","
	}
	head = http.Header{"Mcp-Protocol-Version": {"2026-07-28"}, "Mcp-Method": {method}}
	if name != "" {
		head["Mcp-Name"] = []string{name}
	}
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + meta + params + `}}`, head
}

func (w *testGateway) doModern(method, name, params string) httpResponse {
	w.t.Helper()
	body, head := modern(method, name, params)
	return w.do("POST", "/mcp/files", body, head)
}

// A call without a session reaches its server. The server receives the bytes that were evaluated, except for the client
// capabilities that the policy denies. The client receives the server's answer and HTTP status.
func TestModern_CallNeedsNoSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, "sampling/createMessage")
		var got []upstream.Request
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			got = append(got, r)
			return gatewaytest.Result(r, `{"content":[],"big":9007199254740993,"resultType":"complete","ttlMs":5,"cacheScope":"public","_meta":{"dev.sluice/x":1}}`), nil
		}
		reply := w.doModern("tools/call", "safe", `,"name":"safe","arguments":{"n":1.50},"x":[1e2]`[1:])
		if want := `{"jsonrpc":"2.0","id":7,"result":{"content":[],"big":9007199254740993,"resultType":"complete","ttlMs":5,"cacheScope":"private","_meta":{}}}`; reply.status != 200 || reply.body != want {
			t.Errorf("the client got %d %s", reply.status, reply.body)
		}
		if reply.header.Get("Mcp-Session-Id") != "" {
			t.Error("the client got a session")
		}
		body, _ := modern("tools/call", "safe", `"name":"safe","arguments":{"n":1.50},"x":[1e2]`)
		want := strings.Replace(body, `{"sampling":{},"elicitation":{"form":{}},"tasks":{}}`, `{"sampling":{}}`, 1)
		if len(got) != 1 || string(got[0].Body()) != want {
			t.Fatalf("the server got %s, want %s", got[0].Body(), want)
		}
		intent := w.Journal.Records(journal.KindIntent)
		if len(intent) != 1 || intent[0].Session != "" {
			t.Errorf("on record: %+v", intent)
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			a := gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`)
			a.Status = 404
			return a, nil
		}
		if reply := w.doModern("x/y", "", ""); reply.status != 404 || !strings.Contains(reply.body, "-32601") {
			t.Errorf("an unknown method: %d %s", reply.status, reply.body)
		}
	})
}

// Case T1. Headers do not affect the decision on a call. A message is refused if its headers do not match its body.
func TestModern_HeadersMustAgreeWithTheBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		called := 0
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			called++
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		call, _ := modern("tools/call", "safe", `"name":"safe"`)
		read, _ := modern("resources/read", "a", `"uri":"file:///ä"`)
		region, _ := modern("tools/call", "region", `"name":"region","arguments":{"r":"eu"}`)
		for _, tt := range []struct {
			name, body           string
			version, method, who []string
			more                 http.Header
			want                 string // empty if the server receives the call
		}{
			{"all the same", call, []string{"2026-07-28"}, []string{"tools/call"}, []string{"safe"}, nil, ""},
			{"a name in base64", read, []string{"2026-07-28"}, []string{"resources/read"}, []string{"=?base64?ZmlsZTovLy/DpA==?="}, nil, ""},
			{"a mirrored argument", region, []string{"2026-07-28"}, []string{"tools/call"}, []string{"region"}, http.Header{"Mcp-Param-Region": {"eu"}}, ""},
			{"no revision", call, nil, []string{"tools/call"}, []string{"safe"}, nil, "-32020"},
			{"another revision", call, []string{"2025-11-25"}, []string{"tools/call"}, []string{"safe"}, nil, "-32020"},
			{"an unknown one", call, []string{"2031-01-01"}, []string{"tools/call"}, []string{"safe"}, nil, "-32020"},
			{"another in the body", strings.Replace(call, "2026-07-28", "2025-11-25", 1), []string{"2026-07-28"}, []string{"tools/call"}, []string{"safe"}, nil, "-32020"},
			{"no method", call, []string{"2026-07-28"}, nil, []string{"safe"}, nil, "-32020"},
			{"another method", call, []string{"2026-07-28"}, []string{"tools/list"}, []string{"safe"}, nil, "-32020"},
			{"another case", call, []string{"2026-07-28"}, []string{"TOOLS/CALL"}, []string{"safe"}, nil, "-32020"},
			{"two methods", call, []string{"2026-07-28"}, []string{"tools/call", "tools/call"}, []string{"safe"}, nil, "-32020"},
			{"no name", call, []string{"2026-07-28"}, []string{"tools/call"}, nil, nil, "-32020"},
			{"another name", call, []string{"2026-07-28"}, []string{"tools/call"}, []string{"pay"}, nil, "-32020"},
			{"a broken name", call, []string{"2026-07-28"}, []string{"tools/call"}, []string{"=?base64?!?="}, nil, "-32020"},
			{"another argument", region, []string{"2026-07-28"}, []string{"tools/call"}, []string{"region"}, http.Header{"Mcp-Param-Region": {"us"}}, "-32020"},
			{"no argument", region, []string{"2026-07-28"}, []string{"tools/call"}, []string{"region"}, nil, "-32020"},
			{"no revision in the body", strings.Replace(call, "/protocolVersion", "/x", 1), []string{"2026-07-28"}, []string{"tools/call"}, []string{"safe"}, nil, "-32602"},
			{"no abilities", strings.Replace(call, "/clientCapabilities", "/x", 1), []string{"2026-07-28"}, []string{"tools/call"}, []string{"safe"}, nil, "-32602"},
			{"nothing at all", toolCall, []string{"2026-07-28"}, []string{"tools/call"}, []string{"safe"}, nil, "-32602"},
			{"an answer", `{"jsonrpc":"2.0","id":7,"result":{}}`, []string{"2026-07-28"}, nil, nil, nil, "-32600"},
		} {
			head := http.Header{"Mcp-Protocol-Version": tt.version, "Mcp-Method": tt.method, "Mcp-Name": tt.who}
			maps.Copy(head, tt.more)
			before := called
			got := w.do("POST", "/mcp/files", tt.body, head)
			switch {
			case tt.want == "" && (got.status != 200 || called != before+1):
				t.Errorf("%s: %d %s", tt.name, got.status, got.body)
			case tt.want != "" && (got.status != 400 || !strings.Contains(got.body, `"code":`+tt.want) || called != before):
				t.Errorf("%s: %d %s, want %s", tt.name, got.status, got.body, tt.want)
			}
		}
		for _, method := range []string{"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"} {
			if got := w.doModern(method, "", ""); got.status != 404 || !strings.Contains(got.body, `"code":-32601`) {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
	})
}

// The client receives those of the server's features that the policy allows. Caches must not share the answer with
// other callers. If no rule can allow any request from the caller, the gateway sends no request to the server.
func TestModern_ServerDiscoverIsFiltered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, "prompts/list")
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return gatewaytest.Result(r, discovered), nil
			}
			return gatewaytest.Result(r, `{"tools":[{"name":"secret"},{"name":"safe"}],"resultType":"complete","ttlMs":60000,"cacheScope":"public"}`), nil
		}
		want := `{"jsonrpc":"2.0","id":7,"result":{"supportedVersions":["2026-07-28"],"capabilities":{%s,"extensions":{"io.modelcontextprotocol/tasks":{}}},"instructions":"i","resultType":"complete","ttlMs":0,"cacheScope":"private"}}`
		if got := w.doModern("server/discover", "", ""); got.status != 200 || got.body != fmt.Sprintf(want, `"tools":{"listChanged":true},"prompts":{}`) {
			t.Errorf("%d %s", got.status, got.body)
		}
		if got := w.doModern("tools/list", "", ""); got.body != `{"jsonrpc":"2.0","id":7,"result":{"tools":[{"name":"safe"}],"resultType":"complete","ttlMs":0,"cacheScope":"private"}}` {
			t.Errorf("the list is %s", got.body)
		}
		opened := len(w.files.Opened())
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			t.Errorf("the server was asked %s", r.Body())
			return gatewaytest.Result(r, `{}`), nil
		}
		const bare = `{"jsonrpc":"2.0","id":7,"result":{"cacheScope":"private","capabilities":{"tools":{"listChanged":true},"extensions":{"io.modelcontextprotocol/tasks":{}}},"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0}}`
		if got := w.doModern("server/discover", "", ""); got.body != bare {
			t.Errorf("a caller that can use nothing reads %s", got.body)
		}
		if got := w.doModern("tools/list", "", `"cursor":"stolen"`); got.code() != "params_invalid" {
			t.Errorf("a cursor that was not given: %s", got.body)
		}
		if got := w.doModern("tools/list", "", ""); !strings.Contains(got.body, `"safe"`) || !strings.Contains(got.body, `"cacheScope":"private"`) {
			t.Errorf("its list: %s", got.body)
		}
		if len(w.files.Opened()) != opened {
			t.Error("something was opened at the server")
		}
	})
}

// Case X9. Errors about headers do not reveal whether a hidden tool exists.
func TestModern_HeaderErrorsRevealNoHiddenTools(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		w.Policy.Access.HidesNone = false
		w.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			resp := new(policyv1.FilterToolsResponse)
			for _, tool := range r.GetTools() {
				resp.Tools = append(resp.Tools, &policyv1.ToolVisibility{Name: tool.GetName(), Visible: tool.GetName() == "safe"})
			}
			return resp, nil
		}
		hidden := w.doModern("tools/call", "region", `"name":"region","arguments":{"r":"eu"}`)
		absent := w.doModern("tools/call", "nosuch", `"name":"nosuch","arguments":{"r":"eu"}`)
		if hidden.status != 200 || hidden.code() != "tool_unknown" || absent.code() != "tool_unknown" || len(hidden.body) != len(absent.body) {
			t.Errorf("a hidden tool: %d %s\none that is not there: %d %s", hidden.status, hidden.body, absent.status, absent.body)
		}
	})
}

// Methods that only revision 2026-07-28 defines are refused in a session of another revision.
func TestModern_RemovedMethodsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGatewayWithTransport(t, "http")
		h := w.connect()
		for _, method := range []string{"server/discover", "subscriptions/listen"} {
			body, _ := modern(method, "", "")
			for _, body := range []string{body, strings.Replace(body, "2026-07-28", "2025-11-25", 1), `{"jsonrpc":"2.0","id":7,"method":"` + method + `"}`} {
				if got := w.do("POST", "/mcp/files", body, h); got.status != 400 || got.code() != "protocol_version" {
					t.Errorf("%s: %d %s", body, got.status, got.body)
				}
			}
		}
		if got := w.Journal.Records(journal.KindIntent); len(got) != 0 {
			t.Errorf("on record: %+v", got)
		}
	})
}

// An answer that has a ttlMs but no cacheScope is marked as private.
func TestModern_AnswersArePrivateToCaches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		for result, want := range map[string]string{
			`{"contents":[],"ttlMs":60000}`:                       `{"contents":[],"ttlMs":60000,"cacheScope":"private"}`,
			`{"cacheScope":"public","contents":[],"ttlMs":60000}`: `{"cacheScope":"private","contents":[],"ttlMs":60000}`,
			`{"contents":[]}`:                                     `{"contents":[]}`,
		} {
			w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Result(r, result), nil
			}
			if got := w.doModern("resources/read", "file:///a", `"uri":"file:///a"`); !strings.Contains(got.body, `"result":`+want) {
				t.Errorf("%s: the client got %s", result, got.body)
			}
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"tools":[],"ttlMs":60000}`), nil
		}
		if got := w.doModern("tools/list", "", ""); !strings.Contains(got.body, `{"tools":[],"ttlMs":0,"cacheScope":"private"}`) {
			t.Errorf("a list: %s", got.body)
		}
	})
}

// The server does not use sessions. A client of an older revision nevertheless receives a session from the gateway.
func TestSession_IsProvidedForStatelessServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		for _, reach := range []bool{false, true} {
			w.Policy.Access.CouldAllow = reach
			if got := w.do("POST", "/mcp/files", initialize, nil); got.status != 200 || !strings.Contains(got.body, `"protocolVersion":"2025-11-25"`) || !strings.Contains(got.body, `"capabilities":{"tools":{`) || got.header.Get("Mcp-Session-Id") == "" {
				t.Errorf("reach %t: %d %s", reach, got.status, got.body)
			}
		}
	})
}

// The gateway finds out the server's revision while it opens a session. The client still receives its session.
func TestModern_ServerIsProbedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		refuses := w.files.Open
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "initialize" {
				w.Policy.Access.CouldAllow = false // the gateway answers such a caller from its discovery
				if got := w.do("POST", "/mcp/files", initialize, http.Header{"Authorization": {"Bearer " + benToken}}); got.status != 200 {
					t.Errorf("%d %s", got.status, got.body)
				}
			}
			return refuses(r)
		}
		if got := w.do("POST", "/mcp/files", initialize, nil); got.status != 200 || got.header.Get("Mcp-Session-Id") == "" {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

// A server supports both revision 2026-07-28 and revisions that use sessions. It answers initialize with a temporary
// error. The gateway must not conclude that the server supports only 2026-07-28. After the error, clients that use
// sessions are served.
func TestModern_FaultDoesNotHideTheRevision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		modern, status := w.files.Open, 503
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return modern(r)
			}
			if status != 200 {
				a := gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32000,"message":"later"}}`)
				a.Status = status
				return a, nil
			}
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{}}`), nil
		}
		if got := w.doModern("server/discover", "", ""); got.status != 200 {
			t.Fatalf("%d %s", got.status, got.body)
		}
		if got := w.do("POST", "/mcp/files", initialize, nil); got.status != 200 || !strings.Contains(got.body, "later") {
			t.Errorf("while it has a fault: %d %s", got.status, got.body)
		}
		status = 200
		if got := w.do("POST", "/mcp/files", initialize, nil); got.header.Get("Mcp-Session-Id") == "" {
			t.Errorf("once it has recovered: %d %s", got.status, got.body)
		}
	})
}

// Case X1. A client disconnects during its call. The gateway cancels the call at the server. The journal still records
// that the call was sent.
func TestModern_DisconnectCancelsTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		ended := make(chan error, 1)
		w.files.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`))
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}
		body, head := modern("tools/call", "safe", `"name":"safe"`)
		next, hangUp := w.callStreamUntil(head, body)
		if got := next(); !strings.Contains(got, "notifications/message") {
			t.Fatalf("the client got %s", got)
		}
		before := time.Now()
		hangUp()
		if err := <-ended; err == nil || time.Since(before) > time.Second {
			t.Errorf("it ended after %v: %v", time.Since(before), err)
		}
		synctest.Wait()
		if got := w.Journal.Records(journal.KindOutcome); len(got) != 1 {
			t.Errorf("on record: %+v", got)
		}
	})
}

// A server does not support revision 2026-07-28, but many clients use that revision. The gateway probes the server
// once, and then uses a session with the server. The probes are not recorded as refusals.
func TestModern_RequestsReachServersWithSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGatewayWithTransport(t, "http")
		own, asked := w.files.Discovery, 0
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				asked++
				return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrRevision)
			}
			return own(r)
		}
		var got []string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			got = append(got, string(r.Body()))
			if r.Method() == "tools/list" {
				return gatewaytest.Result(r, `{"tools":[{"name":"safe"}]}`), nil
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		for i := range 100 {
			time.Sleep(time.Second)
			if got := w.doModern("server/discover", "", ""); got.status != 200 || !strings.Contains(got.body, `"supportedVersions":["2026-07-28","2025-11-25"`) || !strings.Contains(got.body, `"cacheScope":"private"`) {
				t.Fatalf("%d: %d %s", i, got.status, got.body)
			}
		}
		if list := w.doModern("tools/list", "", ""); !strings.Contains(list.body, `"resultType":"complete","ttlMs":0,"cacheScope":"private","tools":[{"name":"safe"}]`) {
			t.Errorf("a list: %s", list.body)
		}
		if call := w.doModern("tools/call", "safe", `"name":"safe","arguments":{"n":12345678901234567}`); call.status != 200 || !strings.Contains(call.body, `"result":{"resultType":"complete","content":[]}`) {
			t.Errorf("a call: %d %s", call.status, call.body)
		}
		if asked != 1 || len(w.Journal.Records(journal.KindRefusal)) != 0 || len(w.files.Opened()) != 1 || w.files.Opened()[0].Method() != "initialize" {
			t.Errorf("the server was asked %d times, %d sessions were opened, and %d refusals are on record", asked, len(w.files.Opened()), len(w.Journal.Records(journal.KindRefusal)))
		}
		if want := `"params":{"_meta":{},"name":"safe","arguments":{"n":12345678901234567}}`; len(got) != 2 || !strings.Contains(got[1], want) {
			t.Errorf("the server got %q", got)
		}
	})
}

// Case S1. In revision 2026-07-28, the gateway keeps a state for each caller in place of a session. Different callers
// do not share a state, and a client cannot select a state by a name.
func TestModern_CallersShareNoState(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"tools":[{"name":"safe"}],"nextCursor":"c-1"}`), nil
		}
		list, head := modern("tools/list", "", "")
		page, _ := modern("tools/list", "", `"cursor":"c-1"`)
		if got := w.do("POST", "/mcp/files", list, head); !strings.Contains(got.body, "c-1") || got.header.Get("Mcp-Session-Id") != "" {
			t.Fatalf("%s", got.body)
		}
		if got := w.do("POST", "/mcp/files", page, head); got.code() != "" {
			t.Errorf("its own cursor: %s", got.body)
		}
		head["Authorization"] = []string{"Bearer " + benToken}
		if got := w.do("POST", "/mcp/files", page, head); got.code() != "params_invalid" {
			t.Errorf("another's cursor: %s", got.body)
		}
		if got := len(w.Sessions.List("acme")); got != 2 {
			t.Errorf("%d callers are remembered, want 2", got)
		}
	})
}

// Case S1. In revision 2026-07-28, the gateway keeps a state for each caller in place of a session. A caller with many
// clients cannot displace another caller's state. The gateway declares the client's capabilities to the server even if
// the client's first request was refused.
func TestModern_StateCannotBeEndedByAnotherCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGatewayWithTransport(t, "http")
		own := w.files.Discovery
		w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, upstream.ErrRevision)
			}
			return own(r)
		}
		discover := func(token, client string) httpResponse {
			body, head := modern("server/discover", "", "")
			head["Authorization"] = []string{"Bearer " + token}
			return w.do("POST", "/mcp/files", strings.Replace(body, `"name":"c"`, `"name":"`+client+`"`, 1), head)
		}
		w.setAccess(nil)
		if got := discover(benToken, "c"); got.code() != "policy_unavailable" {
			t.Errorf("without policy: %d %s", got.status, got.body)
		}
		w.setAccess(&policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: []string{"sampling/createMessage"}})
		if got := discover(benToken, "c"); got.status != 200 || len(w.files.Opened()) != 1 || !strings.Contains(string(w.files.Opened()[0].Body()), `"capabilities":{"sampling":{}}`) {
			t.Fatalf("%d %s, opened %d", got.status, got.body, len(w.files.Opened()))
		}
		for i := range 50 {
			if got := discover(anaToken, fmt.Sprint("c", i)); got.status != 200 {
				t.Fatalf("%d %s", got.status, got.body)
			}
		}
		before := len(w.files.Opened())
		if got := discover(benToken, "c"); got.status != 200 || len(w.files.Opened()) != before || w.Sessions.Len() != 3 {
			t.Errorf("%d %s, opened %d more, %d sessions", got.status, got.body, len(w.files.Opened())-before, w.Sessions.Len())
		}
	})
}
