package dispatch_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// Case T4. A server's notification reaches the client if MCP defines it and the policy denies neither the notification
// nor the method to which it refers. Any other notification needs a rule that allows it.
func TestNotificationOfAServer_ReachesTheClientIfPolicyAllows(t *testing.T) {
	t.Parallel()
	const allow, deny = policyv1.Effect_EFFECT_ALLOW, policyv1.Effect_EFFECT_DENY
	for name, tt := range map[string]struct {
		method           string
		denied, mayAllow []string
		effect           policyv1.Effect
		passes, decided  bool
	}{
		"progress":                          {"notifications/progress", []string{"notifications/progress"}, nil, deny, true, false},
		"a log message":                     {"notifications/message", nil, nil, deny, true, false},
		"a log message that is denied":      {"notifications/message", []string{"notifications/message"}, nil, allow, false, false},
		"a change of tools":                 {"notifications/tools/list_changed", nil, nil, deny, true, false},
		"a change of an allowed list":       {"notifications/prompts/list_changed", nil, nil, deny, true, false},
		"a change that is denied":           {"notifications/prompts/list_changed", []string{"notifications/prompts/list_changed"}, nil, allow, false, false},
		"a change of a list that is denied": {"notifications/resources/list_changed", nil, nil, allow, false, false},
		"the end of an elicitation":         {"notifications/elicitation/complete", nil, nil, allow, false, false},
		"an unknown one":                    {"notifications/x", nil, nil, allow, false, false},
		"an unknown one that a rule allows": {"notifications/x", nil, []string{"notifications/x"}, allow, true, true},
		"an unknown one that is decided":    {"notifications/x", nil, []string{"notifications/x"}, deny, false, true},
		"one of tasks":                      {"notifications/tasks", nil, []string{"notifications/tasks"}, allow, false, false},
		"one without the prefix":            {"x/y", nil, []string{"x/y"}, allow, false, false},
		"one of clients":                    {"notifications/initialized", nil, []string{"notifications/initialized"}, allow, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.DeniedNotifications, g.Policy.AllowedMethods, g.Policy.Access.Methods = tt.denied, tt.mayAllow, []string{"prompts/list"}
				message := `{"jsonrpc":"2.0","method":"` + tt.method + `","params":{"n":1.50}}`
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: tt.effect} })
					events([]byte(message))
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				got := g.Do(gatewaytest.Call("safe", "").In(g.Connect("files")))
				if passed := slices.Equal(got.Events, []string{message}); passed != tt.passes || !passed && len(got.Events) != 0 {
					t.Errorf("the client got %q", got.Events)
				}
				decided := slices.ContainsFunc(g.Policy.Decided(), func(d gatewaytest.Decided) bool { return d.Call.GetMethod() == tt.method })
				if decided != tt.decided {
					t.Errorf("policy has decided: %t", decided)
				}
			})
		})
	}
}

