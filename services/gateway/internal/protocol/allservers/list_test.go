package allservers_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// checkResult reports an error unless the response's result has exactly the members in want.
func checkResult(t *testing.T, name, response, want string) {
	t.Helper()
	if diff := cmp.Diff(want, resultOf(response)); diff != "" {
		t.Errorf("%s (-want +got):\n%s\nof %s", name, diff, response)
	}
}

// The gateway builds the combined tools list from the lists that it has itself requested from the servers. The combined
// list contains the tools that the caller may see, with combined names and with titles that contain the server's name.
func TestListTools_JoinsWhatTheCallerMaySee(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.Access.HidesNone = false
		lists(g.Files(), tool("a")+","+tool("secret")+`,{"name":"b","title":"B","inputSchema":{"type":"object"},"_meta":{"dev.sluice/x":1,"y":2}}`)
		lists(g.Servers["notes"], tool("a"))
	}, func(t *testing.T, c client) {
		checkResult(t, "tools", c.list("tools/list"), `"tools":[`+tool("files__a")+`,{"name":"files__b","title":"files: B","inputSchema":{"type":"object"},"_meta":{"y":2}},`+tool("notes__a")+`]`)
		if len(c.Files().Opened()) != 0 || len(c.Journal.Records(journal.KindIntent)) != 0 {
			t.Error("a session was opened with a server")
		}
		for _, method := range []string{"tools/list", "prompts/list"} {
			if text := c.list(method); strings.Contains(text, `"resultType"`) == (c.session != nil) {
				t.Errorf("the list of another family: %s", text)
			}
		}
		if passed := c.Passed(); passed["tools/list"] != 2*3 { // one for the message and one for each server
			t.Errorf("counted are %v", passed)
		}
	})
}

// A message that is allowed without a rule is refused if it is too large.
func TestListTools_RefusesALargeRequest(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		if got := c.do("tools/list", "", `"x":"`+strings.Repeat("x", 64<<10)+`"`); got.Code() != "body_too_large" || !strings.Contains(got.Text, "may have at most 65536 bytes") {
			t.Errorf("%d %.200s", got.Status, got.Text)
		}
	})
}

func TestListTools_OmitsServersThatAreNotInReach(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.AccessOf = func(server string) *policyv1.CheckServerResponse {
			return &policyv1.CheckServerResponse{CouldAllow: server == "notes", HidesNone: true}
		}
		lists(g.Servers["notes"], tool("a"))
	}, func(t *testing.T, c client) {
		checkResult(t, "tools", c.list("tools/list"), `"tools":[`+tool("notes__a")+`]`)
	})
}

func TestListTools_HasOnePage(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		for _, method := range []string{"tools/list", "prompts/list", "resources/list", "resources/templates/list"} {
			if got := c.do(method, "", `"cursor":"x"`); got.Code() != "params_invalid" || !strings.Contains(got.Text, "the cursor was not given in this session") {
				t.Errorf("%s: %s", method, got.Text)
			}
			if got := c.do(method, "", `"cursor":null`); method != "tools/list" && got.Code() != "" {
				t.Errorf("%s with a null cursor: %s", method, got.Text)
			}
		}
	})
}

// The combined list omits elements that a strict client would reject. It reports the names of omitted elements unless
// these elements are hidden from the caller.
func TestListTools_NamesWhatIsLeftOut(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.Access.HidesNone = false
		lists(g.Files(), tool("a")+`,{"name":"b"},{"name":"secret"}`)
		lists(g.Servers["notes"], "")
	}, func(t *testing.T, c client) {
		checkResult(t, "tools", c.list("tools/list"),
			`"tools":[`+tool("files__a")+`],"_meta":{"dev.sluice/leftOut":[{"server":"files","name":"b","why":"it is not a valid tool: inputSchema is missing"}]}`)
	})
}

