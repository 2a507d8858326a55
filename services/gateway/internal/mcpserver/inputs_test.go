package mcpserver_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Cases U1, T4. The policy service evaluates each request in a server's answer as a request from the server. If the
// policy denies one of them, the client does not receive the answer.
func TestInputRequests_AreDecidedAndRecorded(t *testing.T) {
	t.Parallel()
	const sampling, form = `"s":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":9007199254740993}}`, `"f":{"method":"elicitation/create","params":{"message":"m","requestedSchema":{}}}`
	for _, tt := range []struct {
		name, asks string
		open       []string
		code       string // refusal code of the server's request; empty if the client receives the answer
		judged     int
	}{
		{"one", sampling, []string{"sampling/createMessage"}, "", 1},
		{"two", sampling + "," + form, []string{"sampling/createMessage", "elicitation/create"}, "", 2},
		{"none", "", nil, "", 0},
		{"one of two may not", sampling + "," + form, []string{"sampling/createMessage"}, "method_denied", 0},
		{"what the client can't", `"r":{"method":"roots/list"}`, everything, "method_denied", 0},
		{"what a server must not", `"r":{"method":"tools/call","params":{"name":"safe"}}`, everything, "method_denied", 0},
		{"without a method", `"r":{"params":{}}`, everything, "method_invalid", 0},
		{"no request", `"r":7`, everything, "method_invalid", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t, tt.open...)
				result := `{"resultType":"input_required","inputRequests":{` + tt.asks + `},"requestState":"z"}`
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, result), nil
				}
				got := w.doModern("tools/call", "safe", `"name":"safe"`)
				if tt.code == "" && got.body != `{"jsonrpc":"2.0","id":7,"result":`+result+`}` || tt.code != "" && got.code() != "outcome_unknown" {
					t.Errorf("the client got %s", got.body)
				}
				judged := 0
				for _, r := range w.Journal.Records(journal.KindOutcome) {
					if r.FromServer {
						judged++
					}
				}
				if refused := w.Journal.Records(journal.KindRefusal); judged != tt.judged || tt.code != "" && (len(refused) != 1 || !refused[0].FromServer || refused[0].Code != tt.code) {
					t.Errorf("%d are on record as asked, want %d; refused: %+v", judged, tt.judged, refused)
				}
			})
		})
	}
}

