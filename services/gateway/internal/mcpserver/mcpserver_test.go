package mcpserver_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcpserver"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/authn"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

var errBoom = errors.New("boom")

func TestNew_FailsWhenADependencyIsMissing(t *testing.T) {
	t.Parallel()
	if e, err := mcpserver.New(mcpserver.Config{}, mcpserver.Deps{}); err == nil || e != nil {
		t.Error("a server without dependencies")
	}
}

// Health probes may have any Host header and need no token. The responses contain only the gateway's state.
func TestHandler_ReportsHealth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		foreign := http.Header{"Host": {"10.0.0.7"}, "Authorization": nil}
		tests := []struct {
			method, path string
			notReady     []string
			degraded     []string
			status       int
			body         string
		}{
			{"GET", "/healthz", []string{"x"}, []string{"y"}, 200, "ok\n"},
			{"GET", "/readyz", nil, nil, 200, "ready\n"},
			{"GET", "/readyz", nil, []string{"y", "z"}, 200, "ready\ndegraded\ny\nz\n"},
			{"GET", "/readyz", []string{"no policy is active", "another"}, nil, 503, "not ready\nno policy is active\nanother\n"},
			{"GET", "/readyz", []string{"x"}, []string{"y"}, 503, "not ready\nx\ndegraded\ny\n"},
			{"HEAD", "/readyz", []string{"x"}, nil, 503, ""},
			{"POST", "/healthz", nil, nil, 405, "Method Not Allowed\n"},
		}
		for _, tt := range tests {
			w.notReady, w.degraded = tt.notReady, tt.degraded
			if got := w.do(tt.method, tt.path, "", foreign); got.status != tt.status || got.body != tt.body {
				t.Errorf("%s %s: %d %q", tt.method, tt.path, got.status, got.body)
			}
		}
	})
}

// Requests for unknown paths or with unsupported methods are refused. For paths that clients often try, the response
// says which paths are valid.
func TestHandler_RefusesOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		for _, tt := range []struct {
			method, path string
			status       int
		}{
			{"GET", "/mcp/files", 405}, {"PUT", "/mcp/files", 405}, {"OPTIONS", "/mcp/files", 405}, {"HEAD", "/mcp/files", 405},
			{"GET", "/.well-known/oauth-protected-resource", 404}, {"POST", "/", 404}, {"POST", "/mcp/files/x", 404},
		} {
			got := w.do(tt.method, tt.path, "", nil)
			if got.status != tt.status || tt.status == 405 && !strings.HasPrefix(got.header.Get("Allow"), "POST, ") {
				t.Errorf("%s %s: %d, allowed is %q", tt.method, tt.path, got.status, got.header.Get("Allow"))
			}
		}
		if len(w.files.Opened()) != 0 || len(w.Journal.Records(journal.KindRefusal)) != 0 {
			t.Error("something happened")
		}
	})
}

// Cases N1, I1. Requests that are refused before authentication are counted per peer, and not recorded individually.
func TestAdmission_UnauthenticatedRequestsAreCounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		tests := []struct {
			name   string
			header http.Header
			status int
			code   string
		}{
			{"no token", http.Header{"Authorization": nil}, 401, "unauthenticated"},
			{"a wrong token", http.Header{"Authorization": {"Bearer " + strings.Repeat("x", 40)}}, 401, "unauthenticated"},
			{"two tokens", http.Header{"Authorization": {"Bearer " + anaToken, "Bearer " + anaToken}}, 400, "unauthenticated"},
			{"another scheme", http.Header{"Authorization": {"Basic " + anaToken}}, 401, "unauthenticated"},
			{"an empty token", http.Header{"Authorization": {"Bearer "}}, 401, "unauthenticated"},
			{"an operator's token", http.Header{"Authorization": {"Bearer " + operatorToken}}, 403, "forbidden"},
			{"an approver's token", http.Header{"Authorization": {"Bearer " + approverToken}}, 403, "forbidden"},
			{"a viewer's token", http.Header{"Authorization": {"Bearer " + viewerToken}}, 403, "forbidden"},
			{"another host", http.Header{"Host": {"evil.example"}}, 403, "host_refused"},
			{"another host with our port", http.Header{"Host": {"evil.example:8080"}}, 403, "host_refused"},
			{"another origin", http.Header{"Origin": {"https://evil.example"}}, 403, "origin_refused"},
			{"an origin with our host inside", http.Header{"Origin": {"https://app.example.evil.example"}}, 403, "origin_refused"},
			{"an origin on another port", http.Header{"Origin": {"https://app.example:444"}}, 403, "origin_refused"},
			{"an origin without encryption", http.Header{"Origin": {"http://app.example"}}, 403, "origin_refused"},
			{"no origin at all", http.Header{"Origin": {"null"}}, 403, "origin_refused"},
			{"an empty origin", http.Header{"Origin": {""}}, 403, "origin_refused"},
			{"a file", http.Header{"Origin": {"file://"}}, 403, "origin_refused"},
			{"two origins", http.Header{"Origin": {"https://app.example", "https://app.example"}}, 403, "origin_refused"},
		}
		var want []string
		for _, tt := range tests {
			got := w.do("POST", "/mcp/files", toolCall, tt.header)
			if got.status != tt.status || got.code() != tt.code || (tt.code == "unauthenticated") != (got.header.Get("WWW-Authenticate") != "") {
				t.Errorf("%s: %d %s", tt.name, got.status, got.body)
			}
			wrong := tt.name == "a wrong token" // only this case sends an unknown token
			if challenge := got.header.Get("WWW-Authenticate"); strings.Contains(challenge, `error="invalid_token"`) != wrong ||
				tt.status == 401 && strings.Contains(got.body, "does not know this bearer token") != wrong || tt.status == 401 && strings.Contains(got.body, "has no bearer token") == wrong {
				t.Errorf("%s gets %q: %s", tt.name, challenge, got.body)
			}
			want = append(want, tt.code+" from pipe")
		}
		if diff := cmp.Diff(want, w.admissions); diff != "" {
			t.Errorf("counted (-want +got):\n%s", diff)
		}
		if n := len(w.Journal.Records(journal.KindRefusal)); n != 0 {
			t.Errorf("%d records of unauthenticated requests", n)
		}
	})
}

