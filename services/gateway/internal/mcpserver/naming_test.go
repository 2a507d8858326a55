package mcpserver_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// distinguishNames returns a response of the policy service for a caller whose rules distinguish prompts and resources
// by name.
func distinguishNames() *policyv1.CheckServerResponse {
	return &policyv1.CheckServerResponse{CouldAllow: true, HidesNone: true, Methods: everyMethod()}
}

func isSecret(name string) bool { return strings.Contains(name, "secret") }

// namedLists contains lists that a server may send. want is the list that a client receives if the policy hides names
// that contain "secret".
var namedLists = []struct{ name, method, result, want string }{
	{
		"prompts", "prompts/list",
		` {"nextCursor":"2", "prompts" : [ {"name":"secret-a"} , {"title":"A\u0061","name":"a","_meta":{"dev.sluice/x":1,"y":2}},{"name":"secret-b","_meta":{"dev.sluice/x":1}}, {"name":"\u0062"}], "x":[1e3]}`,
		` {"nextCursor":"2", "prompts" : [ {"title":"A\u0061","name":"a","_meta":{"y":2}},{"name":"\u0062"}], "x":[1e3]}`,
	},
	{
		"resources", "resources/list",
		`{"resources":[{"uri":"file:///secret","name":"a"},{"uri":"file:///a","name":"secret"},{"uri":"file:\/\/\/\u0073ecret","name":"c"}]}`,
		`{"resources":[{"uri":"file:///a","name":"secret"}]}`,
	},
	{
		"templates", "resources/templates/list",
		`{"resourceTemplates":[{"uriTemplate":"file:///{a}","name":"a"},{"uriTemplate":"file:///secret/{a}","name":"a"}],"resources":[{"uri":"secret"}]}`,
		`{"resourceTemplates":[{"uriTemplate":"file:///{a}","name":"a"}],"resources":[{"uri":"secret"}]}`,
	},
	{"all are hidden", "prompts/list", `{"prompts":[{"name":"secret"},{"name":"secret"}]}`, `{"prompts":[]}`},
	{"there is none", "prompts/list", `{"prompts":[]}`, `{"prompts":[]}`},
	{
		"what has no name, or more than one", "prompts/list",
		`{"prompts":[1,{"title":"x"},{"name":7},{"name":"a","Name":"secret"},{"name":"` + strings.Repeat("n", 4097) + `"},{"name":"b"},{"name":""}]}`,
		`{"prompts":[{"name":"b"}]}`,
	},
}

func listing(method string) string { return `{"jsonrpc":"2.0","id":1,"method":"` + method + `"}` }

// Case T4. A list contains only the elements that the caller may use. All other bytes of the server's list are
// unchanged.
func TestNames_ListShowsWhatMayBeUsed(t *testing.T) {
	t.Parallel()
	for _, tt := range namedLists {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				w.Policy.HidesName = isSecret
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, tt.result), nil
				}
				h := w.connect()
				w.setAccess(distinguishNames())
				if got, want := w.do("POST", w.path, listing(tt.method), h).body, `{"jsonrpc":"2.0","id":1,"result":`+tt.want+`}`; got != want {
					t.Errorf("the client got\n%s\nwant\n%s", got, want)
				}
				for _, asked := range w.Policy.NameRequests() {
					if asked.GetServer() != "files" || asked.GetMethod() != tt.method {
						t.Errorf("policy was asked about %s of %s", asked.GetMethod(), asked.GetServer())
					}
				}
				if out := w.Journal.Records(journal.KindOutcome); len(out) != 1 || len(w.Journal.Records(journal.KindRefusal)) != 0 {
					t.Errorf("on record: %+v", out)
				}
			})
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t)
				w.Policy.HidesName = isSecret
				w.setAccess(distinguishNames())
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, strings.TrimSuffix(tt.result, "}")+`,"ttlMs":60000,"cacheScope":"public"}`), nil
				}
				want := `"result":` + strings.TrimSuffix(tt.want, "}") + `,"ttlMs":0,"cacheScope":"private"}}`
				if got := w.doModern(tt.method, "", ""); !strings.HasSuffix(got.body, want) {
					t.Errorf("without a session the client got\n%s\nwant\n%s", got.body, want)
				}
			})
		})
	}
}

