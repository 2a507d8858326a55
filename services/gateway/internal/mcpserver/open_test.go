package mcpserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	authv1 "github.com/sluice-mesh/sluice/gen/sluice/auth/v1"
	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/mcp"
	"github.com/sluice-mesh/sluice/services/gateway/internal/question"
	"github.com/sluice-mesh/sluice/services/gateway/internal/session"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// The gateway declares to the server only those client capabilities that the policy does not deny. It declares to the
// client only those server capabilities that the policy does not deny.
func TestInitialize_OpensASession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		got := w.do("POST", "/mcp/files", initialize, nil)
		if want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{"listChanged":true}},"serverInfo":{"name":"x","version":"1"}}}`; got.body != want {
			t.Errorf("the client got %s", got.body)
		}
		want := strings.Replace(strings.Replace(initialize, `{"sampling":{}}`, `{}`, 1), `"id":0`, `"id":`+string(w.files.Opened()[0].ID()), 1)
		if string(w.files.Opened()[0].Body()) != want || !strings.HasPrefix(string(w.files.Opened()[0].ID()), `"sluice-`) {
			t.Errorf("the server got %s", w.files.Opened()[0].Body())
		}
		states := w.Sessions.List("acme")
		if len(states) != 1 || states[0].ID != got.header.Get("Mcp-Session-Id") || states[0].Key.Subject != "ana" || states[0].Key.Server != "files" ||
			states[0].Version != "2025-11-25" || !cmp.Equal(states[0].Client, session.Client{Name: "c", Version: "1", Offer: question.Offer{Abilities: []mcp.Ability{}, Revision: "2025-11-25", RequestedRevision: "2025-11-25"}}) {
			t.Errorf("%+v", states)
		}
	})
}

// The gateway declares a server's feature to the caller if the policy does not deny the feature's method. It declares
// only those options of the feature that it knows. It does not declare a feature that the server does not have, or that
// the server declares in a form that MCP does not define.
func TestInitialize_CapabilitiesAreFiltered(t *testing.T) {
	t.Parallel()
	const all = `{"logging":{},"prompts":{"listChanged":true},"resources":{"subscribe":true},"completions":{},"tasks":{},"tools":{},"experimental":{"x":{}}}`
	for name, tt := range map[string]struct {
		has     string
		methods []string
		want    string
	}{
		"nothing is allowed":          {all, nil, `{"tools":{}}`},
		"all is allowed":              {all, []string{"completion/complete", "logging/setLevel", "prompts/list", "resources/list"}, `{"logging":{},"prompts":{"listChanged":true},"resources":{},"completions":{},"tools":{}}`},
		"subscriptions are allowed":   {all, []string{"resources/list", "resources/subscribe"}, `{"resources":{"subscribe":true},"tools":{}}`},
		"options of another spelling": {`{"tools":{"listChanged":1,"x":true,"ListChanged":true}}`, nil, `{"tools":{}}`},
		"one is allowed":              {all, []string{"prompts/list"}, `{"prompts":{"listChanged":true},"tools":{}}`},
		"what the server has not":     {`{"prompts":{}}`, []string{"prompts/list", "resources/list"}, `{"prompts":{}}`},
		"what is no capability":       {`{"prompts":true,"resources":null,"tools":{}}`, []string{"prompts/list", "resources/list"}, `{"tools":{}}`},
		"a feature that is not known": {all, []string{"tasks/list"}, `{"tools":{}}`},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTestGateway(t)
			w.Policy.Access = &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, PromptsAlike: true, ResourcesAlike: true, Methods: tt.methods}
			w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
				return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":`+tt.has+`}`), nil
			}
			want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","capabilities":` + tt.want + `}}`
			if got := w.do("POST", "/mcp/files", initialize, nil); got.body != want {
				t.Errorf("%s: the client got %s", name, got.body)
			}
		})
	}
}

