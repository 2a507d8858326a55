package v2026_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case T1. The policy service evaluates the body. A message is refused if its headers disagree with its body.
func TestPost_HeadersMustAgreeWithTheBody(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		call, name := at.call("safe", ""), at.prefix+"safe"
		for what, tt := range map[string]struct {
			message gatewaytest.Message
			status  int
			want    string // empty if the server receives the call
		}{
			"all the same":             {call, 200, ""},
			"a name in base64":         {call.With("Mcp-Name", "=?base64?"+map[string]string{"safe": "c2FmZQ==", "files__safe": "ZmlsZXNfX3NhZmU="}[name]+"?="), 200, ""},
			"no revision":              {call.With("Mcp-Protocol-Version"), 400, "-32020"},
			"no method":                {call.With("Mcp-Method"), 400, "-32020"},
			"another method":           {call.With("Mcp-Method", "tools/list"), 400, "-32020"},
			"a method in another case": {call.With("Mcp-Method", "Tools/Call"), 400, "-32020"},
			"no name":                  {call.With("Mcp-Name"), 400, "-32020"},
			"another name":             {call.With("Mcp-Name", at.prefix+"pay"), 400, "-32020"},
			"invalid base64":           {call.With("Mcp-Name", "=?base64?!?="), 400, "-32020"},
			"no revision in the body":  {call.Replace("/protocolVersion", "/x"), 400, "-32602"},
			"no capabilities":          {call.Replace("/clientCapabilities", "/x"), 400, "-32602"},
			"a response":               {gatewaytest.Message{Server: at.server, Body: `{"jsonrpc":"2.0","id":7,"result":{}}`}.With("Mcp-Protocol-Version", "2026-07-28"), 400, "-32600"},
			"a removed method":         {gatewaytest.Modern("logging/setLevel", "", `"level":"debug"`).To(at.server), 404, "-32601"},
		} {
			before := len(g.Files().Requests())
			got := g.Do(tt.message)
			sent := len(g.Files().Requests()) - before
			if got.Status != tt.status || tt.want != "" && !strings.Contains(got.Text, `"code":`+tt.want) || (sent == 1) != (tt.want == "") {
				t.Errorf("%s: %d %s, and the server got %d requests", what, got.Status, got.Text, sent)
			}
		}
	})
}

// If a tool expects arguments in headers, the headers must contain the same values. A tool that is hidden from the
// caller is refused as unknown, regardless of the headers.
func TestPost_ArgumentsInHeadersMustAgree(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]address{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t)
				call := at.call("region", `"arguments":{"r":"eu"}`)
				g.Do(gatewaytest.Modern("tools/list", "", "").To(at.server)) // makes the server's tools known
				for what, tt := range map[string]struct {
					message gatewaytest.Message
					want    string
				}{
					"the same": {call.With("Mcp-Param-Region", "eu"), ""}, "another": {call.With("Mcp-Param-Region", "us"), "header_mismatch"}, "none": {call, "header_mismatch"},
				} {
					if got := g.Do(tt.message); got.Code() != tt.want {
						t.Errorf("%s: %d %s", what, got.Status, got.Text)
					}
				}
				if got := g.Files().Requests(); len(got) != 1+len(tools(got)) {
					t.Errorf("the server got %q", got)
				}
				g.Policy.Change(func() {
					g.Policy.Access.HidesNone = false
					g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
						resp := new(policyv1.FilterToolsResponse)
						for _, tool := range r.GetTools() {
							resp.Tools = append(resp.Tools, &policyv1.ToolVisibility{Name: tool.GetName(), Visible: tool.GetName() == "safe"})
						}
						return resp, nil
					}
				})
				if got := g.Do(call.With("Mcp-Param-Region", "us").From("ben")); got.Code() != "tool_unknown" {
					t.Errorf("a hidden tool: %d %s", got.Status, got.Text)
				}
			})
		})
	}
}

