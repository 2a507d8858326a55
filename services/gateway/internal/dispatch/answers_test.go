package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/bodyreader"
	"github.com/sluice-mesh/sluice/services/gateway/internal/dispatch"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/jsonrpc"
	"github.com/sluice-mesh/sluice/services/gateway/internal/limits"
	"github.com/sluice-mesh/sluice/services/gateway/internal/pipeline"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
	"github.com/sluice-mesh/sluice/services/internal/quota"
)

// useUp uses up ana's quota of messages for which no rule is needed.
func useUp(g *gatewaytest.Gateway) {
	for g.Pipeline.CountExempt(pipeline.ExemptMessage{Principal: gatewaytest.Caller("ana").Principal, Method: "ping"}) == nil {
		continue
	}
}

func TestNew_RefusesMissingDependencies(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		whole := g.MCP.Dispatcher.Deps
		if _, err := dispatch.New(whole); err != nil {
			t.Fatal(err)
		}
		for name, remove := range map[string]func(*dispatch.Deps){
			"pipeline": func(d *dispatch.Deps) { d.Pipeline = nil }, "sessions": func(d *dispatch.Deps) { d.Sessions = nil }, "visibility": func(d *dispatch.Deps) { d.Visibility = nil },
			"catalog": func(d *dispatch.Deps) { d.Catalogue = nil }, "memory": func(d *dispatch.Deps) { d.Remembered = nil }, "forms": func(d *dispatch.Deps) { d.Forms = nil }, "panics": func(d *dispatch.Deps) { d.Panicked = nil },
			"tracer": func(d *dispatch.Deps) { d.Tracer = nil }, "meters": func(d *dispatch.Deps) { d.Meters = nil }, "propagator": func(d *dispatch.Deps) { d.Propagator = nil }, "log": func(d *dispatch.Deps) { d.Log = nil },
		} {
			deps := whole
			remove(&deps)
			if _, err := dispatch.New(deps); err == nil {
				t.Errorf("without %s there is a dispatcher", name)
			}
		}
	})
}

// Case X9. A list contains only the prompts, resources or templates that the caller may use. The gateway asks the
// policy service only if the policy distinguishes them by name.
func TestFilterResult_ListsWhatTheCallerMayUse(t *testing.T) {
	t.Parallel()
	for method, tt := range map[string]struct{ list, want string }{
		"prompts/list":             {`"prompts":[{"name":"a"}, {"name":"secret"},{"name":"b"}]`, `"prompts":[{"name":"a"}, {"name":"b"}]`},
		"resources/list":           {`"resources":[{"uri":"x:secret","name":"a"},{"uri":"x:a","name":"secret"}]`, `"resources":[{"uri":"x:a","name":"secret"}]`},
		"resources/templates/list": {`"resourceTemplates":[{"uriTemplate":"x:{a}","name":"secret"},{"uriTemplate":"x:secret{a}","name":"a"}]`, `"resourceTemplates":[{"uriTemplate":"x:{a}","name":"secret"}]`},
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				session := g.Connect("files")
				g.Files().Respond(`{` + tt.list + `,"nextCursor":"n","_meta":{"dev.sluice/x":1}}`)
				ask := func() gatewaytest.Reply { return g.Do(gatewaytest.Plain(method, "{}").In(session)) }
				if got, want := ask().Text, `{"jsonrpc":"2.0","id":1,"result":{`+tt.list+`,"nextCursor":"n","_meta":{}}}`; got != want {
					t.Errorf("if policy treats all alike: %s", cmp.Diff(want, got))
				}
				g.Policy.Access.PromptsAlike, g.Policy.Access.ResourcesAlike = false, false
				g.Policy.HidesName = func(name string) bool { return strings.Contains(name, "secret") }
				if got, want := ask().Text, `{"jsonrpc":"2.0","id":1,"result":{`+tt.want+`,"nextCursor":"n","_meta":{}}}`; got != want {
					t.Errorf("if policy hides some: %s", cmp.Diff(want, got))
				}
				g.Policy.HidesName = nil
				if got := ask(); got.Code() != "policy_unavailable" || strings.Contains(got.Text, "secret") {
					t.Errorf("if policy is away: %s", got.Text)
				}
				g.Policy.HidesName = func(string) bool { return false }
				g.Files().Respond(`{"content":[]}`)
				if got := ask(); got.Code() != "upstream_unavailable" || !strings.Contains(got.Text, "is not a list, or can be read in more than one way") {
					t.Errorf("no list: %s", got.Text)
				}
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					return gatewaytest.ErrorAnswer(r, `{"code":-32601,"message":"no"}`), nil
				}
				if got := ask(); !strings.Contains(got.Text, `"error":{"code":-32601,"message":"no"}`) {
					t.Errorf("an error of the server: %s", got.Text)
				}
			})
		})
	}
}