func TestInitialize_NegotiatesTheRevision(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, asked, sent, answered string
		code                        string
	}{
		{"the newest", "2025-11-25", "2025-11-25", "2025-11-25", ""},
		{"an older one", "2025-03-26", "2025-03-26", "2025-03-26", ""},
		{"the server's own", "2025-11-25", "2025-11-25", "2024-11-05", ""},
		{"one of the future", "2026-07-28", "2025-11-25", "2025-11-25", ""},
		{"nonsense", "x\\\"y", "2025-11-25", "2025-11-25", ""},
		{"the server speaks one of the future", "2025-11-25", "2025-11-25", "2026-07-28", "protocol_version"},
		{"the server speaks nonsense", "2025-11-25", "2025-11-25", "x", "protocol_version"},
		{"the server speaks nothing", "2025-11-25", "2025-11-25", "", "protocol_version"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
					return gatewaytest.Result(r, `{"protocolVersion":"`+tt.answered+`","capabilities":{}}`), nil
				}
				got := w.do("POST", "/mcp/files", strings.Replace(initialize, "2025-11-25", tt.asked, 1), nil)
				if got.status != 200 || got.code() != tt.code || (got.header.Get("Mcp-Session-Id") != "") != (tt.code == "") {
					t.Errorf("%d %s", got.status, got.body)
				}
				if sent := string(w.files.Opened()[0].Body()); !strings.Contains(sent, `"protocolVersion":"`+tt.sent+`"`) {
					t.Errorf("the server got %s", sent)
				}
				if records := w.Journal.Records(journal.KindRefusal); tt.code != "" && (w.files.Closed() != 1 || len(records) != 1 || records[0].Code != tt.code || !strings.Contains(got.body, records[0].DecisionID)) {
					t.Errorf("the server's session was ended %d times, records %+v", w.files.Closed(), records)
				}
			})
		})
	}
}

func TestInitialize_RefusedByTheServerOpensNoSession(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		open func(upstream.Request) (upstream.Answer, error)
		want string
	}{
		{"the server is away", func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, "upstream_unavailable"},
		{"the server is slow", func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrTimeout }, "upstream_timeout"},
		{"the server refuses", func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32602,"message":"no","data":{"dev.sluice/decision":{},"a":1}}}`), nil
		}, `{"jsonrpc":"2.0","id":0,"error":{"code":-32602,"message":"no","data":{"a":1}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.files.Open = tt.open
				got := w.do("POST", "/mcp/files", initialize, nil)
				if got.status != 200 || got.code() != tt.want && got.body != tt.want || got.header.Get("Mcp-Session-Id") != "" || w.Sessions.Len() != 0 {
					t.Errorf("%d %s", got.status, got.body)
				}
			})
		})
	}
}

// Case U1. Keys that are reserved for the gateway are removed from a server's message, even from values that the
// gateway replaces anyway.
func TestInitialize_OwnKeysAreRemovedFromCapabilities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","_meta":{"dev.sluice/x":1},"capabilities":{"tools":{},"_meta":{"dev.sluice/x":1},"x":{"_meta":{"a":1,"dev.sluice/y":1}}}}`), nil
		}
		got := w.do("POST", "/mcp/files", initialize, nil)
		if want := `{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-11-25","_meta":{},"capabilities":{"tools":{}}}}`; got.status != 200 || got.body != want {
			t.Errorf("%d %s", got.status, got.body)
		}
	})
}

// Case N2. An initialize request may have at most 64 KiB.
func TestInitialize_SizeIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		padded := func(size int) string { return initialize + strings.Repeat(" ", size-len(initialize)) }
		if got := w.do("POST", "/mcp/files", padded(64<<10), nil); got.header.Get("Mcp-Session-Id") == "" {
			t.Errorf("%d %s", got.status, got.body)
		}
		got := w.do("POST", "/mcp/files", padded(64<<10+1), nil)
		if got.status != 400 || got.code() != "body_too_large" || !strings.Contains(got.body, "65536") {
			t.Errorf("%d %s", got.status, got.body)
		}
		if records := w.Journal.Records(journal.KindRefusal); len(records) != 1 || records[0].Code != "body_too_large" || records[0].Method != "initialize" {
			t.Errorf("%+v", records)
		}
		if len(w.files.Opened()) != 1 {
			t.Errorf("the server was asked %d times", len(w.files.Opened()))
		}
	})
}

