package mcpserver_test

import (
	"context"
	"encoding/base64"
	"maps"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	approvalv1 "github.com/sluice-mesh/sluice/gen/sluice/approval/v1"
	commonv1 "github.com/sluice-mesh/sluice/gen/sluice/common/v1"
	policyv1 "github.com/sluice-mesh/sluice/gen/sluice/policy/v1"
	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
)

func (w *testGateway) doWithTasks(method, name, params string, header ...http.Header) httpResponse {
	w.t.Helper()
	body, head := modern(method, name, params)
	for _, more := range header {
		maps.Copy(head, more)
	}
	return w.do("POST", "/mcp/files", strings.Replace(body, `"tasks":{}`, `"extensions":{"io.modelcontextprotocol/tasks":{}}`, 1), head)
}

func (w *testGateway) doTaskRequest(method, id string, header ...http.Header) httpResponse {
	w.t.Helper()
	return w.doWithTasks(method, id, `"taskId":"`+id+`"`, header...)
}

var ofTask = regexp.MustCompile(`"taskId":"([^"]+)"`)

func taskOf(t *testing.T, got httpResponse) string {
	t.Helper()
	id := ofTask.FindStringSubmatch(got.body)
	if id == nil {
		t.Fatalf("no task: %d %s", got.status, got.body)
	}
	return id[1]
}

var asBen = http.Header{"Authorization": {"Bearer " + benToken}}

// A call waits for an approval. If the client accepts tasks, it immediately receives a task, and the server does not
// receive the call. If an approver denies the call, the task ends.
func TestTask_IsMadeWhenACallWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING, func(a *approvalv1.Approval) {
			a.DecideBefore, a.ExecuteBefore = timestamppb.New(time.Now().Add(time.Minute)), nil
		})
		begin := time.Now()
		got := w.doWithTasks("tools/call", "safe", `"name":"safe"`)
		if want := `"result":{"resultType":"task","taskId":"sluice-task.`; got.status != http.StatusOK || !strings.Contains(got.body, want) || !time.Now().Equal(begin) {
			t.Fatalf("answered %d %s", got.status, got.body)
		}
		id := taskOf(t, got)
		for _, want := range []string{`"status":"working"`, `"ttlMs":960000`, `"pollIntervalMs":2000`, `"code":"approval_pending"`, `"createdAt":"2000-01-01T00:00:00Z"`} {
			if !strings.Contains(got.body, want) {
				t.Errorf("the task lacks %s: %s", want, got.body)
			}
		}
		if got := w.doTaskRequest("tasks/get", id); !strings.Contains(got.body, `{"resultType":"complete","taskId":"`+id+`","status":"working","statusMessage":"A person must`) {
			t.Errorf("while it waits: %s", got.body)
		}
		w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_DENIED, func(a *approvalv1.Approval) { a.Code = commonv1.Code_CODE_APPROVAL_DENIED })
		w.doTaskRequest("tasks/get", id)
		synctest.Wait()
		if got := w.doTaskRequest("tasks/get", id); !strings.Contains(got.body, `"status":"completed"`) || !strings.Contains(got.body, `"result":{"resultType":"complete","content":[{"type":"text","text":"Not executed: denied by ben`) {
			t.Errorf("denied: %s", got.body)
		}
		time.Sleep(15*time.Minute + time.Second)
		if got := w.doTaskRequest("tasks/get", id); got.status != http.StatusBadRequest || !strings.Contains(got.body, `"code":-32602`) {
			t.Errorf("beyond its time: %d %s", got.status, got.body)
		}
	})
}

// A client receives a task only if its request declares that the client accepts tasks. A call with inputResponses does
// not become a task. A call that already waits for its approval in round trips does not become a task either.
func TestTask_NeedsAClientThatAcceptsTasks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		w.Policy.Access.Methods = []string{"sampling/createMessage"}
		id := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		for what, got := range map[string]httpResponse{
			"not said":    w.doModern("tools/call", "safe", `"name":"safe"`),
			"an answer":   w.doWithTasks("tools/call", "safe", `"name":"safe","inputResponses":{}`),
			"in its leg":  w.doWithTasks("tools/call", "safe", `"name":"safe","requestState":"sluice-leg.1.a-1"`),
			"a state":     w.doWithTasks("tools/call", "safe", `"name":"safe","requestState":"of the server"`),
			"a large one": w.doWithTasks("tools/call", "safe", `"name":"safe","arguments":{"x":"`+strings.Repeat("x", 1<<20)+`"}`),
		} {
			if strings.Contains(got.body, `"taskId"`) || !strings.Contains(got.body, `"code":"approval_pending"`) {
				t.Errorf("%s: %s", what, got.body)
			}
		}
		if got := w.doModern("tasks/get", id, `"taskId":"`+id+`"`); got.status != http.StatusBadRequest ||
			!strings.Contains(got.body, `"code":-32021`) || !strings.Contains(got.body, `"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}`) {
			t.Errorf("asked without: %d %s", got.status, got.body)
		}
	})
}

