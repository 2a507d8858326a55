package v2026_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// taskCall returns a call from a client that accepts tasks.
func taskCall(arguments string) gatewaytest.Message {
	return takesTasks(gatewaytest.ModernCall("safe", arguments))
}

// aboutTask returns a request about a task.
func aboutTask(method, id string) gatewaytest.Message {
	return takesTasks(gatewaytest.Modern(method, id, `"taskId":"`+id+`"`))
}

// makeTask makes a call that becomes a task, and returns the task's id.
func makeTask(t *testing.T, g *gatewaytest.Gateway) string {
	t.Helper()
	got := g.Do(taskCall(""))
	id := between(got.Text, `"resultType":"task","taskId":"`, `"`)
	if id == "" {
		t.Fatalf("the client got %d %s", got.Status, got.Text)
	}
	return id
}

// allow makes the policy allow calls, and sets the approval's state to approved.
func allow(g *gatewaytest.Gateway) {
	g.Policy.Change(func() { g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW} })
	g.Approvals.SetState(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED)
}

// poll requests a task's state. If the request starts the task's call, poll waits until the call has ended.
func poll(g *gatewaytest.Gateway, id string) string {
	text := g.Do(aboutTask("tasks/get", id)).Text
	synctest.Wait()
	return text
}

// The client immediately receives a task as the answer to a call that waits for an approval. The gateway sends the call
// to the server when the client polls after the approval.
func TestTask_CallIsMadeAfterItsApproval(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) *gatewaytest.Server{"without sessions": gatewaytest.NewModernServer, "with sessions": gatewaytest.NewServer} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.New(t)
				g.Servers["files"] = server(t)
				g.Start()
				g.RequireApproval("safe")
				begin := time.Now()
				got := g.Do(taskCall(`"arguments":{"n":1}`))
				for _, want := range []string{`"status":"working"`, `"pollIntervalMs":2000`, `"statusMessage":"A person must approve this call`, `"code":"approval_pending"`, `"createdAt":"2000-01-01T00:00:00Z"`} {
					if !strings.Contains(got.Text, want) || !time.Now().Equal(begin) {
						t.Errorf("after %v, no %s in %s", time.Since(begin), want, got.Text)
					}
				}
				id := between(got.Text, `"taskId":"`, `"`)
				decided := len(g.Policy.Decided())
				if text := poll(g, id); !strings.Contains(text, `"resultType":"complete","taskId":"`+id+`","status":"working"`) || len(g.Files().Requests()) != 0 {
					t.Errorf("while it waits: %s", text)
				}
				if n := len(g.Policy.Decided()); n != decided {
					t.Error("a poll before the approval makes the call")
				}
				allow(g)
				synctest.Wait()
				if len(g.Files().Requests()) != 0 {
					t.Error("the call is made though the client does not poll")
				}
				poll(g, id)
				if text := poll(g, id); !strings.Contains(text, `"status":"completed"`) || !strings.Contains(text, `"result":{"resultType":"complete","content":[]}}}`) {
					t.Errorf("after the approval: %s", text)
				}
				if sent := g.Files().Requests(); len(sent) != 1 || !strings.Contains(sent[0], `"name":"safe","arguments":{"n":1}`) {
					t.Errorf("the server got %q", sent)
				}
			})
		})
	}
}

func TestTask_NeedsAClientThatAcceptsTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "sampling/createMessage")
		g.RequireApproval("safe")
		for name, m := range map[string]gatewaytest.Message{
			"a client without tasks":        gatewaytest.ModernCall("safe", ""),
			"extensions that are no object": gatewaytest.ModernCall("safe", "").Replace(`"tasks":{}`, `"extensions":{"io.modelcontextprotocol/tasks":true}`),
			"answers to the server":         taskCall(`"inputResponses":{}`),
			"a round trip":                  taskCall(`"requestState":"sluice-leg.1.a-1"`),
			"a state of the server":         taskCall(`"requestState":"z"`),
			"a large call":                  taskCall(`"arguments":{"x":"` + strings.Repeat("x", 1<<20) + `"}`),
			"another method":                takesTasks(gatewaytest.Modern("prompts/get", "p", `"name":"p"`)),
			"all servers":                   takesTasks(gatewaytest.ModernCall("files__safe", "")).To(""),
		} {
			if got := g.Do(m); strings.Contains(got.Text, "taskId") || got.Code() != "approval_pending" {
				t.Errorf("%s: %.500s", name, got.Text)
			}
		}
		if got := g.Inside(taskCall(""), nil); strings.Contains(string(got.Joined), "taskId") {
			t.Errorf("a caller inside: %s", got.Joined)
		}
		id := makeTask(t, g)
		got := g.Do(gatewaytest.Modern("tasks/get", id, `"taskId":"`+id+`"`))
		if got.Status != http.StatusBadRequest || got.Code() != "capability_missing" || !strings.Contains(got.Text, `"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
			t.Errorf("a request about a task of a client without tasks: %d %s", got.Status, got.Text)
		}
	})
}

// While the gateway does not know whether a caller's token is still valid, the caller has no access to its tasks.
func TestTask_IsNotShownToAStaleToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		m := aboutTask("tasks/get", makeTask(t, g))
		m.Caller = gatewaytest.Caller("ana")
		m.Caller.Stale = true
		if got := g.Do(m); got.Code() != "policy_unavailable" || strings.Contains(got.Text, "working") {
			t.Errorf("%d %s", got.Status, got.Text)
		}
	})
}

// A server that uses sessions may send requests to the client during a call, and a task can't forward such requests. A
// call to such a server therefore does not become a task.
func TestTask_IsNotMadeIfTheServerMayAsk(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("sampling/createMessage")
		g.RequireApproval("safe")
		if got := g.Do(taskCall("")); strings.Contains(got.Text, "taskId") || got.Code() != "approval_pending" {
			t.Errorf("%s", got.Text)
		}
	})
}

// Cases I4, A3. Only the caller that has created a task can use it.
func TestTask_BelongsToItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		id := makeTask(t, g)
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			for name, m := range map[string]gatewaytest.Message{
				"another caller": aboutTask(method, id).From("ben"), "an unknown task": aboutTask(method, "sluice-task.X"), "a task of the server": aboutTask(method, "t-1"), "no task": aboutTask(method, ""),
			} {
				if got := g.Do(m); got.Status != http.StatusBadRequest || got.Code() != "params_invalid" || strings.Contains(got.Text, `"status"`) {
					t.Errorf("%s of %s: %d %s", method, name, got.Status, got.Text)
				}
			}
		}
		stale := aboutTask("tasks/get", id)
		stale.Caller = gatewaytest.Caller("ana")
		stale.Caller.Stale = true
		if got := g.Do(stale); got.Code() != "policy_unavailable" {
			t.Errorf("a stale token: %s", got.Text)
		}
		if got := g.Do(aboutTask("tasks/update", id)); got.Text != `{"jsonrpc":"2.0","id":7,"result":{"resultType":"complete"}}` {
			t.Errorf("an update: %s", got.Text)
		}
		if text := poll(g, id); !strings.Contains(text, `"status":"working"`) || len(g.Files().Requests()) != 0 {
			t.Errorf("the task: %s", text)
		}
		if got := g.Do(aboutTask("tasks/get", id).Replace(`"taskId"`, `"x":"`+strings.Repeat("x", 64<<10)+`","taskId"`)); got.Code() != "body_too_large" {
			t.Errorf("a large request: %d %.300s", got.Status, got.Text)
		}
		if passed := g.Passed(); passed["tasks/get"] == 0 {
			t.Errorf("counted are %v", passed)
		}
	})
}

func TestTask_EndsAsItsCallEnds(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change  func(*gatewaytest.Gateway)
		request func(upstream.Request) (upstream.Answer, error)
		want    string
		// again is true if the call is sent again at the next poll.
		again bool
	}{
		"an error of the server": {request: func(r upstream.Request) (upstream.Answer, error) {
			return gatewaytest.ErrorAnswer(r, `{"code":1,"message":"m"}`), nil
		}, want: `"error":{"code":1,"message":"m"}}}`},
		"no answer":          {request: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }, want: "whether the call ran is not known"},
		"the server is away": {request: func(upstream.Request) (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, want: `"status":"working"`, again: true},
		"a panic":            {request: func(upstream.Request) (upstream.Answer, error) { panic("oh") }, want: `"error":{"code":-32603,"message":"The answer of this call could not be stored.`},
		"policy is away":     {change: func(g *gatewaytest.Gateway) { g.Policy.Decision = nil }, want: `"status":"working"`, again: true},
		"policy denies": {change: func(g *gatewaytest.Gateway) {
			g.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		}, want: `"status":"completed"`},
		"not on record": {change: func(g *gatewaytest.Gateway) {
			g.Journal.Errors = map[journal.Kind]error{journal.KindOutcome: errors.New("full")}
		}, want: `"status":"completed"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t)
				g.RequireApproval("safe")
				id := makeTask(t, g)
				allow(g)
				own := g.Files().Request
				if tt.request != nil {
					g.Files().Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
						if r.Method() != "tools/call" {
							return own(ctx, r, events)
						}
						return tt.request(r)
					}
				}
				if tt.change != nil {
					g.Policy.Change(func() { tt.change(g) })
				}
				poll(g, id)
				g.Files().Request = own
				got := g.Do(aboutTask("tasks/get", id))
				synctest.Wait()
				if !strings.Contains(got.Text, tt.want) || got.Response.Unrecorded != (name == "not on record") {
					t.Errorf("the task is %s", got.Text)
				}
				if tt.again {
					allow(g)
					poll(g, id)
					if text := poll(g, id); !strings.Contains(text, `"status":"completed"`) {
						t.Errorf("later the task is %s", text)
					}
				}
			})
		})
	}
}

// An approver has denied the call of a task. The call is not sent, even if the policy has changed since then and allows
// such calls.
func TestTask_DeniedCallIsNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		id := makeTask(t, g)
		allow(g)
		g.Approvals.Set(&approvalv1.Approval{
			Id: "a-1", State: approvalv1.ApprovalState_APPROVAL_STATE_DENIED, Code: commonv1.Code_CODE_APPROVAL_DENIED, Server: "files", Method: "tools/call", Name: "safe",
		})
		poll(g, id)
		if text := poll(g, id); !strings.Contains(text, `"status":"completed"`) || !strings.Contains(text, `"code":"approval_denied"`) || len(g.Files().Requests()) != 0 {
			t.Errorf("a denied call: %s; the server got %q", text, g.Files().Requests())
		}
		time.Sleep(16 * time.Minute)
		if got := g.Do(aboutTask("tasks/get", id)); got.Code() != "params_invalid" {
			t.Errorf("long after its end: %d %s", got.Status, got.Text)
		}
	})
}

func TestTask_IsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		first, second := makeTask(t, g), makeTask(t, g)
		g.Do(aboutTask("tasks/cancel", first))
		if text := poll(g, first); !strings.Contains(text, `"status":"cancelled"`) || len(g.Approvals.Cancelled()) != 0 {
			t.Errorf("one of two: %s; ended are %q", text, g.Approvals.Cancelled())
		}
		g.Do(aboutTask("tasks/cancel", second))
		if got := g.Approvals.Cancelled(); len(got) != 1 || got[0] != "a-1" {
			t.Errorf("the other: ended are %q", got)
		}
		third := makeTask(t, g)
		allow(g)
		release, own := make(chan struct{}), g.Files().Request
		g.Files().Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			<-release
			return own(ctx, r, events)
		}
		poll(g, third)
		g.Do(aboutTask("tasks/cancel", third))
		if text := poll(g, third); !strings.Contains(text, `"status":"working","statusMessage":"The call is being made."`) {
			t.Errorf("while the call is made: %s", text)
		}
		close(release)
		synctest.Wait()
		if text := poll(g, third); !strings.Contains(text, `"status":"completed"`) {
			t.Errorf("a call that was made: %s", text)
		}
	})
}

// A gateway that is shutting down sends no more calls for tasks, and waits for those calls of tasks that are in flight.
func TestTask_CallIsNotMadeWhileTheGatewayStops(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		running, waiting := makeTask(t, g), makeTask(t, g)
		allow(g)
		release, own := make(chan struct{}), g.Files().Request
		g.Files().Request = func(ctx context.Context, r upstream.Request, events func([]byte)) (upstream.Answer, error) {
			<-release
			return own(ctx, r, events)
		}
		poll(g, running)
		drained := make(chan struct{})
		go func() {
			g.MCP.Drain(t.Context())
			close(drained)
		}()
		synctest.Wait()
		if text := poll(g, waiting); !strings.Contains(text, `"status":"working","statusMessage":"A person must`) {
			t.Errorf("a task that waits: %s", text)
		}
		select {
		case <-drained:
			t.Error("the gateway did not wait for the call")
		default:
		}
		close(release)
		<-drained
		if n := len(g.Journal.Records(journal.KindIntent)); n != 1 {
			t.Errorf("%d calls were made", n)
		}
	})
}

// A task's call is sent with the credential of the client that polls. If the caller's token is revoked, the call is not
// sent.
func TestTask_OfARevokedCallerIsNotMade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		id := makeTask(t, g)
		allow(g)
		m := aboutTask("tasks/get", id)
		m.Caller = gatewaytest.Caller("ana")
		m.Caller.Credential = gatewaytest.RevokedWhen(func() bool { return true })
		g.Do(m)
		synctest.Wait()
		if n := len(g.Journal.Records(journal.KindIntent)); n != 0 {
			t.Error("the call was made for a caller whose token is revoked")
		}
		poll(g, id)
		if n := len(g.Journal.Records(journal.KindIntent)); n != 1 {
			t.Errorf("the call was made %d times for its caller", n)
		}
	})
}

// Case N2. When a caller has 64 tasks, its further calls do not become tasks but are refused, and the refusals contain
// the approvals' ids.
func TestTask_CountIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t)
		g.RequireApproval("safe")
		for range 64 {
			makeTask(t, g)
		}
		if got := g.Do(taskCall("")); strings.Contains(got.Text, "taskId") || got.Code() != "approval_pending" {
			t.Errorf("one more: %s", got.Text)
		}
	})
}