// A server's notification that the policy service evaluates counts as a request from the server, so that the server
// cannot cause too many evaluations.
func TestNotificationOfAServer_DecisionsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.AllowedMethods = []string{"notifications/x"}
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			for range 700 {
				events([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`))
			}
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		if got := g.Do(gatewaytest.Call("safe", "").In(g.Connect("files"))); len(got.Events) != 600 {
			t.Errorf("the client got %d notifications", len(got.Events))
		}
	})
}

// If the policy distinguishes resources, the policy service evaluates each resource update by its URI.
func TestNotificationOfAServer_UpdatesAreDecidedByURI(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		alike bool
		hides func(string) bool
		want  []string
	}{
		"all alike":       {true, nil, []string{"a:open", "a:secret", ""}},
		"some are hidden": {false, func(uri string) bool { return strings.Contains(uri, "secret") }, []string{"a:open"}},
		"policy is away":  {false, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow("resources/subscribe")
				g.Policy.Access.ResourcesAlike, g.Policy.HidesName = tt.alike, tt.hides
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					for _, params := range []string{`{"uri":"a:open"}`, `{"uri":"a:secret"}`, `{"uri":""}`} {
						events([]byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":` + params + `}`))
					}
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				var got []string
				for _, event := range g.Do(gatewaytest.Call("safe", "").In(g.Connect("files"))).Events {
					_, uri, _ := strings.Cut(event, `"uri":"`)
					uri, _, _ = strings.Cut(uri, `"`)
					got = append(got, uri)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The policy service takes more than a second to decide whether the caller may receive an update of a resource. An
// operator may have stopped the caller meanwhile, so the update is dropped. Notifications that a list has changed are
// still forwarded.
func TestNotificationOfAServer_UpdateIsDroppedIfPolicyRespondsTooLate(t *testing.T) {
	t.Parallel()
	for wait, want := range map[time.Duration]int{900 * time.Millisecond: 2, 1100 * time.Millisecond: 1} {
		t.Run(wait.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow("resources/subscribe")
				g.Policy.Access.ResourcesAlike, g.Policy.HidesName = false, func(string) bool { return false }
				g.Policy.BeforeNames = func(context.Context) { time.Sleep(wait) }
				g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
					events([]byte(`{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"a:b"}}`))
					events([]byte(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`))
					return gatewaytest.Result(r, `{"content":[]}`), nil
				}
				got := g.Do(gatewaytest.Call("safe", "").In(g.Connect("files"))).Events
				if len(got) != want || !strings.Contains(got[len(got)-1], "tools/list_changed") {
					t.Errorf("the client got %q", got)
				}
			})
		})
	}
}

// The policy allows a notification, but writing it to the journal takes long. Meanwhile, an operator stops the caller.
// The notification is dropped.
func TestNotificationOfAServer_IsDroppedIfItsCallerIsStoppedMeanwhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.AllowedMethods = []string{"notifications/x"}
		g.Journal.BeforeIntent = func(r *journal.Record) {
			if r.Method != "notifications/x" {
				return
			}
			g.Policy.Change(func() {
				g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY, Code: commonv1.Code_CODE_STOPPED}
			})
			time.Sleep(1100 * time.Millisecond)
		}
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/x"}`))
			return gatewaytest.Result(r, `{"content":[]}`), nil
		}
		if got := g.Do(gatewaytest.Call("safe", "").In(g.Connect("files"))); len(got.Events) != 0 {
			t.Errorf("the client got %q", got.Events)
		}
	})
}

// The gateway removes its own metadata keys from a server's message. Otherwise the client would believe that the
// gateway has set them.
func TestNotificationOfAServer_LosesKeysOfTheGateway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Files().Request = func(_ context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			events([]byte(`{"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{"dev.sluice/decision":{"code":"x"},"y":1}}}`))
			return gatewaytest.Result(r, `{"content":[],"_meta":{"dev.sluice/decision":{"code":"x"},"y":1}}`), nil
		}
		got := g.Do(gatewaytest.Call("safe", "").In(g.Connect("files")))
		if len(got.Events) != 1 || got.Events[0] != `{"jsonrpc":"2.0","method":"notifications/message","params":{"_meta":{"y":1}}}` || got.Text != `{"jsonrpc":"2.0","id":1,"result":{"content":[],"_meta":{"y":1}}}` {
			t.Errorf("%q, %s", got.Events, got.Text)
		}
	})
}