// Cases I4, A3. Only the caller that created a task can use it. For other callers, its id is unknown.
func TestTask_BelongsToItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		id := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		for _, method := range []string{"tasks/get", "tasks/update", "tasks/cancel"} {
			for what, got := range map[string]httpResponse{
				"another's":   w.doTaskRequest(method, id, asBen),
				"unknown":     w.doTaskRequest(method, "sluice-task.ABC"),
				"of a server": w.doTaskRequest(method, "t-1"),
			} {
				if got.status != http.StatusBadRequest || !strings.Contains(got.body, `"code":-32602`) || !strings.Contains(got.body, "no such task of yours") {
					t.Errorf("%s of %s: %d %s", method, what, got.status, got.body)
				}
			}
		}
		if got := w.doTaskRequest("tasks/update", id); !strings.Contains(got.body, `"result":{"resultType":"complete"}`) {
			t.Errorf("an answer to nothing: %s", got.body)
		}
		if got := w.doTaskRequest("tasks/list", id); got.status != http.StatusNotFound {
			t.Errorf("a method that tasks do not have: %d %s", got.status, got.body)
		}
		if got := w.doTaskRequest("tasks/get", id); !strings.Contains(got.body, `"status":"working"`) {
			t.Errorf("it did not outlive that: %s", got.body)
		}
	})
}

// Case N2. A caller may have 64 tasks. Further calls are refused, and the refusals contain the ids of their approvals.
func TestTask_MemoryIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		var ids []string
		for range 64 {
			ids = append(ids, taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`)))
		}
		if got := w.doWithTasks("tools/call", "safe", `"name":"safe"`); strings.Contains(got.body, `"taskId"`) || !strings.Contains(got.body, `"isError":true`) {
			t.Errorf("one more: %s", got.body)
		}
		w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_DENIED, func(a *approvalv1.Approval) { a.Code = commonv1.Code_CODE_APPROVAL_DENIED })
		for range 2 { // the first request ends the task; the second reports the end, so that the task can be removed
			w.doTaskRequest("tasks/get", ids[7])
			synctest.Wait()
		}
		w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_PENDING, nil)
		taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		if got := w.doTaskRequest("tasks/get", ids[7]); got.status != http.StatusBadRequest {
			t.Errorf("what has ended did not make way: %s", got.body)
		}
	})
}

// Case I4. The gateway translates the id of a server's task into an id that only the caller can use. The gateway
// translates that id back only in requests from this caller. The server, the policy service and the record receive the
// original id.
func TestTask_OfAServerIsBoundToItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t, "tasks/get")
		var got []upstream.Request
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			got = append(got, r)
			if r.Method() == "tools/call" {
				return gatewaytest.Result(r, `{"resultType":"task","taskId":"ä.1","status":"working","ttlMs":null}`), nil
			}
			return gatewaytest.Result(r, `{"resultType":"complete","taskId":"ä.1","status":"completed","result":{"taskId":"ä.1"}}`), nil
		}
		first := w.doWithTasks("tools/call", "safe", `"name":"safe"`)
		id := taskOf(t, first)
		if again := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`)); again != id || strings.Contains(first.body, "ä.1") {
			t.Fatalf("the client got %s, and %s", first.body, again)
		}
		if sent := string(got[0].Body()); !strings.Contains(sent, `"extensions":{"io.modelcontextprotocol/tasks":{}}`) {
			t.Errorf("the server got %s", sent)
		}
		later := w.doTaskRequest("tasks/get", id)
		if want := `{"resultType":"complete","taskId":"` + id + `","status":"completed","result":{"taskId":"ä.1"}}`; !strings.Contains(later.body, want) {
			t.Errorf("later the client got %s", later.body)
		}
		if last := got[len(got)-1]; last.Message.TaskID != "ä.1" || strings.Contains(string(last.Body()), id) {
			t.Errorf("the server got %s", last.Body())
		}
		before := len(got)
		for what, answered := range map[string]httpResponse{
			"another's":    w.doTaskRequest("tasks/get", id, asBen),
			"the server's": w.doTaskRequest("tasks/get", "ä.1", http.Header{"Mcp-Name": {"=?base64?" + base64.StdEncoding.EncodeToString([]byte("ä.1")) + "?="}}),
		} {
			if answered.status != http.StatusBadRequest || !strings.Contains(answered.body, `"code":-32602`) || len(got) != before {
				t.Errorf("%s: %d %s", what, answered.status, answered.body)
			}
		}
	})
}

