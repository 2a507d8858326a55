package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func tool(name string) string { return `{"name":"` + name + `","inputSchema":{"type":"object"}}` }

// lists sets the server's answer to tools/list in clients' sessions. The answer contains the given tools and, after
// them, the JSON members in the parameter more.
func lists(s *gatewaytest.Server, tools, more string) {
	own := s.Request
	s.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return gatewaytest.Result(r, `{"tools":[`+tools+`]`+more+`}`), nil
		}
		return own(ctx, r, events)
	}
}

// ownLists sets the server's answer to the gateway's own tools/list requests.
func ownLists(s *gatewaytest.Server, tools string) {
	own := s.Discovery
	s.Discovery = func(r upstream.Request) (upstream.Answer, error) {
		if r.Method() == "tools/list" {
			return gatewaytest.Result(r, `{"tools":[`+tools+`]}`), nil
		}
		return own(r)
	}
}

// list returns a tools/list request in a session.
func list(params string) gatewaytest.Message { return gatewaytest.Plain("tools/list", params) }

// A list contains the tools that the caller may see. If the server has sent metadata keys that are reserved for the
// gateway, the gateway removes them.
func TestListTools_ShowsWhatTheCallerMaySee(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		lists(g.Files(), tool("a")+` , `+tool("secret")+`, {"name":"b","_meta":{"dev.sluice/x":1,"y":2}}, `+tool("c")+","+tool("c"), `,"x":1`)
		got := g.Do(list("{}").In(g.Connect("files")))
		want := `{"jsonrpc":"2.0","id":1,"result":{"tools":[` + tool("a") + ` , {"name":"b","_meta":{"y":2}}],"x":1}}`
		if diff := cmp.Diff(want, got.Text); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if sent := g.Files().Requests(); len(sent) != 1 || strings.Contains(sent[0], `"id":1,`) {
			t.Errorf("the server got %q", sent)
		}
	})
}

// The server chooses the cursors of its list. The gateway sends a cursor to the server only if the session has received
// that cursor.
func TestListTools_AcceptsCursorsOfTheSession(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		lists(g.Files(), tool("a"), `,"nextCursor":"n"`)
		first, second := g.Connect("files"), g.Connect("files")
		next := list(`{"cursor":"n"}`)
		if got := g.Do(next.In(first)); got.Code() != "params_invalid" || len(g.Files().Requests()) != 0 {
			t.Errorf("before it was given: %s", got.Text)
		}
		g.Do(list("{}").In(first))
		if got := g.Do(next.In(first)); got.Code() != "" || !strings.Contains(g.Files().Requests()[1], `"cursor":"n"`) {
			t.Errorf("after it was given: %s", got.Text)
		}
		if got := g.Do(next.In(second)); got.Code() != "params_invalid" {
			t.Errorf("in another session: %s", got.Text)
		}
	})
}

// After the session has listed a tool whose calls all require an approval, the last page of the list also contains the
// gateway's own tool for waiting for approvals.
func TestListTools_HasTheWaitToolOnTheLastPage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		needs := map[string]bool{"a": true}
		g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			resp, err := gatewaytest.FilterSecrets(r)
			for _, tool := range resp.GetTools() {
				if needs[tool.GetName()] {
					tool.Code = commonv1.Code_CODE_APPROVAL_REQUIRED
				}
			}
			return resp, err
		}
		session := g.Connect("files")
		for _, tt := range []struct {
			name, tools, more, params string
			want                      bool
		}{
			{"a tool without approvals", tool("b"), "", "{}", false},
			{"a page that is not the last", tool("a"), `,"nextCursor":"n"`, "{}", false},
			{"the last page", tool("b"), "", `{"cursor":"n"}`, true},
			{"another list", "", "", "{}", true},
		} {
			lists(g.Files(), tt.tools, tt.more)
			if got := g.Do(list(tt.params).In(session)); strings.Contains(got.Text, "sluice_approval_wait") != tt.want {
				t.Errorf("%s: %s", tt.name, got.Text)
			}
		}
		needs = map[string]bool{"secret": true}
		other := g.Connect("files")
		lists(g.Files(), tool("secret"), "")
		if got := g.Do(list("{}").In(other)); strings.Contains(got.Text, "sluice_approval_wait") {
			t.Errorf("for a hidden tool: %s", got.Text)
		}
	})
}

