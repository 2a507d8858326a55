package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/protocol"
	"github.com/sluice-mesh/sluice/services/gateway/internal/sse"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}`

func TestServe_AcceptsOnlyUncompressedJSON(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		message := gatewaytest.Message{Server: "files", Body: ping}.In(g.Connect("files"))
		for _, tt := range []struct {
			kind, encoding []string
			accepted       bool
		}{
			{[]string{"application/json"}, nil, true},
			{[]string{"application/json"}, []string{""}, true},
			{[]string{"application/json; charset=utf-8"}, nil, true},
			{[]string{"Application/JSON;charset=UTF-8"}, nil, true},
			{[]string{"application/json; charset=utf-16"}, nil, false},
			{[]string{"application/json;"}, nil, true},
			{[]string{"application/json; charset"}, nil, false},
			{[]string{"application/json-seq"}, nil, false},
			{[]string{"text/plain"}, nil, false},
			{[]string{""}, nil, false},
			{nil, nil, false},
			{[]string{"application/json", "application/json"}, nil, false},
			{[]string{"application/json"}, []string{"gzip"}, false},
			{[]string{"application/json"}, []string{"identity"}, false},
			{[]string{"application/json"}, []string{"", ""}, false},
			{[]string{"application/json; charset=utf-8"}, []string{"gzip"}, false},
		} {
			got := g.Do(message.With("Content-Type", tt.kind...).With("Content-Encoding", tt.encoding...))
			if accepted := got.Status == http.StatusOK; accepted != tt.accepted || !accepted && (got.Code() != "media_type" || got.Status != http.StatusUnsupportedMediaType) {
				t.Errorf("type %q and encoding %q: %d %s", tt.kind, tt.encoding, got.Status, got.Text)
			}
		}
	})
}

func TestServe_RefusesBodiesThatAreNotAMessage(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		for body, want := range map[string]string{
			"":                                  "json_invalid",
			"{":                                 "json_invalid",
			`{"jsonrpc":"2.0","id":1} x`:        "json_trailing",
			`{"jsonrpc":"2.0","id":1,"id":2}`:   "json_duplicate_key",
			`[` + ping + `]`:                    "batch",
			`{"jsonrpc":"1.0","id":1}`:          "jsonrpc_invalid",
			`{"jsonrpc":"2.0","method":"ping"}`: "id_invalid",
			ping + strings.Repeat(" ", 4<<20):   "body_too_large",
			`{"jsonrpc":"2.0","Id":1,"id":1}`:   "field_case_variant",
			"{\"jsonrpc\":\"2.0\",\"a\":\"\xff": "json_encoding",
		} {
			got := g.Do(gatewaytest.Message{Server: server, Body: body})
			if got.Code() != want || got.Status != http.StatusBadRequest || !strings.Contains(got.Text, `"id":null`) || !strings.Contains(got.Text, "(at byte ") {
				t.Errorf("%.40q: %d %s, want %s", body, got.Status, got.Text, want)
			}
		}
		for _, r := range g.Journal.Records(journal.KindRefusal) {
			if r.Method != "" || r.Tool != "" {
				t.Errorf("recorded is %+v", r)
			}
		}
	})
}

func TestServe_ReadsBodiesOfUnknownSize(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		x := g.Request(t.Context(), gatewaytest.Message{Server: "files"}, sse.NewWriter(httptest.NewRecorder(), nil))
		got := x.Serve(strings.NewReader(gatewaytest.Initialize), -1)
		x.End(got)
		if got.Refusal != nil || got.Session == "" {
			t.Errorf("refused as %+v", got.Refusal)
		}
	})
}

func TestServe_RefusesABodyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		x := g.Request(t.Context(), gatewaytest.Message{Server: "files"}, sse.NewWriter(httptest.NewRecorder(), nil))
		got := x.Serve(iotest.ErrReader(errors.New("broken")), -1)
		x.End(got)
		if got.Refusal == nil || got.Refusal.Code != commonv1.Code_CODE_JSON_INVALID || got.Refusal.Message != "the body could not be read." {
			t.Errorf("refused as %+v", got.Refusal)
		}
	})
}

// At the URL for all servers, the gateway adds the server's name to the ids of servers' requests. Clients repeat these
// ids in their responses, so ids may be longer.
func TestServe_IDsMayBeTwiceAsLongAtAllServers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		for server, most := range map[string]int{"files": 128, "": 256} {
			session := g.Connect(server)
			for length, want := range map[int]string{most: "", most + 1: "id_invalid"} {
				m := gatewaytest.Message{Server: server, Body: strings.Replace(ping, `"id":1`, `"id":"`+strings.Repeat("i", length)+`"`, 1)}
				if got := g.Do(m.In(session)); got.Code() != want {
					t.Errorf("server %q, an id of %d characters: %s", server, length, got.Text)
				}
			}
		}
	})
}

func TestServe_RefusesRepeatedMcpHeaders(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		message := gatewaytest.Message{Server: server, Body: ping}.In(g.Connect(server))
		for header, want := range map[string]string{"Mcp-Session-Id": "header_mismatch", "Mcp-Name": "header_mismatch", "Mcp-Param-X": "header_mismatch", "X-Mcp": "", "Traceparent": ""} {
			if got := g.Do(message.With(header, "a", "a")); got.Code() != want && (want != "" || got.Status != http.StatusOK) {
				t.Errorf("%s: %d %s, want %q", header, got.Status, got.Text, want)
			}
		}
	})
}

func TestServe_ResponseThatAServerWaitsForMayBeLarge(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("roots/list")
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
			g.Files().Notified(2) // notifications/initialized and the response
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		session := g.ConnectAs(gatewaytest.Message{Server: server, Body: gatewaytest.InitializeAll})
		tool, id := "safe", "3"
		if server == "" {
			tool, id = "files__safe", `"files:3"`
		} else {
			g.Do(gatewaytest.Message{Server: server, Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}.In(session))
		}
		stream := g.Stream(gatewaytest.Call(tool, "").To(server).In(session))
		if got := stream.Next(); !strings.Contains(got, `"id":`+id+`,"method":"roots/list"`) {
			t.Fatalf("the client got %s", got)
		}
		response := `{"jsonrpc":"2.0","id":%s,"result":{"x":"` + strings.Repeat("x", 64<<10) + `"}}`
		if got := g.Do(gatewaytest.Message{Server: server, Body: fmt.Sprintf(response, id)}.In(session)); got.Status != http.StatusAccepted {
			t.Errorf("the response: %d %s", got.Status, got.Text)
		}
		if got := stream.Next(); !strings.Contains(got, `"content":[]`) {
			t.Errorf("the call is answered %s", got)
		}
		stream.End()
		if got := g.Do(gatewaytest.Message{Server: server, Body: fmt.Sprintf(response, id)}.In(session)); got.Code() != "body_too_large" {
			t.Errorf("a response that no request waits for: %d %s", got.Status, got.Text)
		}
	})
}

func TestServe_MessagesThatNeedNoRuleAreSmall(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		session := g.Connect(server)
		for _, message := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"%s"}}`,
			`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"x":"%s"}}`,
			`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"x":"%s"}}`,
		} {
			if got := g.Do(gatewaytest.Message{Server: server, Body: fmt.Sprintf(message, strings.Repeat("x", 64<<10))}.In(session)); got.Code() != "body_too_large" || got.Status != http.StatusBadRequest {
				t.Errorf("%.60s: %d %s", message, got.Status, got.Text)
			}
			if got := g.Do(gatewaytest.Message{Server: server, Body: fmt.Sprintf(message, strings.Repeat("x", 60<<10))}.In(session)); got.Code() == "body_too_large" {
				t.Errorf("a smaller one, %.60s: %d %s", message, got.Status, got.Text)
			}
		}
		call := gatewaytest.Call("files__safe", `{"x":"`+strings.Repeat("x", 64<<10)+`"}`)
		if got := g.Do(call.To(server).In(session)); got.Code() == "body_too_large" {
			t.Errorf("a call: %d %s", got.Status, got.Text)
		}
	})
}