// A client sends a token that was revoked or has expired. The refusal says which of the two happened, and what to do.
func TestAdmission_NamesTheEndOfAToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		revoked, expired := authn.NewAgentSecret(), authn.NewAgentSecret()
		ended := func(name, secret string, isRevoked bool) *identityv1.EndedToken {
			hash := authn.HashSecret(secret)
			return &identityv1.EndedToken{Sha256: hash[:], Name: name, Revoked: isRevoked}
		}
		if err := w.tokens.Update(&identityv1.TokenSet{Ended: []*identityv1.EndedToken{ended("a", revoked, true), ended("b", expired, false)}}); err != nil {
			t.Fatal(err)
		}
		for secret, want := range map[string]string{revoked: "was revoked", expired: "has expired"} {
			got := w.do("POST", "/mcp/files", toolCall, http.Header{"Authorization": {"Bearer " + secret}})
			challenge := got.header.Get("WWW-Authenticate")
			if got.status != 401 || got.code() != "unauthenticated" || !strings.Contains(got.body, want) || !strings.Contains(got.body, "sluice token create") ||
				!strings.Contains(challenge, `error="invalid_token", error_description="the token `+want+`"`) {
				t.Errorf("%d %q: %s", got.status, challenge, got.body)
			}
		}
	})
}

func TestAdmission_OriginMustBeAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		for _, h := range []http.Header{
			{"Host": {"localhost"}}, {"Host": {"LOCALHOST:80"}}, {"Host": {"127.0.0.1:8080"}}, {"Host": {"[::1]"}}, {"Host": {"[::1]:80"}},
			{"Host": {"mcp.example"}}, {"Host": {"MCP.example:443"}},
			{"Origin": {"https://app.example"}}, {"Origin": {"http://localhost:3000"}}, {"Origin": {"http://[::1]:3000"}},
		} {
			// The request is refused only because it has no session, and not because of the headers in h.
			if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 400 {
				t.Errorf("%v: %d %s", h, got.status, got.body)
			}
		}
	})
}