// tools returns those of the given requests that are tools/list requests.
func tools(requests []string) (out []string) {
	for _, r := range requests {
		if strings.Contains(r, `"method":"tools/list"`) {
			out = append(out, r)
		}
	}
	return out
}

// A server responds that a header is wrong or that it does not support the revision. Its tools may have changed, so the
// gateway lists them again.
func TestAnswer_ErrorsOfTheRevisionMakeTheGatewayListTheServer(t *testing.T) {
	t.Parallel()
	for code, want := range map[int]bool{-32020: true, -32022: true, -32603: false} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t)
				lists, own := 0, g.Files().Discovery
				g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						lists++
					}
					return own(r)
				}
				g.Do(gatewaytest.ModernCall("safe", ""))
				time.Sleep(time.Minute)
				synctest.Wait()
				before := lists
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.ErrorAnswer(r, fmt.Sprintf(`{"code":%d,"message":"no"}`, code)), nil
				}
				got := g.Do(gatewaytest.ModernCall("safe", ""))
				synctest.Wait()
				if !strings.Contains(got.Text, fmt.Sprint(code)) || (lists > before) != want {
					t.Errorf("listed %d times, then %d times; the client got %s", before, lists, got.Text)
				}
			})
		})
	}
}

// A message of revision 2026-07-28 contains a session header, which only other revisions use. The message is accepted
// only if the server supports revision 2026-07-28, because such a server can ignore the header.
func TestPost_WithASessionNeedsAServerOfThisRevision(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.Do(at.call("safe", "")) // makes the server's revisions known
		got := g.Do(at.call("safe", "").With("Mcp-Session-Id", "x"))
		isModern := strings.Contains(last(g.Files()), "io.modelcontextprotocol/protocolVersion")
		if at.server == "" || !isModern {
			if got.Status != http.StatusBadRequest || got.Code() != "protocol_version" || !strings.Contains(got.Text, `"requested":"2026-07-28"`) {
				t.Errorf("%d %s", got.Status, got.Text)
			}
		} else if got.Status != http.StatusOK || got.Code() != "" {
			t.Errorf("%d %s", got.Status, got.Text)
		}
	})
}

// The server receives the client's bytes, except that combined names are replaced and capabilities that the policy
// denies are removed. A server that uses sessions receives the message in a session.
func TestCall_ReachesServersOfBothFamilies(t *testing.T) {
	t.Parallel()
	forEachAddress(t, []string{"sampling/createMessage"}, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		call := at.call("safe", `"arguments":{"n":1.50,"big":9007199254740993}`)
		if got := g.Do(call); got.Status != 200 || got.Text != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[]}}` || got.Response.Session != "" {
			t.Errorf("the client got %d %s", got.Status, got.Text)
		}
		got := last(g.Files())
		if strings.Contains(got, "io.modelcontextprotocol") {
			want := gatewaytest.ModernCall("safe", `"arguments":{"n":1.50,"big":9007199254740993}`).Replace(gatewaytest.Capabilities, `{"sampling":{}}`).Body
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the server got (-want +got):\n%s", diff)
			}
		} else if !strings.Contains(got, `"params":{"_meta":{},"name":"safe","arguments":{"n":1.50,"big":9007199254740993}}`) || !strings.Contains(string(g.Files().Opened()[0].Body()), `"capabilities":{"sampling":{}}`) {
			t.Errorf("the server got %s after %s", got, g.Files().Opened()[0].Body())
		}
		intents := g.Journal.Records(journal.KindIntent)
		if len(intents) != 1 || intents[0].Session != "" || intents[0].Tool != "safe" || intents[0].Server != "files" {
			t.Errorf("on record is %+v", intents)
		}
		if got := g.Inside(call, nil); string(got.Joined) != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete","content":[]}}` {
			t.Errorf("a caller inside got %s", got.Joined)
		}
	})
}