func TestServe_CallerWithTooManyRequestsInFlightIsRefused(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		for range 512 {
			slot, err := g.MCP.InFlight.Begin(gatewaytest.Caller("ana").Principal, server)
			if err != nil {
				t.Fatal(err)
			}
			defer slot.End()
		}
		message := gatewaytest.Message{Server: server, Body: gatewaytest.Initialize}
		if got := g.Do(message); got.Status != http.StatusTooManyRequests || got.Code() != "abuse_limited" || !strings.Contains(got.Text, "requests in flight") {
			t.Errorf("%d %s", got.Status, got.Text)
		}
		if got := g.Do(message.From("ben")); got.Status != http.StatusOK {
			t.Errorf("another caller: %d %s", got.Status, got.Text)
		}
	})
}

func TestEnd_ReleasesTheRequest(t *testing.T) {
	t.Parallel()
	forEachAddress(t, func(t *testing.T, server string) {
		g := gatewaytest.Start(t)
		for range 2 * 512 {
			g.Do(gatewaytest.Message{Server: server, Body: ping})
			g.Do(gatewaytest.Message{Server: server, Body: "{"})
		}
		session := g.Connect(server)
		if got := g.Do(gatewaytest.Message{Server: server, Body: ping}.In(session)); got.Status != http.StatusOK {
			t.Errorf("after requests that have ended: %d %s", got.Status, got.Text)
		}
		for _, state := range g.Sessions.List(gatewaytest.Tenant) {
			if state.InFlight != 0 {
				t.Errorf("a session has %d requests in flight", state.InFlight)
			}
		}
		if begun, ended := len(g.Spans.Started()), len(g.Spans.Ended()); begun == 0 || begun != ended {
			t.Errorf("%d spans have begun, and %d have ended", begun, ended)
		}
	})
}