// If MCP defines a client's notification and the policy allows it, the gateway sends a notification of its own to the
// server instead.
func TestNotificationOfAClient_IsSentByTheGateway(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		initialize, body string
		methods          []string
		out              bool // the server is unavailable
		want             string
		refused          string
	}{
		"initialized":                            {gatewaytest.Initialize, `"notifications/initialized","params":{"x":1}`, nil, false, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, ""},
		"initialized, out of reach":              {gatewaytest.Initialize, `"notifications/initialized"`, nil, true, "", ""},
		"changed roots":                          {gatewaytest.InitializeAll, `"notifications/roots/list_changed","params":{"x":1}`, []string{"roots/list"}, false, `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`, ""},
		"changed roots of a client without them": {gatewaytest.Initialize, `"notifications/roots/list_changed"`, []string{"roots/list"}, false, "", "method_denied"},
		"changed roots that policy denies":       {gatewaytest.InitializeAll, `"notifications/roots/list_changed"`, nil, false, "", "method_denied"},
		"a cancelled request that was not sent":  {gatewaytest.Initialize, `"notifications/cancelled","params":{"requestId":9}`, nil, false, "", ""},
		"progress of nothing":                    {gatewaytest.Initialize, `"notifications/progress","params":{"progressToken":"p","progress":1}`, nil, false, "", ""},
		"a log message":                          {gatewaytest.Initialize, `"notifications/message"`, nil, false, "", "method_denied"},
		"an unknown one":                         {gatewaytest.Initialize, `"notifications/x"`, nil, false, "", "method_denied"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow(tt.methods...)
				session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: tt.initialize})
				g.Policy.Change(func() { g.Policy.Access.CouldAllow = !tt.out })
				got := g.Do(gatewaytest.Message{Server: "files", Body: `{"jsonrpc":"2.0","method":` + tt.body + `}`}.In(session))
				if got.Status != http.StatusAccepted || strings.Join(g.Files().Notified(0), "") != tt.want || strings.Join(g.Journal.Refusals(), "") != tt.refused {
					t.Errorf("%d %s; the server got %q, recorded is %q", got.Status, got.Text, g.Files().Notified(0), g.Journal.Refusals())
				}
			})
		})
	}
}

func TestNotificationOfAClient_InitializedIsSentOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		for range 2 {
			g.Do(gatewaytest.Message{Server: "files", Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}.In(session))
		}
		if got := g.Files().Notified(0); len(got) != 1 {
			t.Errorf("the server got %q", got)
		}
	})
}

// The client has declared roots to the server, and the policy changes after that. The notification that the roots have
// changed must be allowed by the new policy.
func TestNotificationOfAClient_ChangedRootsNeedPermissionNow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("roots/list")
		session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll})
		g.Policy.Allow()
		g.Do(gatewaytest.Message{Server: "files", Body: `{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}`}.In(session))
		if got := g.Files().Notified(0); len(got) != 0 {
			t.Errorf("the server got %q", got)
		}
	})
}

func TestNotificationOfAClient_IsRefusedWithoutPolicy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.Policy.Access = nil
		g.Do(gatewaytest.Message{Server: "files", Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}.In(session))
		if got := g.Journal.Refusals(); len(got) != 1 || got[0] != "policy_unavailable" || len(g.Files().Notified(0)) != 0 {
			t.Errorf("recorded is %q", got)
		}
	})
}

// While the gateway cannot determine whether a token is still valid, the caller has no permissions.
func TestAccess_OfAStaleTokenIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		m := gatewaytest.Message{Server: "files", Caller: gatewaytest.Caller("ana"), Body: `{"jsonrpc":"2.0","method":"notifications/initialized"}`}.In(session)
		m.Caller.Stale = true
		g.Do(m)
		if got := g.Journal.Refusals(); len(got) != 1 || got[0] != "policy_unavailable" || len(g.Files().Notified(0)) != 0 {
			t.Errorf("recorded is %q, and the server got %q", got, g.Files().Notified(0))
		}
	})
}

// A client cancels a call that waits for approvers. After that, the call must not run.
func TestNotificationOfAClient_CancelsACallThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.RequireApproval("safe")
		session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`))
		call := gatewaytest.Call("safe", "").In(session)
		stream := g.Stream(call)
		synctest.Wait()
		if stream.Ended() {
			t.Fatal("the call is not held")
		}
		g.Do(reply(call, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`))
		synctest.Wait()
		if !stream.Ended() {
			t.Error("the call waits on")
		}
		g.Approve(`{"name":"safe"}`)
		stream.End()
		if len(g.Files().Requests()) != 0 || len(g.Files().Notified(0)) != 0 {
			t.Errorf("the server got %q", g.Files().Requests())
		}
	})
}