// MCP defines the HTTP status for some errors. All other answers have status 200.
func TestAnswer_KeepsTheStatusOfErrors(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		for _, tt := range []struct {
			isError      bool
			status, want int
		}{{true, 404, 404}, {true, 400, 400}, {true, 500, 200}, {true, 200, 200}, {false, 404, 200}, {false, 200, 200}} {
			g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				a := gatewaytest.Result(r, `{"content":[]}`)
				if tt.isError {
					a = gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`)
				}
				a.Status = tt.status
				return a, nil
			}
			if got := g.Do(gatewaytest.ModernCall("safe", "")); got.Status != tt.want {
				t.Errorf("%+v: %d %s", tt, got.Status, got.Text)
			}
		}
	})
}

// An answer depends on the caller's permissions, so caches must not return it to another caller.
func TestAnswer_IsPrivateToTheCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "prompts/list")
		g.Files().Respond(`{"content":[],"tools":[],"prompts":[],"ttlMs":60000,"cacheScope":"public"}`)
		for method, ttl := range map[string]string{"tools/call": "60000", "tools/list": "0", "prompts/list": "60000"} {
			m := gatewaytest.Modern(method, "", "")
			if method == "tools/call" {
				m = gatewaytest.ModernCall("safe", "")
			}
			if got := g.Do(m); !strings.Contains(got.Text, `"ttlMs":`+ttl+`,"cacheScope":"private"`) {
				t.Errorf("%s: %s", method, got.Text)
			}
		}
		g.Policy.Change(func() {
			g.Policy.Access.PromptsAlike, g.Policy.HidesName = false, func(string) bool { return false }
		})
		if got := g.Do(gatewaytest.Modern("prompts/list", "", "")); !strings.Contains(got.Text, `"ttlMs":0,"cacheScope":"private"`) {
			t.Errorf("a list that was filtered: %s", got.Text)
		}
	})
}

// When the gateway itself answers a request, the result has the resultType that the revision requires.
func TestRefusal_OfACallHasTheTypeOfTheRevision(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		if got := g.Do(at.call("safe", "")); !strings.Contains(got.Text, `"result":{"resultType":"complete","content":[`) || !strings.Contains(got.Text, `"isError":true`) {
			t.Errorf("%s", got.Text)
		}
	})
}

// The gateway reports to the catalog in which revision a server has listed its tools.
func TestListTools_AreReportedInTheRevisionOfTheServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(testing.TB) *gatewaytest.Server
		want   string
	}{"with sessions": {gatewaytest.NewServer, "2025-11-25"}, "without sessions": {gatewaytest.NewModernServer, "2026-07-28"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = tt.server(t)
				g.Start()
				g.Do(gatewaytest.ModernCall("safe", "")) // makes the gateway list the server
				g.Files().Respond(`{"tools":[{"name":"new","inputSchema":{"type":"object"}}],"resultType":"complete"}`)
				g.Do(gatewaytest.Modern("tools/list", "", ""))
				reports := g.Catalog.Reports()
				if last := reports[len(reports)-1]; last.Head.GetProtocolVersion() != tt.want || last.To.GetSubject() != "ana" {
					t.Errorf("reported is %+v for %v", last.Head, last.To)
				}
			})
		})
	}
}

// The gateway asks a server once which revisions it supports. The request that causes this is counted as a probe.
func TestPost_AsksOnceForTheRevisionsOfTheServer(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		asked, own := 0, g.Files().Discovery
		g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				asked++
			}
			return own(r)
		}
		for range 3 {
			if got := g.Do(at.call("safe", "")); got.Code() != "" {
				t.Fatalf("%s", got.Text)
			}
		}
		if passed := g.Passed(); asked != 1 || passed["probe"] != 1 {
			t.Errorf("the server was asked %d times, counted are %v", asked, passed)
		}
	})
}

func TestPost_IsRefusedIfTheRevisionsCannotBeKnown(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.Files().Discovery = func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }
		if got := g.Do(at.call("safe", "")); got.Status != http.StatusOK || got.Code() != "upstream_unavailable" {
			t.Errorf("%d %s", got.Status, got.Text)
		}
		for g.Pipeline.CountExempt(exempt()) == nil { // uses the whole quota
		}
		time.Sleep(time.Second / 2)
		if got := g.Do(at.call("safe", "")); got.Code() != "abuse_limited" {
			t.Errorf("a probe that is one too many: %s", got.Text)
		}
	})
}

func TestPost_IsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		call := at.call("safe", "")
		g.Do(call)
		call.Caller = gatewaytest.Caller("ana")
		call.Caller.Stale = true
		if got := g.Do(call); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %s", got.Text)
		}
		call.Caller.Stale = false
		g.Policy.Change(func() { g.Policy.Access = nil })
		if got := g.Do(call); got.Code() != "policy_unavailable" || len(g.Files().Requests()) != 1 {
			t.Errorf("without policy: %s", got.Text)
		}
	})
}

// The gateway answers a notification of revision 2026-07-28 with status 202 and sends it to no server. A client cancels
// a request by closing the request's stream, so it needs no notification.
func TestNotification_IsRefusedAndReachesNoServer(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		for _, method := range []string{"notifications/cancelled", "notifications/roots/list_changed", "notifications/vendor"} {
			before := len(g.Journal.Refusals())
			m := gatewaytest.Message{Server: at.server, Body: `{"jsonrpc":"2.0","method":"` + method + `"}`}.With("Mcp-Protocol-Version", "2026-07-28")
			got := g.Do(m)
			if got.Status != http.StatusAccepted || got.Text != "" || len(g.Journal.Refusals()) != before+1 {
				t.Errorf("%s: %d %s, recorded is %q", method, got.Status, got.Text, g.Journal.Refusals()[before:])
			}
		}
		synctest.Wait()
		if n := len(g.Files().Notified(0)); n != 0 {
			t.Errorf("the server was notified %d times", n)
		}
		if passed := g.Passed(); passed["notifications/cancelled"] != 1 || passed["notifications/vendor"] != 0 {
			t.Errorf("counted are %v", passed)
		}
	})
}

func TestPost_RequestsToAServerAreLimited(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		g.Do(at.call("safe", ""))
		for range 256 {
			slot, err := g.MCP.InFlight.Begin(gatewaytest.Caller("ana").Principal, "files")
			if err != nil {
				t.Fatal(err)
			}
			defer slot.End()
			if err := slot.Admit(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := g.Do(at.call("safe", "")); got.Code() != "abuse_limited" || len(g.Files().Requests()) != 1 {
			t.Errorf("%s", got.Text)
		}
	})
}

func TestPost_InputResponsesNeedAServerThatMayAsk(t *testing.T) {
	t.Parallel()
	for may, methods := range map[bool][]string{true: {"sampling/createMessage"}, false: nil} {
		t.Run(fmt.Sprint(may), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, methods...)
				for _, at := range []address{{"files", ""}, {"", "files__"}} {
					got := g.Do(at.call("safe", `"inputResponses":{"a":{}},"requestState":"z"`))
					if (got.Code() == "") != may || !may && (got.Code() != "method_denied" || !strings.Contains(got.Text, "without inputResponses")) {
						t.Errorf("at %q: %s", at.server, got.Text)
					}
				}
			})
		})
	}
}

// Case U1. If a method's answers may contain requests to the client, the policy service evaluates each such request.
func TestAnswer_RequestsForTheClientAreDecided(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		method, named, params string
		methods               []string
		want                  bool
	}{
		"a call":                   {"tools/call", "safe", `"name":"safe"`, []string{"sampling/createMessage"}, true},
		"a prompt":                 {"prompts/get", "p", `"name":"p"`, []string{"sampling/createMessage"}, true},
		"a request that is denied": {"tools/call", "safe", `"name":"safe"`, nil, false},
		"a method without them":    {"completion/complete", "", `"ref":{"type":"ref/prompt","name":"p"},"argument":{"name":"a","value":"b"}`, []string{"sampling/createMessage", "completion/complete"}, false},
		"a list":                   {"tools/list", "", "", []string{"sampling/createMessage"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, tt.methods...)
				g.Files().Respond(`{"resultType":"input_required","tools":[],"inputRequests":{"s":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}},"requestState":"z"}`)
				got := g.Do(gatewaytest.Modern(tt.method, tt.named, tt.params))
				if passed := strings.Contains(got.Text, `"requestState":"z"`); passed != tt.want || !passed && got.Code() != "outcome_unknown" {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

// If an answer contains a server's request, the client responds to that request inside its next message, where the
// gateway makes no redactions. The gateway therefore does not forward a server's request if the response would have to
// be redacted.
func TestAnswer_RequestsWhoseAnswersMustBeReplacedAreRefused(t *testing.T) {
	t.Parallel()
	for target, code := range map[policyv1.RedactionTarget]string{
		policyv1.RedactionTarget_REDACTION_TARGET_RESULT: "outcome_unknown", policyv1.RedactionTarget_REDACTION_TARGET_ARGUMENTS: "",
	} {
		t.Run(target.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, "sampling/createMessage")
				g.Files().Respond(`{"resultType":"input_required","inputRequests":{"s":{"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}},"requestState":"z"}`)
				g.Policy.Change(func() {
					g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW, Redactions: []*policyv1.Redaction{
						{Rule: &policyv1.RuleRef{Document: "files", Rule: "clean"}, Target: target, Detector: "email"},
					}}
				})
				if got := g.Do(gatewaytest.Modern("tools/call", "safe", `"name":"safe"`)); got.Code() != code {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

// If a server uses sessions, the policy service evaluates each of the server's requests when the server sends it. It
// does not evaluate the request again when the client receives it in the answer.
func TestAnswer_RequestsOfServersWithSessionsAreDecidedOnce(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]address{"one server": {"files", ""}, "all servers": {"", "files__"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow("sampling/createMessage")
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					events([]byte(`{"jsonrpc":"2.0","id":3,"method":"sampling/createMessage","params":{"messages":[],"maxTokens":1}}`))
					g.Files().Notified(2) // notifications/initialized and the client's response
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				first := g.Do(at.call("safe", ""))
				state, key := between(first.Text, `"requestState":"`, `"`), between(first.Text, `"inputRequests":{"`, `"`)
				if state == "" || !strings.Contains(first.Text, `"method":"sampling/createMessage"`) {
					t.Fatalf("the client got %s", first.Text)
				}
				second := g.Do(at.call("safe", `"requestState":"`+state+`","inputResponses":{"`+key+`":{"role":"assistant"}}`))
				if !strings.Contains(second.Text, `"content":[]`) || !strings.Contains(g.Files().Notified(2)[1], `"id":3,"result":{"role":"assistant"}`) {
					t.Errorf("the client got %s, the server got %q", second.Text, g.Files().Notified(2))
				}
				asked := 0
				for _, r := range g.Journal.Records(journal.KindIntent) {
					if r.FromServer {
						asked++
					}
				}
				if asked != 1 {
					t.Errorf("the request is on record %d times", asked)
				}
			})
		})
	}
}

func TestCall_IsCancelledWhenTheClientDisconnects(t *testing.T) {
	t.Parallel()
	forEachAddress(t, nil, func(t *testing.T, g *gatewaytest.Gateway, at address) {
		begun, ended := make(chan struct{}), make(chan error, 1)
		g.Files().Request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			close(begun)
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrNoAnswer, context.Cause(ctx))
		}
		stream, begin := g.Stream(at.call("safe", "")), time.Now()
		<-begun
		stream.HangUp()
		if err := <-ended; err == nil || time.Since(begin) > time.Second {
			t.Errorf("the request ended after %v: %v", time.Since(begin), err)
		}
		stream.End()
		if got := g.Journal.Records(journal.KindOutcome); len(got) != 1 {
			t.Errorf("on record is %+v", got)
		}
	})
}