// Case X9. A request to a hidden server gets the same answer as a request to a server that is not configured. In both
// cases the gateway first sends the same request to the policy service.
func TestServe_HiddenServerIsAnsweredLikeAnAbsentOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Access = new(policyv1.CheckServerResponse) // no method or tool may be called, listed or shown
		var texts []string
		for _, server := range []string{"files", "other"} {
			got := g.Do(gatewaytest.Message{Server: server, Body: gatewaytest.Initialize})
			if got.Status != http.StatusNotFound || got.Code() != "tool_unknown" {
				t.Errorf("%s: %d %s", server, got.Status, got.Text)
			}
			texts = append(texts, strings.Replace(got.Text, server, "NAME", 1)[:120])
		}
		if texts[0] != texts[1] {
			t.Errorf("the answers differ:\n%s\n%s", texts[0], texts[1])
		}
		if got := g.Policy.Checked(); len(got) != 2 || got[0] != "files" || got[1] != "other" {
			t.Errorf("policy was asked about %q", got)
		}
		if len(g.Files().Opened()) != 0 {
			t.Error("the server was contacted")
		}
	})
}

func TestIsAbsent_TellsConfiguredServersFromOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		ana := gatewaytest.Caller("ana")
		for server, want := range map[string]bool{
			"files": false, "other": true, "": true, "Files": true, "files/": true, "a b": true, strings.Repeat("f", 33): true,
		} {
			if got := g.MCP.IsAbsent(t.Context(), ana, server); got != want {
				t.Errorf("%q: %t, want %t", server, got, want)
			}
		}
		if got := g.Policy.Checked(); len(got) != 2 {
			t.Errorf("policy was asked about %q, and only about names that can be configured is it to be asked", got)
		}
		g.Policy.Access = nil
		if g.MCP.IsAbsent(t.Context(), ana, "files") {
			t.Error("a server is absent because policy does not answer")
		}
	})
}