// If no rule distinguishes names, the gateway does not call the policy service, and the list is unchanged.
func TestNames_ListPassesWhenNoRuleDistinguishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		for _, tt := range namedLists {
			w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Result(r, strings.ReplaceAll(strings.TrimSuffix(tt.result, "}"), "dev.sluice/x", "x")+`,"ttlMs":60000}`), nil
			}
			want := strings.ReplaceAll(strings.TrimSuffix(tt.result, "}"), "dev.sluice/x", "x") + `,"ttlMs":60000,"cacheScope":"private"}}`
			if got := w.doModern(tt.method, "", ""); !strings.HasSuffix(got.body, want) {
				t.Errorf("%s: the client got\n%s\nwant\n%s", tt.name, got.body, want)
			}
		}
		prompts := distinguishNames()
		prompts.ResourcesAlike = true
		w.setAccess(prompts)
		if got := w.doModern("resources/list", "", ""); got.code() != "" {
			t.Errorf("if rules distinguish only prompts, resources are %s", got.body)
		}
		if len(w.Policy.NameRequests()) != 0 {
			t.Errorf("policy was asked %d times", len(w.Policy.NameRequests()))
		}
	})
}

// Case T4. A list is refused if the policy service does not filter it, or if the list is ambiguous.
func TestNames_ListIsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ result, code string }{
		"policy says nothing":                {`{"prompts":[{"name":"a"}]}`, "policy_unavailable"},
		"it has another one in other case":   {`{"prompts":[],"Prompts":[{"name":"secret"}]}`, "upstream_unavailable"},
		"it is an object":                    {`{"prompts":{"name":"a"}}`, "upstream_unavailable"},
		"there is none":                      {`{"resources":[]}`, "upstream_unavailable"},
		"it has more than anybody would ask": {`{"prompts":[` + strings.Repeat("1,", 10_000) + `1]}`, "upstream_unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newTestGateway(t)
				h := w.connect()
				w.setAccess(distinguishNames())
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.Result(r, tt.result), nil
				}
				if got := w.do("POST", w.path, listing("prompts/list"), h); got.code() != tt.code || strings.Contains(got.body, `"name"`) {
					t.Errorf("the client got %s", got.body)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		h := w.connect()
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			w.setAccess(nil)
			return gatewaytest.Result(r, `{"prompts":[{"name":"a"}]}`), nil
		}
		if got := w.do("POST", w.path, listing("prompts/list"), h); got.code() != "policy_unavailable" {
			t.Errorf("while policy is unavailable: %s", got.body)
		}
		w.setAccess(distinguishNames())
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Raw(`{"jsonrpc":"2.0","id":` + string(r.ID()) + `,"error":{"code":-32601,"message":"no"}}`), nil
		}
		if got, want := w.do("POST", w.path, listing("prompts/list"), h).body, `{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no"}}`; got != want {
			t.Errorf("an error: %s", got)
		}
	})
}

// A long list is filtered in parts. The gateway asks the policy service about each name exactly once.
func TestNames_LongListIsFilteredInParts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newTestGateway(t)
		w.Policy.HidesName = isSecret
		h := w.connect()
		w.setAccess(distinguishNames())
		var prompts, want []string
		for i := range 1100 {
			prompts = append(prompts, fmt.Sprintf(`{"name":"p%d"}`, i), `{"name":"secret"}`)
			want = append(want, fmt.Sprintf(`{"name":"p%d"}`, i))
		}
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			return gatewaytest.Result(r, `{"prompts":[`+strings.Join(prompts, ",")+`]}`), nil
		}
		if got := w.do("POST", w.path, listing("prompts/list"), h).body; got != `{"jsonrpc":"2.0","id":1,"result":{"prompts":[`+strings.Join(want, ",")+`]}}` {
			t.Errorf("the client got %s", got)
		}
		var asked []int
		for _, r := range w.Policy.NameRequests() {
			asked = append(asked, len(r.GetNames()))
		}
		if !slices.Equal(asked, []int{512, 512, 77}) {
			t.Errorf("policy was asked about %v", asked)
		}
	})
}