// Each refused request from an authenticated caller is recorded once. The record contains the code, the id that the
// caller received, and the caller's trace. No request reaches a server.
func TestRefusals_OfAuthenticatedCallersAreRecorded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		open := w.connect()
		id := open.Get("Mcp-Session-Id")
		traced := `,"_meta":{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}`
		tests := []struct {
			name, path, body string
			header           http.Header
			status           int
			code             string
			traced           bool
		}{
			{"no such server", "/mcp/none", toolCall, open, 404, "tool_unknown", false},
			{"a server whose name is no text", "/mcp/%ff%00", toolCall, open, 404, "tool_unknown", false},
			{"another type", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Content-Type": {"text/plain"}}, 415, "media_type", false},
			{"compressed", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Content-Encoding": {"gzip"}}, 415, "media_type", false},
			{"no JSON", "/mcp/files", "x", open, 400, "json_invalid", false},
			{"no session", "/mcp/files", toolCall, nil, 400, "session_required", true},
			{"two sessions", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id, id}}, 400, "header_mismatch", true},
			{"another session", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {"x"}}, 404, "session_unknown", true},
			{"another caller's session", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Authorization": {"Bearer " + benToken}}, 404, "session_unknown", true},
			{"a revision of the future", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {"2026-07-28"}}, 400, "protocol_version", true},
			{"a revision that is no text", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {strings.Repeat("\xff", 100)}}, 400, "protocol_version", true},
			{"two revisions", "/mcp/files", toolCall, http.Header{"Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {"2025-11-25", "2025-11-25"}}, 400, "header_mismatch", true},
			{"a revision of the future in the body", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}`, open, 400, "protocol_version", true},
			{"a traced one", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe"` + traced + `}}`, nil, 400, "session_required", true},
		}
		for _, tt := range tests {
			before := len(w.Journal.Records(journal.KindRefusal))
			got := w.do("POST", tt.path, tt.body, tt.header)
			records := w.Journal.Records(journal.KindRefusal)
			if got.status != tt.status || got.code() != tt.code || len(records) != before+1 {
				t.Errorf("%s: %d %s, %d new records", tt.name, got.status, got.body, len(records)-before)
				continue
			}
			rec := records[before]
			if rec.Code != tt.code || rec.Tenant != "acme" || !strings.Contains(got.body, `"id":"`+rec.DecisionID+`"`) || (rec.TraceID != "") != tt.traced {
				t.Errorf("%s: recorded as %+v", tt.name, rec)
			}
		}
		if len(w.files.Opened()) != 1 || len(w.Journal.Records(journal.KindIntent)) != 0 {
			t.Error("something reached the server")
		}
	})
}

// A notification that no rule allows is refused, and the refusal is recorded. The HTTP response does not tell the
// sender about the refusal.
func TestNotifications_AreForwardedOrRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		for _, body := range []string{
			`{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,                                                       // repeated
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"_meta":{"dev.sluice/run":"r"}}}`, // no such request
			`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`,                // no such request
			`{"jsonrpc":"2.0","id":9,"result":{}}`,                                                                         // no request waits
		} {
			if got := w.do("POST", "/mcp/files", body, h); got.status != 202 || got.body != "" {
				t.Errorf("%s: %d %q", body, got.status, got.body)
			}
		}
		want := []string{
			`{"jsonrpc":"2.0","method":"notifications/initialized"}`,
		}
		if diff := cmp.Diff(want, w.files.Notified(0)); diff != "" {
			t.Errorf("sent on (-want +got):\n%s", diff)
		}
		if records := w.Journal.Records(journal.KindRefusal); len(records) != 1 || records[0].Code != "method_denied" || records[0].Session == "" {
			t.Errorf("%+v", records)
		}
	})
}

// A list contains only the tools that the policy service reports as visible. If the policy service does not respond,
// the list is refused.
func TestList_ShowsVisibleTools(t *testing.T) {
	t.Parallel()
	const (
		list = `{"tools":[{"name":"a"},{"name":"secret-b"},{"name":"c"}]}`
		code = "policy_unavailable"
	)
	visible := func(names ...string) func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
		return func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			resp := new(policyv1.FilterToolsResponse)
			for _, name := range names {
				resp.Tools = append(resp.Tools, &policyv1.ToolVisibility{Name: name, Visible: true})
			}
			return resp, nil
		}
	}
	tests := []struct {
		name, list string
		filter     func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error)
		want, code string
	}{
		{"some", list, nil, `{"tools":[{"name":"a"},{"name":"c"}]}`, ""},
		{"none", `{"tools":[]}`, nil, `{"tools":[]}`, ""},
		{"policy is away", list, func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) { return nil, errBoom }, "", code},
		{"policy says too little", list, visible("a"), "", code},
		{"policy says too much", list, visible("a", "b", "c", "d"), "", code},
		{"policy speaks of others", list, visible("x", "y", "z"), `{"tools":[]}`, ""},
		{"no list", `{"content":[]}`, nil, "", "upstream_unavailable"},
		{"a list that is an object", `{"tools":{}}`, nil, "", "upstream_unavailable"},
		{"T2: a name that stands there twice", `{"tools":[{"name":"a"},{"name":"c"},{"name":"a","description":"another"}]}`, nil, `{"tools":[{"name":"c"}]}`, ""},
		{"T2: twice, once in escapes", `{"tools":[{"name":"a"},{"name":"\u0061"}]}`, nil, `{"tools":[]}`, ""},
		{"a tool without a name", `{"tools":[{"description":"x"},{"name":"c"},7]}`, nil, `{"tools":[{"name":"c"}]}`, ""},
		{"a name that is too long", `{"tools":[{"name":"` + strings.Repeat("x", 5000) + `"},{"name":"c"}]}`, nil, `{"tools":[{"name":"c"}]}`, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				if tt.filter != nil {
					w.Policy.Filter = tt.filter
				}
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, tt.list), nil
				}
				got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, w.connect())
				if got.status != 200 || got.code() != tt.code || tt.code == "" && got.body != `{"jsonrpc":"2.0","id":1,"result":`+tt.want+`}` {
					t.Errorf("%d %s", got.status, got.body)
				}
				if records := w.Journal.Records(journal.KindRefusal); (tt.code != "") != (len(records) == 1) {
					t.Errorf("%d records", len(records))
				}
			})
		})
	}
}

