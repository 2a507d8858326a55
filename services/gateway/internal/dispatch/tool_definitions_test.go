package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/servers"
	"github.com/sluice-mesh/sluice/services/gateway/internal/toolreport/toolreporttest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/principal"
	"github.com/sluice-mesh/sluice/services/internal/rpc"
)

// lastDigest returns the definition digest of the last call that the fake policy service has evaluated.
func lastDigest(g *gatewaytest.Gateway) string {
	all := g.Policy.Decided()
	return string(all[len(all)-1].Call.GetDefinitionDigest())
}

// Case A4. The policy service evaluates a call with the tool definition that the call's session has listed. If the
// session has not listed the tool, the definition in the gateway's own list is used.
func TestCall_IsDecidedByTheDefinitionThatTheCallerKnows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		const changed = `{"name":"safe","description":"other","inputSchema":{"type":"object"}}`
		first, second := g.Connect("files"), g.Connect("files")
		lists(g.Files(), changed, "")
		g.Do(list("{}").In(first))
		for name, tt := range map[string]struct {
			session    string
			definition string
		}{"listed": {first.Get("Mcp-Session-Id"), changed}, "not listed": {second.Get("Mcp-Session-Id"), tool("safe")}} {
			g.Do(gatewaytest.Call("safe", "").With("Mcp-Session-Id", tt.session))
			if got := lastDigest(g); got != string(toolreporttest.Digest(tt.definition)) {
				t.Errorf("a tool that was %s was decided by the digest %x", name, got)
			}
		}
		g.Do(gatewaytest.Call("unknown", "").In(first))
		if got := lastDigest(g); got != "" {
			t.Errorf("a tool that no one lists was decided by the digest %x", got)
		}
		g.Do(gatewaytest.Plain("prompts/get", `{"name":"safe"}`).In(first))
		if got := lastDigest(g); got != "" {
			t.Errorf("a prompt was decided by the digest %x", got)
		}
	})
}

// unknownUntilDefined makes the fake policy deny calls to tools whose definition is not known.
func unknownUntilDefined(g *gatewaytest.Gateway) {
	g.Policy.Decide = func(c *policyv1.Call) *policyv1.Decision {
		if len(c.GetDefinitionDigest()) == 0 {
			return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_TOOL_UNKNOWN}
		}
		return &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}
	}
}

// pages makes the server list one tool on each page. The function next returns the cursor for the page after the given
// page.
func pages(s *gatewaytest.Server, next func(page int) string) {
	own := s.Request
	s.Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
		if r.Method() != "tools/list" {
			return own(ctx, r, events)
		}
		page := 0
		if cursor := r.Message.Cursor; cursor != "" {
			_, _ = fmt.Sscan(cursor, &page)
		}
		more := ""
		if cursor := next(page); cursor != "" {
			more = `,"nextCursor":"` + cursor + `"`
		}
		return gatewaytest.Result(r, `{"tools":[`+tool(fmt.Sprint("t", page))+`]`+more+`}`), nil
	}
}

// lookups returns the number of list pages that were requested from the server.
func lookups(s *gatewaytest.Server) (n int) {
	for _, r := range s.Requests() {
		if strings.Contains(r, `"method":"tools/list"`) {
			n++
		}
	}
	return n
}

// If neither the session nor the gateway has listed a tool, the gateway lists the server's tools in the call's session.
// If the list does not contain the tool, the gateway does not read the list again soon afterwards.
func TestCall_LooksForToolsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		tool  string
		next  func(page int) string
		code  string
		pages int
		// again is the number of pages that the gateway reads for a second call after 20 s. later is the number of
		// pages that it reads for a third call 20 s after that.
		again, later int
	}{
		"on the third page":  {"t2", func(page int) string { return fmt.Sprint(page + 1) }, "", 3, 0, 0},
		"on no page":         {"none", func(page int) string { return []string{"1", ""}[page] }, "tool_unknown", 2, 0, 2},
		"a cursor twice":     {"none", func(int) string { return "1" }, "upstream_unavailable", 2, 2, 2},
		"a list without end": {"none", func(page int) string { return fmt.Sprint(page + 1) }, "upstream_unavailable", 100, 100, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				unknownUntilDefined(g)
				pages(g.Files(), tt.next)
				call := gatewaytest.Call(tt.tool, "").In(g.Connect("files"))
				before := 0
				for i, want := range []int{tt.pages, tt.again, tt.later} {
					if got := g.Do(call); got.Code() != tt.code {
						t.Errorf("call %d: %s", i, got.Text)
					}
					if n := lookups(g.Files()) - before; n != want {
						t.Errorf("call %d: %d pages were read, want %d", i, n, want)
					}
					before = lookups(g.Files())
					time.Sleep(20 * time.Second)
				}
			})
		})
	}
}

// Only tools have definitions. If a request with another method needs an approval, the gateway does not list the
// server's tools.
func TestDefinition_IsReadForToolsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.RequireApproval("p")
		if got := g.Do(gatewaytest.Plain("prompts/get", `{"name":"p"}`).In(session)); got.Code() != "approval_pending" || len(g.Files().Requests()) != 0 {
			t.Errorf("%s; the server got %q", got.Text, g.Files().Requests())
		}
	})
}