// If the policy denies tasks/get to a caller, the gateway does not declare to servers that the client accepts tasks.
func TestTask_CapabilityIsDeclaredWhenPolicyAllows(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newModernGateway(t)
		var sent string
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "server/discover" {
				return w.files.Open(r)
			}
			sent = string(r.Body())
			return gatewaytest.Result(r, `{"content":[],"resultType":"complete","taskId":"a tool's own"}`), nil
		}
		if got := w.doWithTasks("tools/call", "safe", `"name":"safe"`); strings.Contains(sent, "tasks") || !strings.Contains(got.body, `"taskId":"a tool's own"`) {
			t.Errorf("the server got %s, and the client got %s", sent, got.body)
		}
		if got := w.doWithTasks("server/discover", "", ""); !strings.Contains(got.body, `"extensions":{"io.modelcontextprotocol/tasks":{}}`) {
			t.Errorf("what is offered: %s", got.body)
		}
	})
}

// Case U1. A server may answer with a task only if the request declares that the client accepts tasks. The gateway
// checks a task's result like any other answer.
func TestTask_AnswersAreChecked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		takes  bool
		answer string
		says   string
	}{
		"a task that is not accepted":  {false, `{"resultType":"task","taskId":"t"}`, `"code":"outcome_unknown"`},
		"a task by no text":            {true, `{"resultType":"task","taskId":7}`, `"code":"outcome_unknown"`},
		"asks at its end":              {true, `{"resultType":"complete","taskId":"t","status":"completed","result":{"inputRequests":{}}}`, `"code":"outcome_unknown"`},
		"an address at its end":        {true, `{"resultType":"complete","taskId":"t","status":"failed","error":{"code":-32042,"message":"m"}}`, `"code":"outcome_unknown"`},
		"read in two ways":             {true, `{"resultType":"complete","taskId":"t","status":"completed","result":{"isError":true,"IsError":false}}`, `"code":"outcome_unknown"`},
		"what is the gateway's to say": {true, `{"resultType":"complete","taskId":"t","status":"failed","error":{"code":1,"message":"m","data":{"dev.sluice/decision":{},"x":1}}}`, `"error":{"code":1,"message":"m","data":{"x":1}}`},
		"and of a result":              {true, `{"resultType":"complete","taskId":"t","status":"completed","result":{"big":9007199254740993,"_meta":{"dev.sluice/x":1}}}`, `"result":{"big":9007199254740993,"_meta":{}}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newModernGateway(t, "tasks/get")
				first := true
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					if r.Method() == "tasks/get" || !strings.Contains(tt.answer, "complete") {
						return gatewaytest.Result(r, tt.answer), nil
					}
					first = false
					return gatewaytest.Result(r, `{"resultType":"task","taskId":"t"}`), nil
				}
				ask := w.doWithTasks
				if !tt.takes {
					ask = func(method, name, params string, _ ...http.Header) httpResponse {
						return w.doModern(method, name, params)
					}
				}
				got := ask("tools/call", "safe", `"name":"safe"`)
				if !first {
					got = w.doTaskRequest("tasks/get", taskOf(t, got))
				}
				if !strings.Contains(got.body, tt.says) {
					t.Errorf("the client got %s", got.body)
				}
			})
		})
	}
}

// Cases X4, X5. Task requests for which no rule is needed are limited in size. Task requests with methods that are not
// in a fixed list are refused.
func TestTask_RequestsAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		id := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		if got := w.doWithTasks("tasks/get", id, `"taskId":"`+id+`","x":"`+strings.Repeat("x", 1<<20)+`"`); got.code() != "body_too_large" {
			t.Errorf("a large one: %s", got.body)
		}
		for _, method := range []string{"tasks/x", "tasks/list", "tasks/result"} {
			if got := w.doTaskRequest(method, id); got.status < 400 || strings.Contains(got.body, `"status"`) {
				t.Errorf("%s: %d %s", method, got.status, got.body)
			}
		}
	})
}

func (w *testGateway) approve() {
	w.setRoundTripApproval(approvalv1.ApprovalState_APPROVAL_STATE_APPROVED, nil)
	w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_ALLOW}
}

// If the call of a task fails, the task either ends or waits for its approval again.
func TestTask_CallMayFail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		request func() (upstream.Answer, error)
		away    bool
		says    string
	}{
		"it panics":      {request: func() (upstream.Answer, error) { panic("oh") }, says: `"status":"failed"`},
		"policy is away": {away: true, says: `"status":"working"`},
		"not reached":    {request: func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNeverSent }, says: `"status":"working"`},
		"no answer":      {request: func() (upstream.Answer, error) { return upstream.Answer{}, upstream.ErrNoAnswer }, says: `whether the call ran is not known`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
				id := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
				w.approve()
				if tt.away {
					w.Policy.Decision = nil
				}
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						return w.files.Discovery(r)
					}
					return tt.request()
				}
				w.doTaskRequest("tasks/get", id)
				synctest.Wait()
				time.Sleep(time.Minute)
				synctest.Wait()
				w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
					if r.Method() == "tools/list" {
						return w.files.Discovery(r)
					}
					return gatewaytest.Result(r, `{"content":[],"late":true,"resultType":"complete"}`), nil
				}
				if got := w.doTaskRequest("tasks/get", id); !strings.Contains(got.body, tt.says) {
					t.Errorf("it is %s", got.body)
				}
				synctest.Wait()
				if strings.Contains(tt.says, "working") {
					w.approve()
					w.doTaskRequest("tasks/get", id)
					synctest.Wait()
					if got := w.doTaskRequest("tasks/get", id); !strings.Contains(got.body, `"late":true`) {
						t.Errorf("later it is %s", got.body)
					}
				}
			})
		})
	}
}

// If a client cancels a task before the task's call is sent, the call is not sent. If the client cancels the task
// later, the task reports the call's outcome. The approval is not cancelled while another task waits for it.
func TestTask_IsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		first, second := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`)), taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		w.doTaskRequest("tasks/cancel", first)
		if got := w.doTaskRequest("tasks/get", first); !strings.Contains(got.body, `"status":"cancelled"`) || len(w.Approvals.Cancelled()) != 0 {
			t.Errorf("one of two: %s, and %q", got.body, w.Approvals.Cancelled())
		}
		w.doTaskRequest("tasks/cancel", second)
		if len(w.Approvals.Cancelled()) != 1 {
			t.Errorf("the other: %q", w.Approvals.Cancelled())
		}
		third := taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
		w.approve()
		made := make(chan struct{})
		w.files.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
			if r.Method() == "tools/list" {
				return w.files.Discovery(r)
			}
			<-made
			return gatewaytest.Result(r, `{"content":[],"paid":true,"resultType":"complete"}`), nil
		}
		w.doTaskRequest("tasks/get", third)
		synctest.Wait()
		w.doTaskRequest("tasks/cancel", third)
		if got := w.doTaskRequest("tasks/get", third); !strings.Contains(got.body, `"status":"working"`) {
			t.Errorf("while it is made: %s", got.body)
		}
		close(made)
		synctest.Wait()
		if got := w.doTaskRequest("tasks/get", third); !strings.Contains(got.body, `"status":"completed"`) || !strings.Contains(got.body, `"paid":true`) {
			t.Errorf("what was made: %s", got.body)
		}
	})
}

// A call that ends before an approval is requested does not count toward the quota of tasks.
func TestTask_QuotaIsReleased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newRoundTripGateway(t, approvalv1.ApprovalState_APPROVAL_STATE_PENDING)
		for range 100 {
			if got := w.doWithTasks("tools/call", "region", `"name":"region","arguments":{"r":"eu"}`, http.Header{"Mcp-Param-Region": {"us"}}); !strings.Contains(got.body, "-32020") {
				t.Fatalf("another region: %s", got.body)
			}
		}
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_DENY}
		for range 100 {
			w.doWithTasks("tools/call", "safe", `"name":"safe"`)
		}
		w.Policy.Decision = &policyv1.Decision{Effect: policyv1.Effect_EFFECT_REQUIRE_APPROVAL, Approval: &policyv1.ApprovalTerms{Quorum: 1}}
		taskOf(t, w.doWithTasks("tools/call", "safe", `"name":"safe"`))
	})
}