// If a call's outcome has not been written to the journal yet, the answer says so. This applies to answers in JSON and
// to answers on an event stream.
func TestCall_UnrecordedOutcomeIsMarked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		if got := w.do("POST", "/mcp/files", toolCall, h); got.header.Get("Sluice-Outcome") != "" {
			t.Error("an answer is marked without need")
		}
		w.Journal.Errors = map[journal.Kind]error{journal.KindOutcome: errBoom}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 200 || got.header.Get("Sluice-Outcome") != "unrecorded" {
			t.Errorf("JSON: %d %v", got.status, got.header)
		}
		stream := h.Clone()
		stream["Accept"] = []string{"text/event-stream"}
		if got := w.do("POST", "/mcp/files", toolCall, stream); got.header.Get("Content-Type") != "text/event-stream" || got.header.Get("Sluice-Outcome") != "unrecorded" {
			t.Errorf("a stream that begins with the answer: %d %v", got.status, got.header)
		}
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}`))
			return gatewaytest.Result(r, `{}`), nil
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 200 || got.trailer.Get("Sluice-Outcome") != "unrecorded" {
			t.Errorf("a stream: %d %v %s", got.status, got.trailer, got.body)
		}
	})
}

func TestResume_OwnAnswersCanBeContinued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		h["Accept"] = []string{"text/event-stream"}
		if got := w.do("POST", "/mcp/files", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, h); !strings.HasPrefix(got.body, "id: sluice-1-0\nretry: 1000\n") {
			t.Errorf("%d %q", got.status, got.body)
		}
	})
}

func TestEvents_ReachClientsThatAcceptStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{"dev.sluice/decision":{}}}}`))
			return gatewaytest.Result(r, `{}`), nil
		}
		got := w.do("POST", "/mcp/files", toolCall, h)
		want := "id: sluice-1-0\nretry: 1000\ndata: \n\nid: sluice-1-1\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"_meta\":{}}}\n\n" +
			"id: sluice-1-2\nevent: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"
		if got.header.Get("Content-Type") != "text/event-stream" || got.header.Get("X-Accel-Buffering") != "no" || got.body != want {
			t.Errorf("%v %q", got.header, got.body)
		}
		h["Accept"] = []string{"application/json"}
		got = w.do("POST", "/mcp/files", toolCall, h)
		if got.header.Get("Content-Type") != "application/json" || got.body != `{"jsonrpc":"2.0","id":1,"result":{}}` {
			t.Errorf("%v %q", got.header, got.body)
		}
	})
}

// Case S1. Messages from a server may contain data from a client, so they are logged only at debug level.
func TestLog_QuotesNoServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const canary = "canary-7f3a"
		quoting := fmt.Errorf(`%w: it wrote last: "%s"`, upstream.ErrNoAnswer, canary)
		w := newTestGateway(t)
		h := w.connect()
		w.files.NotifyError = quoting
		w.files.Open = func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, quoting }
		w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			return upstream.Answer{}, quoting
		}
		for _, body := range []string{`{"jsonrpc":"2.0","method":"notifications/initialized"}`, initialize, toolCall, list} {
			if got := w.do("POST", "/mcp/files", body, h); strings.Contains(got.body, canary) {
				t.Errorf("%s is answered %s", body, got.body)
			}
		}
		for line := range strings.Lines(w.Logged()) {
			if strings.Contains(line, canary) && !strings.Contains(line, "level=DEBUG") {
				t.Errorf("logged: %s", line)
			}
		}
		if n := strings.Count(w.Logged(), "level=WARN"); n != 4 {
			t.Errorf("%d warnings, want one for each message", n)
		}
	})
}

// A panic is logged as an error, and the gateway continues to serve requests.
func TestLog_HasPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		id := w.connect().Get("Mcp-Session-Id")
		w.files.Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) { panic("of the test") }
		c := w.dial()
		defer c.Close()
		if _, err := fmt.Fprint(c, requestHead(anaToken, id, len(toolCall))+toolCall); err != nil {
			t.Fatal(err)
		}
		if _, err := status(c); err == nil {
			t.Error("a request that panicked was answered")
		}
		if log := w.Logged(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "of the test") {
			t.Error("the log says nothing of it")
		}
		if got := w.do("GET", "/healthz", "", nil); got.status != 200 {
			t.Errorf("%d", got.status)
		}
		for _, st := range w.Sessions.List("acme") {
			if st.InFlight != 0 {
				t.Error("its session is held as in use")
			}
		}
	})
}