func TestFilterResult_AsksPolicyOnlyAboutWhatItDistinguishes(t *testing.T) {
	t.Parallel()
	for _, prompts := range []bool{true, false} {
		t.Run(fmt.Sprintf("prompts: %t", prompts), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Access.PromptsAlike, g.Policy.Access.ResourcesAlike = !prompts, prompts
				g.Policy.HidesName = func(string) bool { return false }
				session := g.Connect("files")
				g.Files().Respond(`{"prompts":[{"name":"p"}],"resources":[{"uri":"r:","name":"r"}]}`)
				for _, method := range []string{"prompts/list", "resources/list"} {
					g.Do(gatewaytest.Plain(method, "{}").In(session))
				}
				want := map[bool]string{true: "p", false: "r:"}[prompts]
				if asked := g.Policy.NameRequests(); len(asked) != 1 || len(asked[0].GetNames()) != 1 || asked[0].GetNames()[0] != want {
					t.Errorf("policy was asked about %v", asked)
				}
			})
		})
	}
}

// A refused message is recorded with all parts that could be read. The client receives the id of the record.
func TestRefuse_RecordsTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Access = nil
		call := gatewaytest.ModernCall("safe", "")
		for body, want := range map[string]journal.Record{
			call.Body: {Method: "tools/call", Tool: "safe", Code: "policy_unavailable"},
			"{":       {Code: "json_invalid"},
		} {
			call.Body = body
			before := len(g.Journal.Refusals())
			got := g.Do(call)
			records := g.Journal.Records(journal.KindRefusal)[before:]
			if len(records) != 1 || records[0].Method != want.Method || records[0].Tool != want.Tool || records[0].Code != want.Code || records[0].Subject != "ana" {
				t.Fatalf("%s: recorded is %+v", body, records)
			}
			if status := map[string]int{"json_invalid": http.StatusBadRequest, "policy_unavailable": http.StatusOK}[want.Code]; got.Status != status {
				t.Errorf("%s: the status is %d", body, got.Status)
			}
			if !strings.Contains(got.Text, `"id":"`+records[0].DecisionID+`"`) || records[0].DecisionID == "" {
				t.Errorf("%s: the client got %s", body, got.Text)
			}
		}
	})
}

// A policy decision applies to a single caller, so an answer must not be stored in shared caches. A filtered list must
// not be cached at all.
func TestMarkPrivate_ForbidsSharedCaches(t *testing.T) {
	t.Parallel()
	for result, want := range map[string][2]string{
		`{}`:                                {`{}`, `{}`},
		`{"ttlMs":5}`:                       {`{"ttlMs":5,"cacheScope":"private"}`, `{"ttlMs":0,"cacheScope":"private"}`},
		`{"cacheScope":"public"}`:           {`{"cacheScope":"private"}`, `{"cacheScope":"private"}`},
		`{"ttlMs":5,"cacheScope":"public"}`: {`{"ttlMs":5,"cacheScope":"private"}`, `{"ttlMs":0,"cacheScope":"private"}`},
	} {
		for i, filtered := range []bool{false, true} {
			const head = `{"jsonrpc":"2.0","id":1,"result":`
			answer := gatewaytest.Raw(head + result + `}`).Message
			got, err := jsonrpc.ApplyEdits(answer.Raw, dispatch.MarkPrivate(answer, nil, filtered)...)
			if err != nil || string(got) != head+want[i]+`}` {
				t.Errorf("%s, filtered %t: %s, %v", result, filtered, got, err)
			}
		}
	}
}