// Case U1. If an answer contains ambiguous or malformed requests, the client does not receive it.
func TestInputRequests_AmbiguousAnswersAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		for _, result := range []string{
			`{"resultType":"input_required","inputRequests":[{"method":"sampling/createMessage"}]}`,
			`{"inputRequests":"x"}`,
		} {
			w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Result(r, result), nil
			}
			if got := w.doModern("tools/call", "safe", `"name":"safe"`); got.code() != "outcome_unknown" {
				t.Errorf("%s: the client got %s", result, got.body)
			}
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"content":[],"inputRequests":null}`), nil
		}
		if got := w.doModern("tools/call", "safe", `"name":"safe"`); got.code() != "" {
			t.Errorf("nothing is asked: the client got %s", got.body)
		}
	})
}

// Case U1. Two kinds of results must not contain requests to the client, because the client might act on the requests:
// all results in revisions that use sessions, and results of those methods of revision 2026-07-28 whose results contain
// no requests in MCP, for example tools/list. Clients do not receive such results. If a client responds to such a
// request in a session, the gateway refuses the response.
func TestInputRequests_AnswersWithoutThemPass(t *testing.T) {
	t.Parallel()
	const asks = `"inputRequests":{"a":{"method":"elicitation/create","params":{"message":"m"}}}`
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"tools":[],"supportedVersions":["2026-07-28"],`+asks+`}`), nil
		}
		for _, method := range []string{"tools/list", "server/discover"} {
			if got := w.doModern(method, "", ""); got.code() != "outcome_unknown" {
				t.Errorf("%s: the client got %s", method, got.body)
			}
		}
		body, head := modern("subscriptions/listen", "", `"notifications":{}`)
		if got := w.do("POST", "/mcp/files", body, head); got.code() != "outcome_unknown" || strings.Contains(got.body, "elicitation") {
			t.Errorf("a subscription: the client got %s", got.body)
		}
		body, head = modern("completion/complete", "", `"ref":{}`)
		if got := w.do("POST", "/mcp/files", body, head); got.code() != "outcome_unknown" {
			t.Errorf("a method whose answers ask nothing: the client got %s", got.body)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		w.Policy.Access = &policyv1.CheckServerResponse{HidesNone: true}
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, strings.Replace(discovered, "{", "{"+asks+",", 1)), nil
		}
		if got := w.doModern("server/discover", "", ""); got.code() != "outcome_unknown" {
			t.Errorf("a caller that may use nothing got %s", got.body)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.Policy.Access.Methods = everything
		h := w.connectAs(strings.Replace(initializeWithAll, `"form":{}`, `"form":{},"url":{}`, 1))
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"content":[],"tools":[],`+asks+`}`), nil
		}
		for _, body := range []string{toolCall, `{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"p"}}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`} {
			if got := w.do("POST", "/mcp/files", body, h); got.code() != "outcome_unknown" || strings.Contains(got.body, "elicitation") {
				t.Errorf("%s: the client got %s", body, got.body)
			}
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32042,"message":"open","data":{"elicitations":[{"mode":"url","elicitationId":"e","url":"https://x.example","message":"m"}]}}}`), nil
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); !strings.Contains(got.body, "https://x.example") || len(w.Journal.Records(journal.KindOutcome)) == 0 {
			t.Errorf("an address that may be asked for: %s", got.body)
		}
		if last := w.Journal.Records(journal.KindIntent); last[len(last)-1].Method != "elicitation/create" || !last[len(last)-1].FromServer {
			t.Errorf("on record is %+v", last[len(last)-1])
		}
		quiet := w.connectAs(initialize) // a client that has not declared elicitation by URL
		for _, written := range []string{
			`"code":-32042,"data":{"elicitations":[{"url":"https://x.example"}]}`, `"code":-32042.0,"data":{"elicitations":[{"url":"https://x.example"}]}`,
			`"code":-3.2042e4,"data":{"elicitations":[{"url":"https://x.example"}]}`, `"code":-32042,"data":{"Elicitations":[{"url":"https://x.example"}]}`,
		} {
			w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"message":"open",` + written + `}}`), nil
			}
			if got := w.do("POST", "/mcp/files", toolCall, quiet); got.code() != "outcome_unknown" || strings.Contains(got.body, "https://x.example") {
				t.Errorf("one that may not, written %s: %s", written, got.body)
			}
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32042,"message":"open","data":{"elicitations":[{"url":"https://a.example"}],"Elicitations":[{"url":"https://x.example"}]}}}`), nil
		}
		if got := w.do("POST", "/mcp/files", toolCall, h); got.code() != "outcome_unknown" || strings.Contains(got.body, "https://x.example") {
			t.Errorf("one that is read in two ways: %s", got.body)
		}
		sent := len(w.Journal.Records(journal.KindIntent))
		if got := w.do("POST", "/mcp/files", strings.Replace(toolCall, `"name"`, `"inputResponses":{},"name"`, 1), h); got.code() != "method_denied" || len(w.Journal.Records(journal.KindIntent)) != sent {
			t.Errorf("what is answered in a session: %s", got.body)
		}
		w.files.Open = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{},`+asks+`}`), nil
		}
		if got := w.do("POST", "/mcp/files", initialize, nil); got.code() != "outcome_unknown" || got.header.Get("Mcp-Session-Id") != "" {
			t.Errorf("initialize: the client got %s", got.body)
		}
	})
}

// Case U1. A server sends a request to the client on the stream of a call in revision 2026-07-28, which has no
// sessions. No client receives the request, and the refusal is recorded.
func TestInputRequests_RequestsOnModernStreamsAreRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, everything...)
		w.files.Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(sample))
			events([]byte(`{"jsonrpc":"2.0","id":8,"method":"vendor/ask","params":{}}`))
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		got := w.doModern("tools/call", "safe", `"name":"safe"`)
		if strings.Contains(got.body, "sampling") || strings.Contains(got.body, "vendor") || !strings.Contains(got.body, `"content":[]`) {
			t.Errorf("the client got %s", got.body)
		}
		if refused := w.Journal.Records(journal.KindRefusal); len(refused) != 2 || !refused[0].FromServer {
			t.Errorf("on record: %+v", refused)
		}
	})
}

// If a client responds to a server's requests, the gateway sends the responses to the server only if the policy allows
// the server to send requests.
func TestInputResponses_NeedAServerThatMayAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		answers := `"name":"safe","inputResponses":{"s":{"action":"accept"}},"requestState":"z"`
		if got := w.doModern("tools/call", "safe", answers); got.code() != "method_denied" {
			t.Errorf("where it may ask nothing: %s", got.body)
		}
		w.Policy.Access.Methods = everything
		if got := w.doModern("tools/call", "safe", answers); got.code() != "" || got.status != 200 {
			t.Errorf("where it may: %s", got.body)
		}
	})
}