func TestListTools_NamesServersThatCannotBeListed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		discovery func(upstream.Request) (upstream.Answer, error)
		failed    error // the catalog's error
		want      string
		most      time.Duration
	}{
		"it is away": {discovery: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, want: `"code":"upstream_unavailable"`},
		"it hangs": {discovery: func(upstream.Request) (upstream.Answer, error) {
			time.Sleep(time.Minute)
			return upstream.Answer{}, upstream.ErrTimeout
		}, want: `"code":"upstream_unavailable"`, most: 3 * time.Second},
		"its list is invalid": {discovery: func(r upstream.Request) (upstream.Answer, error) { return gatewaytest.Result(r, greeting), nil },
			want: `"code":"upstream_unavailable","why":"the list of tools can't be read: the answer has no list of tools."`},
		"its greeting is large": {discovery: func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				return gatewaytest.Result(r, gatewaytest.Tools), nil
			}
			return gatewaytest.Result(r, strings.Replace(greeting, "Mind.", strings.Repeat("x", 256<<10), 1)), nil
		}, want: `"code":"body_too_large"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachFamily(t, func(g *gatewaytest.Gateway) {
				lists(g.Files(), tool("a"))
				g.Servers["notes"].Discovery = tt.discovery
			}, func(t *testing.T, c client) {
				begin := time.Now()
				checkResult(t, "tools", c.list("tools/list"), `"tools":[`+tool("files__a")+`],"_meta":{"dev.sluice/unavailable":[{"server":"notes",`+tt.want+`}]}`)
				if took := time.Since(begin); took > tt.most {
					t.Errorf("the list took %v", took)
				}
				time.Sleep(time.Hour) // longer than the hanging request
			})
		})
	}
	t.Run("the catalog is away", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			g := startGateway(t)
			g.Catalog.Fail(errors.New("away"))
			if got := connect(g).list("tools/list"); !strings.Contains(got, `"dev.sluice/unavailable":[{"server":"files","code":"policy_unavailable"},{"server":"notes","code":"policy_unavailable"}]`) {
				t.Errorf("the list is %s", got)
			}
		})
	})
}

// The gateway does not start a stdio server only to list its tools again.
func TestListTools_StartsNoProgram(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Servers["notes"].Transport = "stdio"
	}, func(t *testing.T, c client) {
		c.list("tools/list")
		asked := make(map[string]*atomic.Int64)
		for name, s := range c.Servers {
			own, count := s.Discovery, new(atomic.Int64)
			asked[name] = count
			s.Discovery = func(r upstream.Request) (upstream.Answer, error) {
				count.Add(1)
				return own(r)
			}
		}
		time.Sleep(time.Hour)
		if got := c.list("tools/list"); !strings.Contains(got, "notes__safe") || strings.Contains(got, "unavailable") {
			t.Errorf("the list is %s", got)
		}
		synctest.Wait()
		if asked["notes"].Load() != 0 || asked["files"].Load() == 0 {
			t.Errorf("notes was listed again %d times, files %d times", asked["notes"].Load(), asked["files"].Load())
		}
	})
}

// The caller can see a tool whose calls require an approval. The list therefore also contains the gateway's own tool
// for waiting for approvals.
func TestListTools_HasTheWaitToolIfACallMayWait(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		lists(g.Files(), tool("a"))
		lists(g.Servers["notes"], tool("a"))
		g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			resp, err := gatewaytest.FilterSecrets(r)
			if r.GetServer() == "notes" {
				resp.GetTools()[0].Code = commonv1.Code_CODE_APPROVAL_REQUIRED
			}
			return resp, err
		}
	}, func(t *testing.T, c client) {
		if got := c.list("tools/list"); !strings.Contains(got, tool("notes__a")+`,{"name":"sluice_approval_wait"`) || strings.Count(got, "sluice_approval_wait") != 1 {
			t.Errorf("the list is %s", got)
		}
		c.Approvals.Set(nil)
		if got := c.do("tools/call", "sluice_approval_wait", `"name":"sluice_approval_wait","arguments":{}`); got.Code() != "params_invalid" {
			t.Errorf("a call of the tool: %s", got.Text)
		}
	})
}

func TestListTools_FilterThatFailsNamesTheServer(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Policy.Filter = func(r *policyv1.FilterToolsRequest) (*policyv1.FilterToolsResponse, error) {
			if r.GetServer() == "notes" {
				return nil, errors.New("away")
			}
			return gatewaytest.FilterSecrets(r)
		}
	}, func(t *testing.T, c client) {
		if got := c.list("tools/list"); !strings.Contains(got, "files__safe") || !strings.Contains(got, `"dev.sluice/unavailable":[{"server":"notes","code":"policy_unavailable"}]`) {
			t.Errorf("the list is %s", got)
		}
	})
}

// pages makes a server return its prompts page by page. Each string in texts is the result for one page, without the
// cursor. next returns the cursor for the page after the given page.
func pages(s *gatewaytest.Server, next func(page int) string, texts ...string) {
	s.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		at := 0
		for i := range 1000 {
			if strings.Contains(string(r.Body()), fmt.Sprintf(`"cursor":"%d"`, i)) {
				at = i
			}
		}
		text := texts[min(at, len(texts)-1)]
		if cursor := next(at); cursor != "" {
			text += `,"nextCursor":"` + cursor + `"`
		}
		return gatewaytest.Result(r, "{"+text+"}"), nil
	}
}

// If a list's method needs a rule, the gateway requests the list from each server page by page, on behalf of the
// caller.
func TestGather_JoinsAllPages(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		pages(g.Files(), func(page int) string { return []string{"1", "2", ""}[page] }, `"prompts":[{"name":"p"}]`, `"prompts":[]`, `"prompts":[{"name":"q","_meta":{"dev.sluice/x":1,"y":2}}]`)
		g.Servers["notes"].Respond(`{"prompts":[{"name":"p"},{"title":"no name"},7]}`)
	}, func(t *testing.T, c client) {
		got := c.do("prompts/list", "", `"x":1`).Text
		checkResult(t, "prompts", got, `"prompts":[{"name":"files__p"},{"name":"files__q","_meta":{"y":2}},{"name":"notes__p"}],"_meta":{"dev.sluice/leftOut":[`+
			`{"server":"notes","why":"it is not valid in MCP: name is missing"},{"server":"notes","why":"it is not valid in MCP: it is not an object"}]}`)
		if intents := c.Journal.Records(journal.KindIntent); len(intents) != 4 || intents[0].Method != "prompts/list" {
			t.Errorf("%d pages are on record", len(intents))
		}
		if faults := c.MCP.Faults("notes"); len(faults) != 2 || faults[0].GetList() != "prompts" {
			t.Errorf("the faults of notes are %v", faults)
		}
	})
}

func TestGather_AsksOnlyServersThatOfferTheList(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		own := g.Servers["notes"].Open
		g.Servers["notes"].Open = func(r upstream.Request) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return own(r)
			}
			return gatewaytest.Result(r, `{"protocolVersion":"2025-11-25","capabilities":{"tools":{},"resources":true}}`), nil
		}
	}, func(t *testing.T, c client) {
		for method, field := range map[string]string{"prompts/list": "prompts", "resources/list": "resources", "resources/templates/list": "resourceTemplates"} {
			c.Files().Respond(`{"` + field + `":[]}`)
			checkResult(t, method, c.list(method), `"`+field+`":[]`)
		}
		if len(c.Servers["notes"].Requests()) != 0 || len(c.Files().Requests()) != 3 {
			t.Errorf("files was asked %d times, and notes %d times", len(c.Files().Requests()), len(c.Servers["notes"].Requests()))
		}
	})
}

// If the policy denies a server's list to the caller, the combined list omits that server and does not report it as
// faulty.
func TestGather_OmitsServersThatPolicyDenies(t *testing.T) {
	t.Parallel()
	for _, code := range []commonv1.Code{commonv1.Code_CODE_DENIED_BY_RULE, commonv1.Code_CODE_DENIED_BY_DEFAULT, commonv1.Code_CODE_METHOD_DENIED} {
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			forEachFamily(t, func(g *gatewaytest.Gateway) {
				g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: code}
			}, func(t *testing.T, c client) {
				checkResult(t, "resources", c.list("resources/list"), `"resources":[]`)
			})
		})
	}
}

func TestGather_NamesServersWhoseListCannotBeRead(t *testing.T) {
	t.Parallel()
	one := func(int) string { return "" }
	long := `"prompts":[` + strings.TrimSuffix(strings.Repeat(`{"name":"`+strings.Repeat("x", 60_000)+`"},`, 70), ",") + `]`
	for name, tt := range map[string]struct {
		next  func(page int) string
		texts []string
		want  string
		asked int
	}{
		"no list":            {one, []string{`"content":[]`}, `"code":"upstream_unavailable","why":"its list can't be read: the answer has no list."`, 1},
		"a cursor twice":     {func(int) string { return "1" }, []string{`"prompts":[7]`, `"prompts":[]`}, `"code":"upstream_unavailable","why":"its list can't be read: a page repeats the cursor of an earlier page."`, 2},
		"too many pages":     {func(page int) string { return fmt.Sprint(page + 1) }, []string{`"prompts":[]`}, `"code":"body_too_large","why":"its list can't be read: it has more than 20 pages."`, 20},
		"too many bytes":     {one, []string{long}, `"code":"body_too_large"`, 1},
		"requests to answer": {one, []string{`"prompts":[],"inputRequests":{"a":{"method":"roots/list"}}`}, `"code":"outcome_unknown"`, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			forEachFamily(t, func(g *gatewaytest.Gateway) {
				g.Files().Respond(`{"prompts":[{"name":"p"}]}`)
				pages(g.Servers["notes"], tt.next, tt.texts...)
			}, func(t *testing.T, c client) {
				got := c.list("prompts/list")
				if !strings.HasPrefix(resultOf(got), `"prompts":[{"name":"files__p"}],"_meta":{"dev.sluice/unavailable":[{"server":"notes",`+tt.want) {
					t.Errorf("%.1000s", got)
				}
				if n := len(c.Servers["notes"].Requests()); n != tt.asked {
					t.Errorf("notes was asked %d times", n)
				}
				if faults := c.MCP.Faults("notes"); strings.Contains(tt.want, "can't be read") && (len(faults) != 1 || !strings.Contains(faults[0].GetWhy(), "the list can't be read")) {
					t.Errorf("the faults of notes are %v", faults)
				}
			})
		})
	}
}

// A combined list is returned within a time limit. It reports a server that was too slow.
func TestGather_EndsInTime(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Files().Respond(`{"prompts":[{"name":"p"}]}`)
		g.Servers["notes"].Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			time.Sleep(4 * time.Second)
			return gatewaytest.Result(r, fmt.Sprintf(`{"prompts":[],"nextCursor":"%d"}`, time.Now().Unix())), nil
		}
	}, func(t *testing.T, c client) {
		begin := time.Now()
		checkResult(t, "prompts", c.list("prompts/list"), `"prompts":[{"name":"files__p"}],"_meta":{"dev.sluice/unavailable":[{"server":"notes","code":"upstream_timeout"}]}`)
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("the list took %v", took)
		}
	})
}

func TestGather_RefusesAnswersToRequests(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		for _, params := range []string{`"requestState":"x"`, `"inputResponses":{}`} {
			if got := c.do("prompts/list", "", params); got.Code() != "params_invalid" || !strings.Contains(got.Text, "without inputResponses and requestState") {
				t.Errorf("%s: %s", params, got.Text)
			}
		}
		if len(c.Files().Requests()) != 0 {
			t.Error("a server was asked")
		}
	})
}

// The client is informed if the journal does not contain the outcome of one of the gateway's requests.
func TestGather_ReportsUnrecordedOutcomes(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Files().Respond(`{"prompts":[]}`)
		g.Servers["notes"].Respond(`{"prompts":[]}`)
	}, func(t *testing.T, c client) {
		if got := c.do("prompts/list", "", ""); got.Response.Unrecorded {
			t.Error("the outcome is not on record")
		}
		c.Journal.Errors = map[journal.Kind]error{journal.KindOutcome: errors.New("full")}
		if got := c.do("prompts/list", "", ""); !got.Response.Unrecorded {
			t.Error("the outcome is on record")
		}
	})
}

// Messages that a server sends before its list are not forwarded to the client, because the client has requested only a
// list.
func TestGather_ServerCannotSendRequestsMeanwhile(t *testing.T) {
	t.Parallel()
	forEachFamily(t, func(g *gatewaytest.Gateway) {
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","id":3,"method":"roots/list"}`))
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"x"}}`))
			return gatewaytest.Result(r, `{"prompts":[]}`), nil
		}
		g.Servers["notes"].Respond(`{"prompts":[]}`)
	}, func(t *testing.T, c client) {
		got := c.do("prompts/list", "", "")
		checkResult(t, "prompts", got.Text, `"prompts":[]`)
		if len(got.Events) != 0 {
			t.Errorf("before the list the client got %q", got.Events)
		}
		synctest.Wait()
		if notified := c.Files().Notified(1); !strings.Contains(notified[len(notified)-1], `"error"`) {
			t.Errorf("the server got %q", notified)
		}
	})
}

// A panic during the request to one server does not affect the requests to other servers.
func TestGather_PanicNamesTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := startGateway(t)
		g.Files().Respond(`{"prompts":[{"name":"p"}]}`)
		g.Servers["notes"].Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) { panic("oh") }
		checkResult(t, "prompts", connect(g).list("prompts/list"), `"prompts":[{"name":"files__p"}],"_meta":{"dev.sluice/unavailable":[{"server":"notes","code":"upstream_unavailable"}]}`)
		if !strings.Contains(g.Logged(), "request panicked") {
			t.Error("the panic is not logged")
		}
	})
}

// Case X4. At the URL for all servers, a request for the tools list counts as one message, plus one message for each
// server.
func TestLists_AreCountedForEachServer(t *testing.T) {
	t.Parallel()
	forEachFamily(t, asIs, func(t *testing.T, c client) {
		for want, left := range map[string]int{"": 3, "abuse_limited": 2} {
			time.Sleep(2 * time.Minute) // another minute begins
			for range 10_000 - left {
				if refused := c.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: "ping"}); refused != nil {
					t.Fatalf("refused as %+v", refused)
				}
			}
			if got := c.do("tools/list", "", ""); got.Code() != want {
				t.Errorf("with a quota of %d messages: %s", left, got.Text)
			}
		}
	})
}