// In a session, a server sends its requests on streams. An answer that contains requests must not reach the client,
// even if the policy allows the requests.
func TestCheckInputRequests_HaveNoPlaceInSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow(gatewaytest.Methods()...)
		session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.InitializeAll})
		g.Files().Respond(`{"inputRequests":{"a":{"method":"roots/list"}}}`)
		if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Code() != "outcome_unknown" || !strings.Contains(got.Text, "method_invalid") {
			t.Errorf("%s", got.Text)
		}
	})
}

// Case U1. A server of revision 2025-11-25 may answer a call with an error that says that the user must first open
// URLs. The policy service evaluates each URL as a request from the server.
func TestCheckInputRequests_URLsToOpenAreDecided(t *testing.T) {
	t.Parallel()
	const url = `{"mode":"url","elicitationId":"e","message":"m","url":"https://a.example"}`
	for name, tt := range map[string]struct {
		data   string
		effect policyv1.Effect
		offers string
		want   bool
	}{
		"allowed":                 {`{"elicitations":[` + url + `]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, true},
		"two":                     {`{"elicitations":[` + url + `,` + url + `]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, true},
		"denied":                  {`{"elicitations":[` + url + `]}`, policyv1.Effect_EFFECT_DENY, `"url":{}`, false},
		"not offered":             {`{"elicitations":[` + url + `]}`, policyv1.Effect_EFFECT_ALLOW, `"form":{}`, false},
		"none":                    {`{"elicitations":[]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, false},
		"no data":                 {`{}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, false},
		"a form":                  {`{"elicitations":[{"message":"m"}]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{},"form":{}`, false},
		"another case":            {`{"elicitations":[` + url + `],"Elicitations":[]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, false},
		"more than a hundred":     {`{"elicitations":[` + strings.Repeat(url+",", 100) + url + `]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, false},
		"one that is not allowed": {`{"elicitations":[` + url + `,` + strings.Replace(url, "https", "http", 1) + `]}`, policyv1.Effect_EFFECT_ALLOW, `"url":{}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Policy.Allow("elicitation/create")
				session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`{"sampling":{}}`, `{"elicitation":{`+tt.offers+`}}`))
				g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: tt.effect} })
					return gatewaytest.ErrorAnswer(r, `{"code":-32042,"message":"open","data":`+tt.data+`}`), nil
				}
				got := g.Do(gatewaytest.Call("safe", "").In(session))
				if passed := strings.Contains(got.Text, `"code":-32042`); passed != tt.want || !passed && (got.Code() != "outcome_unknown" || strings.Contains(got.Text, "a.example")) {
					t.Errorf("%s", got.Text)
				}
				asked := 0
				for _, r := range g.Journal.Records(journal.KindIntent) {
					if r.FromServer && r.Method == "elicitation/create" {
						asked++
					}
				}
				if tt.want && asked != strings.Count(tt.data, "elicitationId") {
					t.Errorf("on record are %d requests", asked)
				}
			})
		})
	}
}

// An error code is a number, which can be written in several ways in JSON. All of them are recognized.
func TestCheckInputRequests_FindsTheCodeInEveryNotation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		for _, code := range []string{"-32042", "-32042.0", "-3.2042e4", "-320420e-1"} {
			g.Files().Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
				return gatewaytest.ErrorAnswer(r, `{"code":`+code+`,"message":"open","data":{"elicitations":[{"mode":"url","url":"https://a.example"}]}}`), nil
			}
			if got := g.Do(gatewaytest.Call("safe", "").In(session)); got.Code() != "outcome_unknown" {
				t.Errorf("%s: %s", code, got.Text)
			}
		}
	})
}

// wait returns a call to the gateway's own tool for waiting for approvals.
func wait(arguments string) gatewaytest.Message {
	return gatewaytest.Call("sluice_approval_wait", arguments)
}

func TestWaitForApproval_ReportsTheState(t *testing.T) {
	t.Parallel()
	at := time.Date(2000, 1, 2, 0, 0, 0, 0, time.UTC)
	for state, want := range map[approvalv1.ApprovalState]string{
		approvalv1.ApprovalState_APPROVAL_STATE_PENDING:   `"structuredContent":{"id":"a-1","state":"pending","tool":"pay","expiresAt":"2000-01-02T00:00:00Z"}`,
		approvalv1.ApprovalState_APPROVAL_STATE_APPROVED:  `"structuredContent":{"id":"a-1","state":"approved","tool":"pay","expiresAt":"2000-01-02T01:00:00Z"}`,
		approvalv1.ApprovalState_APPROVAL_STATE_DENIED:    `"state":"denied","tool":"pay","expiresAt":"2000-01-02T01:00:00Z","deniedUntil":"2000-01-02T02:00:00Z"}`,
		approvalv1.ApprovalState_APPROVAL_STATE_CANCELLED: `The call of pay was cancelled (because). Making it again requests a new approval.`,
		approvalv1.ApprovalState_APPROVAL_STATE_DONE:      `"state":"done"`,
	} {
		t.Run(state.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				g.Approvals.Set(&approvalv1.Approval{
					Id: "a-1", Name: "pay", State: state, Reason: "because", DecideBefore: timestamppb.New(at), ExecuteBefore: timestamppb.New(at.Add(time.Hour)),
					DeniedUntil: map[bool]*timestamppb.Timestamp{true: timestamppb.New(at.Add(2 * time.Hour))}[state == approvalv1.ApprovalState_APPROVAL_STATE_DENIED],
				})
				got := g.Do(wait(`{"id":"a-1"}`).In(g.Connect("files")))
				if !strings.Contains(got.Text, want) || strings.Contains(got.Text, "resultType") {
					t.Errorf("%s", got.Text)
				}
				modern := gatewaytest.ModernCall("sluice_approval_wait", `"arguments":{"id":"a-1"}`)
				if got := g.Do(modern); !strings.Contains(got.Text, want) || !strings.Contains(got.Text, `"resultType":"complete"`) {
					t.Errorf("in 2026-07-28: %s", got.Text)
				}
				if len(g.Files().Requests()) != 0 || len(g.Policy.Decided()) != 0 {
					t.Error("the call reached policy or the server")
				}
			})
		})
	}
}

func TestWaitForApproval_IsRefusedForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.RequireApproval("pay")
		session := g.Connect("files")
		for arguments, want := range map[string]string{
			`{}`: "params_invalid", `{"id":""}`: "params_invalid", `{"id":7}`: "params_invalid", `{"id":"a-1","x":1}`: "params_invalid", `{"ID":"a-1"}`: "params_invalid", `{"id":"a-2"}`: "approval_unavailable",
		} {
			if got := g.Do(wait(arguments).In(session)); got.Code() == "" || want == "params_invalid" && got.Code() != want || strings.Contains(got.Text, "structuredContent") {
				t.Errorf("%s: %s", arguments, got.Text)
			}
		}
		other := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.From("ben"))
		if got := g.Do(wait(`{"id":"a-1"}`).From("ben").In(other)); strings.Contains(got.Text, "structuredContent") || got.Code() == "" {
			t.Errorf("another caller: %s", got.Text)
		}
		stale := wait(`{"id":"a-1"}`).In(session)
		stale.Caller = gatewaytest.Caller("ana")
		stale.Caller.Stale = true
		if got := g.Do(stale); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %s", got.Text)
		}
	})
}

// A client waits for an approval by calling the gateway's own tool. It receives progress notifications while it waits,
// and the result as soon as the approval's state changes.
func TestWaitForApproval_EndsWhenTheApprovalIsDecided(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.RequireApproval("pay")
		session := g.ConnectAs(gatewaytest.Message{Server: "files", Body: gatewaytest.Initialize}.Replace(`"name":"c"`, `"name":"`+gatewaytest.Patient+`"`))
		begin := time.Now()
		stream := g.Stream(wait(`{"id":"a-1"}`).In(session).Replace(`"params":{`, `"params":{"_meta":{"progressToken":"p"},`))
		time.Sleep(15 * time.Second)
		g.Approvals.SetState(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
		reply, _ := stream.End()
		if took := time.Since(begin); took != 15*time.Second || !strings.Contains(reply.Text, `"state":"approved"`) {
			t.Errorf("after %v: %s", took, reply.Text)
		}
		if !strings.Contains(reply.Text, `"method":"notifications/progress","params":{"progressToken":"p","progress":0.000001,"message":"waiting for a person's approval"}`) {
			t.Errorf("the client was not told that it waits: %s", reply.Text)
		}
	})
}

// If a server gives no usable answer, the caller receives an explanation.
func TestServerFailed_SaysWhatIsKnown(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		code   string
		says   string
		status int
	}{
		"a status":        {err: upstream.ErrNoAnswer, status: 503, code: "upstream_unavailable", says: "the server answered with HTTP status 503."},
		"a limit":         {err: errors.Join(upstream.ErrNoAnswer, &upstream.LimitError{Key: "k", What: "it reached its limit"}), code: "upstream_unavailable", says: "it reached its limit (k)."},
		"no memory":       {err: errors.Join(upstream.ErrNoAnswer, limits.ErrMemory), code: "upstream_unavailable", says: "; read other answers first."},
		"too slow":        {err: errors.Join(upstream.ErrNoAnswer, bodyreader.ErrSlow), code: "upstream_unavailable", says: bodyreader.ErrSlow.Error() + "."},
		"busy":            {err: errors.Join(upstream.ErrNeverSent, upstream.ErrBusy), code: "upstream_unavailable", says: upstream.ErrBusy.Error() + "."},
		"a quota":         {err: errors.Join(upstream.ErrNeverSent, &quota.FullError{What: "programs"}), code: "upstream_unavailable", says: "end some of them, or wait until they are idle"},
		"too late":        {err: fmt.Errorf("%w: x", upstream.ErrTimeout), code: "upstream_timeout", says: ""},
		"never sent":      {err: fmt.Errorf("%w: secret", upstream.ErrNeverSent), code: "upstream_unavailable", says: ""},
		"a lost session":  {err: errors.Join(upstream.ErrNoAnswer, upstream.ErrSessionLost), code: "upstream_unavailable", says: "the server no longer knows the session; initialize again."},
		"one session":     {err: errors.Join(upstream.ErrNeverSent, upstream.ErrOneSession), code: "upstream_unavailable", says: "the server accepts only one session in total"},
		"a broken answer": {err: errors.Join(upstream.ErrNoAnswer, upstream.ErrOtherID), code: "upstream_unavailable", says: "the server's answer can't be used: " + upstream.ErrOtherID.Error() + "."},
		"a cause":         {err: errors.Join(upstream.ErrNoAnswer, &upstream.CauseError{Text: "the certificate has expired", Err: errors.New("secret")}), code: "upstream_unavailable", says: "the certificate has expired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.Start(t)
				session := g.Connect("files")
				g.Files().Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
					return upstream.Answer{Status: tt.status}, tt.err
				}
				got := g.Do(list("{}").In(session))
				if got.Code() != tt.code || !strings.Contains(got.Text, tt.says) || strings.Contains(got.Text, "secret") {
					t.Errorf("%s", got.Text)
				}
			})
		})
	}
}

func TestServerFailed_OpenCircuitSaysWhenToTryAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		session := g.Connect("files")
		g.Files().Request = func(context.Context, upstream.Request, func([]byte)) (upstream.Answer, error) {
			return upstream.Answer{}, errors.Join(upstream.ErrNeverSent, upstream.ErrUnreached)
		}
		for range 10 {
			g.Do(list("{}").In(session))
		}
		if got := g.Do(list("{}").In(session)); !strings.Contains(got.Text, upstream.ErrCircuitOpen.Error()) || !strings.Contains(got.Text, fmt.Sprintf(`"retryAfterMs":%d`, upstream.OpenDuration.Milliseconds())) {
			t.Errorf("%s", got.Text)
		}
	})
}