// The limit applies to open sessions and to sessions that are being opened. At the limit, the next request to open a
// session is refused, and the refusal is recorded.
func TestInitialize_SessionsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		slow := w.files.Open
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			time.Sleep(10 * time.Second)
			return slow(r)
		}
		replies := make(chan httpResponse, 10)
		for range cap(replies) {
			go func() { replies <- w.do("POST", "/mcp/files", initialize, nil) }()
		}
		opened, refused := 0, 0
		for range cap(replies) {
			switch got := <-replies; {
			case got.header.Get("Mcp-Session-Id") != "":
				opened++
			case got.status == 200 && got.code() == "too_many_sessions":
				refused++
			default:
				t.Errorf("%d %s", got.status, got.body)
			}
		}
		if opened != 2 || refused != 8 || len(w.files.Opened()) != 2 || w.Sessions.Len() != 2 {
			t.Errorf("%d sessions were opened, %d refused, %d asked of the server, want 2, 8, 2", opened, refused, len(w.files.Opened()))
		}
		if records := w.Journal.Records(journal.KindRefusal); len(records) != 8 || records[0].Code != "too_many_sessions" || records[0].Method != "initialize" {
			t.Errorf("%d records", len(records))
		}
		if got := w.do("POST", "/mcp/files", initialize, nil); got.header.Get("Mcp-Session-Id") == "" || w.Sessions.Len() != 2 {
			t.Errorf("an idle session made no room: %d %s", got.status, got.body)
		}
	})
}

func TestSession_IsEndedByDelete(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		if got := w.do("DELETE", "/mcp/files", "", http.Header{"Mcp-Session-Id": h["Mcp-Session-Id"], "Authorization": {"Bearer " + benToken}}); got.status != 404 {
			t.Errorf("another caller ended it: %d", got.status)
		}
		if got := w.do("DELETE", "/mcp/files", "", nil); got.status != 404 {
			t.Errorf("none was named: %d", got.status)
		}
		if got := w.do("DELETE", "/mcp/files", "", h); got.status != 204 {
			t.Errorf("its owner can't end it: %d", got.status)
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 404 {
			t.Errorf("it goes on: %d", got.status)
		}
		synctest.Wait()
		if w.files.Closed() != 1 {
			t.Errorf("the server's session was closed %d times", w.files.Closed())
		}
	})
}

// If the gateway's list of valid tokens may be outdated, requests to open sessions, list tools and call tools are
// refused.
func TestStaleToken_IsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.tokens.Confirm()
		time.Sleep(5 * time.Second)
		for name, body := range map[string]string{
			"initialize": initialize, "tools/call": toolCall, "tools/list": `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, "ping": `{"jsonrpc":"2.0","id":1,"method":"ping"}`,
		} {
			if got := w.do("POST", "/mcp/files", body, h); got.status != 200 || got.code() != "policy_unavailable" {
				t.Errorf("%s: %d %s", name, got.status, got.body)
			}
		}
		if got := w.do("POST", "/mcp/files", toolCall, http.Header{"Authorization": {"Bearer " + strings.Repeat("x", 40)}}); got.status != 503 || got.code() != "policy_unavailable" {
			t.Errorf("a token that was not known before: %d %s", got.status, got.body)
		}
		if len(w.files.Opened()) != 1 || len(w.Journal.Records(journal.KindIntent)) != 0 {
			t.Error("something reached the server")
		}
		w.tokens.Confirm()
		if got := w.do("POST", "/mcp/files", toolCall, h); got.code() != "" {
			t.Errorf("it does not heal: %d %s", got.status, got.body)
		}
	})
}

// Case I2. The caller of a message is the token's current principal, together with the session and run in the message.
// No other member of the message affects the principal. If the token's principal changes after the session was opened,
// the change applies immediately.
func TestCaller_IsTheTokensPrincipal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		const forged = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"safe","_meta":{"dev.sluice/run":"r1","subject":"root","dev.sluice/principal":"root","io.modelcontextprotocol/clientInfo":{"name":"root"}}}}`
		w.do("POST", "/mcp/files", forged, h)
		moved := token("ana", anaToken, authv1.TokenRole_TOKEN_ROLE_AGENT)
		moved.Token.Groups = []string{"suspended"}
		if err := w.tokens.Replace([]*identityv1.TokenRecord{moved}); err != nil {
			t.Fatal(err)
		}
		w.do("POST", "/mcp/files", toolCall, h)
		digest := w.Sessions.List("acme")[0].Digest
		want := []*identityv1.Principal{
			{Tenant: "acme", Subject: "ana", Agent: "dev", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, TokenId: "ana", Session: digest, Run: "r1"},
			{Tenant: "acme", Subject: "ana", Agent: "dev", Role: authv1.TokenRole_TOKEN_ROLE_AGENT, TokenId: "ana", Session: digest, Groups: []string{"suspended"}},
		}
		var got []*identityv1.Principal
		for _, d := range w.Policy.Decided() {
			got = append(got, d.Principal)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("policy was asked on behalf of (-want +got):\n%s", diff)
		}
		if err := w.tokens.Replace(nil); err != nil {
			t.Fatal(err)
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.status != 401 || len(w.Policy.Decided()) != 2 {
			t.Errorf("a revoked token goes on: %d %s", got.status, got.body)
		}
		for _, r := range w.Journal.Records(journal.KindIntent) {
			if r.Subject != "ana" || r.Session != digest {
				t.Errorf("recorded as %+v", r)
			}
		}
	})
}

func TestSession_ConcurrentRequestsGetTheirAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		done := make(chan error, 20)
		for i := range cap(done) {
			go func() {
				body := strings.Replace(toolCall, `"id":1`, fmt.Sprintf(`"id":"n%d"`, i), 1)
				if got := w.do("POST", "/mcp/files", body, h.Clone()); !strings.HasPrefix(got.body, fmt.Sprintf(`{"jsonrpc":"2.0","id":"n%d",`, i)) {
					done <- fmt.Errorf("%d got %s", i, got.body)
					return
				}
				done <- nil
			}()
		}
		for range cap(done) {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	})
}

// A client requests an unsupported revision. The span contains the same error code as the client's answer.
func TestInitialize_UnsupportedRevisionIsMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		got := w.do("POST", "/mcp/files", toolsList, http.Header{"Mcp-Protocol-Version": {"2031-01-01"}})
		synctest.Wait()
		ended := w.Spans.Ended()
		if len(ended) != 1 || got.status != http.StatusBadRequest || !strings.Contains(got.body, `"code":-32022`) {
			t.Fatalf("%d %s, %d spans", got.status, got.body, len(ended))
		}
		said := make(map[string]string)
		for _, a := range ended[0].Attributes() {
			said[string(a.Key)] = a.Value.String()
		}
		if said["error.type"] != "-32022" || said["rpc.response.status_code"] != "-32022" {
			t.Errorf("the span says %v", said)
		}
	})
}

// Case X9. A caller has no permissions on a server. The caller receives nothing that the server says about itself. This
// applies to revisions with and without sessions.
func TestInitialize_RevealsNothingWhenNothingIsAllowed(t *testing.T) {
	t.Parallel()
	const said = `"serverInfo":{"name":"payroll","title":"Payroll","version":"9.8.7"},"instructions":"The key is in notes.","_meta":{"io.modelcontextprotocol/serverInfo":{"name":"payroll","version":"9.8.7"}}`
	reads := func(t *testing.T, w *testGateway, modernClient bool) {
		t.Helper()
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		got := w.do("POST", "/mcp/files", initialize, nil)
		if modernClient {
			got = w.doModern("server/discover", "", "")
		}
		if got.status != 200 || !strings.Contains(got.body, `"capabilities":{"tools":{`) {
			t.Errorf("%d %s", got.status, got.body)
		}
		for _, word := range []string{"instructions", "key", "ayroll", "9.8.7"} {
			if strings.Contains(got.body, word) {
				t.Errorf("%s is in %s", word, got.body)
			}
		}
	}
	for name, isModern := range map[string]bool{"a client with sessions": false, "a client without": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t)
				w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() != "server/discover" {
						return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
					}
					return gatewaytest.Result(r, `{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"resultType":"complete",`+said+`}`), nil
				}
				reads(t, w, isModern)
			})
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.files.Discovery = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						return gatewaytest.Result(r, `{"tools":[]}`), nil
					}
					return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},`+said+`}`), nil
				}
				reads(t, w, isModern)
			})
		})
	}
}