func TestListTools_IsRefusedIfItCannotBeFiltered(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*gatewaytest.Gateway)
		want   string
	}{
		"no list": {func(g *gatewaytest.Gateway) { g.Files().Respond(`{"content":[]}`) }, "upstream_unavailable"},
		"no answer": {func(g *gatewaytest.Gateway) {
			g.Files().Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
				return upstream.Answer{}, upstream.ErrNoAnswer
			}
		}, "upstream_unavailable"},
		"no answer in time": {func(g *gatewaytest.Gateway) {
			g.Files().Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
				return upstream.Answer{}, upstream.ErrTimeout
			}
		}, "upstream_timeout"},
		"requests to answer": {func(g *gatewaytest.Gateway) {
			g.Files().Respond(`{"tools":[],"inputRequests":{"a":{"method":"roots/list"}}}`)
		}, "outcome_unknown"},
		"the filter fails": {func(g *gatewaytest.Gateway) {
			g.Policy.Filter = func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
				return nil, errors.New("away")
			}
		}, "policy_unavailable"},
		"the catalog is away": {func(g *gatewaytest.Gateway) { lists(g.Files(), tool("new"), ""); g.Catalog.Fail(errors.New("away")) }, "policy_unavailable"},
		"policy is away":      {func(g *gatewaytest.Gateway) { g.Policy.Access = nil }, "policy_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				session := g.Connect("files")
				g.Do(gatewaytest.Call("safe", "").In(session)) // makes the server known to the gateway
				g.Policy.Change(func() { tt.change(g) })
				if got := g.Do(list("{}").In(session)); got.Code() != tt.want || strings.Contains(got.Text, `"tools"`) {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

// Errors from the server are forwarded to the client.
func TestListTools_PassesErrorsOfTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
		}
		if got := g.Do(list("{}").In(session)); got.Text != `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}` {
			t.Errorf("%s", got.Text)
		}
	})
}

// A list request has no side effects. It is cancelled when the client disconnects or the server's timeout expires.
func TestListTools_EndsWithItsClientAndItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.Do(gatewaytest.Call("safe", "").In(session))
		ended := make(chan time.Duration, 1)
		g.Files().Request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			begin := time.Now()
			<-ctx.Done()
			ended <- time.Since(begin)
			return upstream.Answer{}, fmt.Errorf("%w: %w", upstream.ErrTimeout, ctx.Err())
		}
		g.Do(list("{}").In(session))
		if took := <-ended; took != gatewaytest.ServerTimeout {
			t.Errorf("a slow list ended after %v", took)
		}
		stream := g.Stream(list("{}").In(session))
		synctest.Wait()
		stream.HangUp()
		if took := <-ended; took != 0 {
			t.Errorf("the list of a client that has gone ended after %v", took)
		}
		stream.End()
	})
}

// A caller without permissions on the server receives the gateway's own copy of the list as one page, and the gateway
// does not contact the server.
func TestListTools_OfACallerWithoutAccessContactsNoServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		ownLists(g.Files(), tool("a")+","+tool("secret"))
		g.Policy.Access.CouldAllow = false
		if got := g.Do(list("{}").In(session)); got.Text != `{"jsonrpc":"2.0","id":1,"result":{"tools":[`+tool("a")+`]}}` || len(g.Files().Requests()) != 0 {
			t.Errorf("%s", got.Text)
		}
		g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.Result(r, gatewaytest.Initialized), nil
		}
		time.Sleep(time.Hour)
		if got := g.Do(list("{}").In(session)); got.Code() != "upstream_unavailable" || !strings.Contains(got.Text, "the list of tools can't be read: the answer has no list of tools.") {
			t.Errorf("a list that cannot be read: %s", got.Text)
		}
	})
}

// In one session, the server sends a tool definition that differs from the accepted one. The gateway reads the server's
// list itself. If the definition has changed there, too, the tool is blocked for all callers.
func TestListTools_ChangedDefinitionMakesTheGatewayListTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			resp, err := gatewaytest.FilterSecrets(r)
			for i, ref := range r.GetTools() {
				if ref.GetName() == "safe" && string(ref.GetDefinitionDigest()) != string(toolreporttest.Digest(tool("safe"))) {
					resp.Tools[i] = &policyv1.ToolVisibility{Name: "safe", Code: commonv1.Code_CODE_TOOL_CHANGED}
				}
			}
			return resp, err
		}
		session := g.Connect("files")
		g.Do(list("{}").In(session))
		count, own := 0, g.Files().Discovery
		g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) { count++; return own(r) }
		time.Sleep(3 * time.Second)
		lists(g.Files(), `{"name":"safe","description":"changed","inputSchema":{"type":"object"}}`, "")
		if got := g.Do(list("{}").In(session)); strings.Contains(got.Text, "safe") || count == 0 {
			t.Errorf("%s; the server was asked %d times", got.Text, count)
		}
		g.Do(gatewaytest.Call("safe", "").In(session))
		if got := lastDigest(g); got != string(toolreporttest.Digest(`{"name":"safe","description":"changed","inputSchema":{"type":"object"}}`)) {
			t.Errorf("a call was decided by the digest %x", got)
		}
	})
}

// If the gateway translates between revisions, it reports the tools under the server's revision, not the client's.
func TestListTools_ReportsTheRevisionOfTheServer(t *testing.T) {
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
				session := g.Connect("files")
				lists(g.Files(), tool("new"), `,"resultType":"complete"`)
				if got := g.Do(list("{}").In(session)); !strings.Contains(got.Text, tool("new")) {
					t.Fatalf("%s", got.Text)
				}
				reports := g.Catalog.Reports()
				last := reports[len(reports)-1]
				if last.Head.GetProtocolVersion() != tt.want || last.Head.GetServer() != "files" || last.To.GetSubject() != "ana" {
					t.Errorf("reported is %+v for %v", last.Head, last.To)
				}
			})
		})
	}
}