func TestServe_TrustedParentContinuesTheTraceOfTheClient(t *testing.T) {
	t.Parallel()
	const trace, parent = "0af7651916cd43dd8448eb211c80319c", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, trusted := range map[string]bool{"trusted": true, "not trusted": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Config.TrustParent = trusted
				g.Start()
				g.Do(gatewaytest.Message{Body: ping}.With("Traceparent", parent))
				g.Do(gatewaytest.Message{Body: ping}.With("Traceparent", parent, parent))
				var pings []sdktrace.ReadOnlySpan
				for _, span := range g.Spans.Ended() {
					if span.Name() == "ping" {
						pings = append(pings, span)
					}
				}
				if len(pings) != 2 {
					t.Fatalf("%d spans of pings have ended", len(pings))
				}
				span, repeated := pings[0], pings[1]
				if continues := span.SpanContext().TraceID().String() == trace; continues != trusted || (len(span.Links()) == 1) == trusted {
					t.Errorf("the trace of the client is continued: %t; links: %v", continues, span.Links())
				}
				if repeated.SpanContext().TraceID().String() == trace || len(repeated.Links()) != 0 {
					t.Errorf("a repeated header is used: %v", repeated.Links())
				}
			})
		})
	}
}

// The gateway handles a server's request to the client in another goroutine. The span of that request belongs to the
// trace of the client's message.
func TestServe_ServersRequestsAreInTheTraceOfTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
			g.Files().Notified(1)
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		g.Do(gatewaytest.Call("safe", "").In(g.Connect("files")))
		traces := make(map[string]string)
		for _, span := range g.Spans.Ended() {
			traces[span.Name()] = span.SpanContext().TraceID().String()
		}
		if traces["roots/list"] == "" || traces["roots/list"] != traces["tools/call safe"] {
			t.Errorf("the traces are %v", traces)
		}
	})
}

// The gateway lists the tools of a stdio server again only if a client has used the server after the last listing.
func TestServe_MessageToAProgramMakesTheGatewayListItAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.New(t)
		g.Policy.Revision, g.Files().Transport = "rev", "stdio"
		lists, own := 0, g.Files().Discovery
		g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				lists++
			}
			return own(r)
		}
		g.Start()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- g.MCP.Discover(ctx) }()
		time.Sleep(time.Hour)
		if lists != 1 {
			t.Errorf("a program that is not used was listed %d times", lists)
		}
		g.Do(gatewaytest.Message{Server: "files", Body: ping})
		time.Sleep(time.Hour)
		if lists == 1 {
			t.Error("a program that was used was not listed again")
		}
		cancel()
		<-ended
	})
}

func TestTooMuchInFlight_NamesTheQuota(t *testing.T) {
	t.Parallel()
	full := quota.NewTally("calls of this test", quota.Limits{Principal: 0, Person: 1})
	accounts := accountsOf("ana")
	for err, want := range map[error]string{
		full.Acquire(&accounts, 1): "calls of this test", nil: "too many or too large requests in flight", errors.New("x"): "too many or too large requests in flight",
	} {
		got := protocol.TooMuchInFlight(err)
		if got.Code != commonv1.Code_CODE_ABUSE_LIMITED || !got.IsProtocolError || !strings.Contains(got.Message, want) || !strings.HasSuffix(got.Message, "; wait for some of them.") {
			t.Errorf("%v: %+v", err, got)
		}
	}
}

func TestInvalidMessage_HidesErrorsThatAreNotTheParsers(t *testing.T) {
	t.Parallel()
	if got := protocol.InvalidMessage(errors.New("secret")); got.Code != commonv1.Code_CODE_JSON_INVALID || got.Message != "" || !got.IsProtocolError {
		t.Errorf("%+v", got)
	}
}

func TestSingleHeader_NeedsOneNonEmptyLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		lines []string
		value string
		ok    bool
	}{{[]string{"a"}, "a", true}, {[]string{""}, "", false}, {nil, "", false}, {[]string{"a", "b"}, "", false}, {[]string{"a", "a"}, "", false}} {
		if value, ok := protocol.SingleHeader(http.Header{"H": tt.lines}, "H"); value != tt.value || ok != tt.ok {
			t.Errorf("%q: %q, %t", tt.lines, value, ok)
		}
	}
}