// Case T4. At the URL for all servers, lists contain the elements that the caller may use, with combined names.
func TestNames_ListsOfAllServersShowWhatMayBeUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		w.Policy.HidesName = isSecret
		result := ""
		for _, server := range []*gatewaytest.Server{w.files, w.notes} {
			server.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.Result(r, result), nil
			}
		}
		h := w.connectAs(initializeWithAll)
		w.setAccess(distinguishNames())
		for _, tt := range []struct{ method, result, want string }{
			{"prompts/list", `{"prompts":[{"name":"secret"},{"name":"a"},{"name":"secret"}]}`, `{"prompts":[{"name":"files__a"},{"name":"notes__a"}]}`},
			{
				"resources/list", `{"resources":[{"uri":"x:a","name":"a"},{"name":"b","uri":"x:secret"}]}`,
				`{"resources":[{"uri":"mcp.files+x:a","name":"files: a"},{"uri":"mcp.notes+x:a","name":"notes: a"}]}`,
			},
			{"resources/templates/list", `{"resourceTemplates":[{"uriTemplate":"x:secret/{a}","name":"a"}]}`, `{"resourceTemplates":[]}`},
		} {
			result = tt.result
			if got, want := w.do("POST", w.path, listing(tt.method), h).body, `{"jsonrpc":"2.0","id":1,"result":`+tt.want+`}`; got != want {
				t.Errorf("the client got\n%s\nwant\n%s", got, want)
			}
		}
		for _, r := range w.Policy.NameRequests() {
			if slices.ContainsFunc(r.GetNames(), func(name string) bool { return strings.Contains(name, r.GetServer()) }) {
				t.Errorf("policy was asked about %v", r)
			}
		}
	})
}

// Case T4. A client is notified of a changed resource only if the policy does not hide the resource's URI from the
// client.
func TestNames_ResourceUpdatesAreDecidedByURI(t *testing.T) {
	t.Parallel()
	update := func(uri string) upstream.Event {
		return upstream.Event{Message: []byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"` + uri + `"}}`)}
	}
	long := strings.Repeat("l", 4097)
	said := []upstream.Event{update("file:///a"), update("file:///secret"), update(`file:\/\/\/\u0073ecret`), notificationEvent("notifications/resources/updated"), update(long), update("file:///b"), notificationEvent("notifications/message")}
	hears := func(t *testing.T, w *testGateway, want ...string) {
		t.Helper()
		lines, _ := w.openStream(w.connectAs(initializeWithAll))
		got := slices.DeleteFunc(readLines(lines), func(line string) bool { return !strings.HasPrefix(line, "data: ") })
		for i := range want {
			want[i] = "data: " + want[i]
		}
		if !slices.Equal(got, want) {
			t.Errorf("heard\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	last := string(said[6].Message)
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, everyMethod(), said...)
		w.setAccess(distinguishNames())
		w.Policy.HidesName = isSecret
		hears(t, w, string(said[0].Message), string(said[5].Message), last)
	})
	synctest.Test(t, func(t *testing.T) {
		w := newEventGateway(t, everyMethod(), said...)
		w.setAccess(distinguishNames()) // policy no longer answers requests about names
		hears(t, w, last)
	})
}

// The policy changes and now distinguishes names. At the URL for all servers, the client is notified that the lists
// have changed. If the client reads the list of tools after the change, it is still notified of the other lists.
func TestNames_NewPolicyNotifiesOfChangedLists(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newAllServers(t)
		h := w.connectAs(initializeWithAll)
		lines, hangUp := w.openStream(h)
		defer hangUp()
		lists := func() (out []string) {
			time.Sleep(time.Minute)
			for _, line := range readLines(lines) {
				if _, kind, is := strings.Cut(line, `"method":"notifications/`); is {
					out = append(out, strings.TrimSuffix(kind, `/list_changed"}`))
				}
			}
			return out
		}
		if got := lists(); len(got) != 0 {
			t.Errorf("of nothing was heard %q", got)
		}
		for _, tt := range []struct {
			revision           string
			prompts, resources bool
			want               []string
		}{
			{"1", true, true, []string{"tools"}},
			{"2", false, true, []string{"tools", "prompts"}},
			{"3", true, false, []string{"tools", "prompts", "resources"}},
			{"4", true, false, []string{"tools", "resources"}},
		} {
			said := distinguishNames()
			said.PolicyRevision, said.PromptsAlike, said.ResourcesAlike = tt.revision, tt.prompts, tt.resources
			w.setAccess(said)
			if got := lists(); !slices.Equal(got, tt.want) {
				t.Errorf("revision %s: heard of %q, want %q", tt.revision, got, tt.want)
			}
		}
		said := distinguishNames()
		said.PolicyRevision = "5"
		w.setAccess(said)
		w.do("POST", w.path, listing("tools/list"), h)
		if got := lists(); !slices.Equal(got, []string{"prompts", "resources"}) {
			t.Errorf("after the list of tools was read: heard of %q", got)
		}
	})
}