func TestNotificationOfAClient_CancelsARequestOfTheServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.Files().Request = func(ctx context.Context, _ upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			g.Files().Notified(1)
			return upstream.Answer{}, upstream.ErrNoAnswer
		}
		call := gatewaytest.Call("safe", "").In(session)
		stream := g.Stream(call)
		synctest.Wait()
		g.Do(reply(call, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"secret"}}`))
		if got := g.Files().Notified(1); len(got) != 1 || got[0] != `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}` {
			t.Errorf("the server got %q", got)
		}
		stream.End()
	})
}

// A client sends a notification that MCP does not define. The policy service evaluates it like a call, and exactly the
// evaluated bytes are sent to the server. The notification is not sent to stateless servers or to gRPC servers, because
// they cannot receive it.
func TestNotificationOfAClient_WithAnotherMethodNeedsARule(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		transport string
		modern    bool
		effect    policyv1.Effect
		want      bool
	}{
		"allowed":                   {"http", false, policyv1.Effect_EFFECT_ALLOW, true},
		"denied":                    {"http", false, policyv1.Effect_EFFECT_DENY, false},
		"a gRPC server":             {"grpc", false, policyv1.Effect_EFFECT_ALLOW, false},
		"a server without sessions": {"http", true, policyv1.Effect_EFFECT_ALLOW, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				if tt.modern {
					g.Servers["files"] = gatewaytest.NewModernServer(t)
				}
				g.Files().Transport, g.Policy.AllowedMethods = tt.transport, []string{"notifications/x"}
				g.Policy.Decision = &policyv1.Decision{Effect: tt.effect}
				g.Start()
				session := g.Connect("files")
				g.Do(gatewaytest.Message{Server: "files", Body: `{"jsonrpc":"2.0","method":"notifications/x","params":{"n":1.50,"_meta":{"dev.sluice/run":"r","y":1}}}`}.In(session))
				got, intents := g.Files().Notified(0), g.Journal.Records(journal.KindIntent)
				if tt.want && (len(got) != 1 || got[0] != `{"jsonrpc":"2.0","method":"notifications/x","params":{"n":1.50,"_meta":{"y":1}}}` || len(intents) != 1 || intents[0].Run != "r") {
					t.Errorf("the server got %q, on record is %+v", got, intents)
				}
				if !tt.want && (len(got) != 0 || len(g.Journal.Refusals()) != 1) {
					t.Errorf("the server got %q, refused is %q", got, g.Journal.Refusals())
				}
			})
		})
	}
}

// Messages for which no rule is needed are counted under a fixed set of names, so that the records contain no method
// names that a client has chosen.
func TestAdmit_CountsByFixedNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		for _, body := range []string{
			`{"jsonrpc":"2.0","id":1,"method":"ping"}`, `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","method":"notifications/initialized"}`,
			`{"jsonrpc":"2.0","method":"notifications/x"}`, `{"jsonrpc":"2.0","id":1,"method":"x/y"}`, gatewaytest.Call("sluice_approval_wait", "{}").Body,
		} {
			g.Do(gatewaytest.Message{Server: "files", Body: body}.In(session))
		}
		want := map[string]int64{"initialize": 1, "ping": 1, "tools/list": 1, "response": 1, "notifications/initialized": 1, "tools/call": 1}
		if diff := cmp.Diff(want, g.Passed()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// If a caller sends too many messages for which no rule is needed, the messages are refused. A notification has no
// response, so its refusal is only recorded.
func TestAdmit_LimitsMessagesThatNeedNoRule(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		useUp(g)
		for body, status := range map[string]int{`{"jsonrpc":"2.0","id":1,"method":"ping"}`: 200, `{"jsonrpc":"2.0","id":1,"result":{}}`: 202, `{"jsonrpc":"2.0","method":"notifications/initialized"}`: 202} {
			got := g.Do(gatewaytest.Message{Server: "files", Body: body}.In(session))
			if got.Status != status || status == 200 && got.Code() != "abuse_limited" || status == 202 && got.Text != "" {
				t.Errorf("%s: %d %s", body, got.Status, got.Text)
			}
		}
		if got := g.Journal.Refusals(); fmt.Sprint(got) != "[abuse_limited abuse_limited abuse_limited]" || len(g.Files().Notified(0)) != 0 {
			t.Errorf("refused is %q", got)
		}
		if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Code() != "" {
			t.Errorf("a call: %s", got.Text)
		}
	})
}