func TestCall_IsRefusedIfTheServerCannotBeListed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*gatewaytest.Gateway)
		want   string
	}{
		"no list": {func(g *gatewaytest.Gateway) { g.Files().Respond(`{"content":[]}`) }, "upstream_unavailable"},
		"an error": {func(g *gatewaytest.Gateway) {
			g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.ErrorAnswer(r, `{"code":-32603,"message":"no"}`), nil
			}
		}, "upstream_unavailable"},
		"no answer": {func(g *gatewaytest.Gateway) {
			g.Files().Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
				return upstream.Answer{}, upstream.ErrNoAnswer
			}
		}, "upstream_unavailable"},
		"the catalog is away": {func(g *gatewaytest.Gateway) { g.Catalog.Fail(errors.New("away")) }, "policy_unavailable"},
		"the catalog refuses the list": {func(g *gatewaytest.Gateway) {
			g.Catalog.Fail((&rpc.Error{Code: codes.InvalidArgument, Reason: "TOOL_DUPLICATE", Err: errors.New("twice")}).GRPCStatus().Err())
		}, "upstream_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				unknownUntilDefined(g)
				session := g.Connect("files")
				tt.change(g)
				if got := g.Do(gatewaytest.Call("new", "").In(session)); got.Code() != tt.want {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

// Case X9. The policy hides some of the server's tools. The gateway sends a call only if the session's list or the
// gateway's own list contains the tool and the caller may see it.
func TestCall_NeedsAVisibleToolIfToolsAreHidden(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Access.HidesNone = false
		ownLists(g.Files(), tool("safe")+","+tool("secret"))
		session := g.Connect("files")
		call := func(name string) string { return g.Do(gatewaytest.Call(name, "").In(session)).Code() }
		if safe, secret, missing := call("safe"), call("secret"), call("missing"); safe != "" || secret != "tool_unknown" || missing != "tool_unknown" {
			t.Errorf("a visible tool: %q, a hidden one: %q, a missing one: %q", safe, secret, missing)
		}
		for _, d := range g.Policy.Decided() {
			if d.Call.GetName() != "safe" {
				t.Errorf("policy was asked about %s", d.Call.GetName())
			}
		}
		ownLists(g.Files(), tool("safe")+","+tool("missing"))
		if got := call("missing"); got != "tool_unknown" {
			t.Errorf("a new tool, at once: %q", got)
		}
		time.Sleep(time.Minute)
		if got := call("missing"); got != "" {
			t.Errorf("a new tool, a minute later: %q", got)
		}
		lists(g.Files(), tool("other"), "")
		g.Do(list("{}").In(session))
		if got := call("other"); got != "" {
			t.Errorf("a tool that the session has listed: %q", got)
		}
	})
}

func TestCall_IsRefusedIfVisibilityIsNotKnown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*gatewaytest.Gateway)
		want   string
	}{
		"the server is away": {func(g *gatewaytest.Gateway) {
			g.Files().Discovery = func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }
		}, "upstream_unavailable"},
		"the catalog is away": {func(g *gatewaytest.Gateway) { g.Catalog.Fail(errors.New("away")) }, "policy_unavailable"},
		"the filter fails": {func(g *gatewaytest.Gateway) {
			g.Policy.Filter = func(*policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
				return nil, errors.New("away")
			}
		}, "policy_unavailable"},
		"policy is away": {func(g *gatewaytest.Gateway) { g.Policy.Access = nil }, "policy_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Access.HidesNone = false
				session := g.Connect("files")
				tt.change(g)
				if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Code() != tt.want || len(g.Files().Requests()) != 0 {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

// The policy service refuses a call because the tool's definition has changed or is unknown. The gateway lists the
// server's tools again, because the server may have been repaired.
func TestCall_RefusedForItsDefinitionMakesTheGatewayListTheServer(t *testing.T) {
	t.Parallel()
	for code, want := range map[commonv1.Code]bool{commonv1.Code_CODE_TOOL_CHANGED: true, commonv1.Code_CODE_TOOL_UNKNOWN: true, commonv1.Code_CODE_DENIED_BY_RULE: false} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				call := gatewaytest.Call("safe", "").In(g.Connect("files"))
				g.Do(call)
				listed, own := false, g.Files().Discovery
				g.Files().Discovery = func(r upstream.Request) (upstream.Answer, error) { listed = true; return own(r) }
				g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: code}
				time.Sleep(servers.RenewAfter + time.Second)
				g.Do(call)
				synctest.Wait()
				if listed != want {
					t.Errorf("the server is listed: %t", listed)
				}
			})
		})
	}
}

// The gateway reports a list to the catalog as that of a person's account only if each person uses her own account of the
// server, and not if the gateway has requested the list itself.
func TestList_OfAPersonsAccountIsReportedAsSuch(t *testing.T) {
	t.Parallel()
	for _, forEachPerson := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := gatewaytest.New(t)
			g.Files().ForEachPerson = forEachPerson
			g.Start()
			session := g.Connect("files")
			lists(g.Files(), `{"name":"mine","inputSchema":{"type":"object"}}`, "")
			g.Do(list("{}").In(session))
			var own, ofSessions int
			for _, r := range g.Catalog.Reports() {
				isOwn := r.To.GetSubject() == principal.Catalogue
				if isOwn {
					own++
				} else {
					ofSessions++
				}
				if r.Head.GetAccountOfPerson() != (forEachPerson && !isOwn) {
					t.Errorf("for each person %t: a list for %s is reported as %v", forEachPerson, r.To.GetSubject(), r.Head)
				}
			}
			if own == 0 || ofSessions == 0 {
				t.Errorf("%d own lists and %d lists of sessions were reported", own, ofSessions)
			}
		})
	}
}
