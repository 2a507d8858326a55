package v2026_test

import (
	"context"
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sluice-mesh/sluice/services/gateway/internal/gatewaytest"
	"github.com/sluice-mesh/sluice/services/gateway/internal/upstream"
	"github.com/sluice-mesh/sluice/services/internal/journal"
)

// tasksOf makes the server answer calls with a task, and requests about tasks with a result. created is the task and
// result is the result, both as raw JSON.
func tasksOf(s *gatewaytest.Server, created, result string) {
	s.Request = func(_ context.Context, r upstream.Request, _ func([]byte)) (upstream.Answer, error) {
		if r.Method() == "tools/call" {
			return gatewaytest.Result(r, created), nil
		}
		return gatewaytest.Result(r, result), nil
	}
}

// Case I4. If a client knew the server's own id of a task, any other client that learned the id could use the task. The
// client therefore receives another id, which only its caller can use.
func TestServerTask_IDIsBoundToItsCaller(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.StartModern(t, "tasks/get")
		tasksOf(g.Files(), `{"resultType":"task","taskId":"ä.1","status":"working"}`, `{"resultType":"complete","taskId":"ä.1","status":"completed","result":{"taskId":"ä.1"}}`)
		first := g.Do(taskCall(""))
		id := between(first.Text, `"taskId":"`, `"`)
		if strings.Contains(first.Text, "ä.1") || !strings.Contains(last(g.Files()), `"extensions":{"io.modelcontextprotocol/tasks":{}}`) {
			t.Fatalf("the client got %s, the server %s", first.Text, last(g.Files()))
		}
		if again := between(g.Do(taskCall("")).Text, `"taskId":"`, `"`); again != id {
			t.Errorf("the same task has the ids %s and %s", id, again)
		}
		if got := g.Do(aboutTask("tasks/get", id)); !strings.Contains(got.Text, `"taskId":"`+id+`","status":"completed","result":{"taskId":"ä.1"}`) {
			t.Errorf("the client got %s", got.Text)
		}
		if sent := last(g.Files()); !strings.Contains(sent, `"taskId":"ä.1"`) {
			t.Errorf("the server got %s", sent)
		}
		if intents := g.Journal.Records(journal.KindIntent); intents[len(intents)-1].Tool != "ä.1" {
			t.Errorf("on record is %+v", intents[len(intents)-1])
		}
		before := len(g.Files().Requests())
		own := aboutTask("tasks/get", "ä.1").With("Mcp-Name", "=?base64?"+base64.StdEncoding.EncodeToString([]byte("ä.1"))+"?=")
		for name, m := range map[string]gatewaytest.Message{"another caller": aboutTask("tasks/get", id).From("ben"), "the server's own id": own, "a changed id": aboutTask("tasks/get", id[:len(id)-2]+"AA")} {
			if got := g.Do(m); got.Code() != "params_invalid" || got.Status != http.StatusBadRequest || len(g.Files().Requests()) != before {
				t.Errorf("%s: %d %s", name, got.Status, got.Text)
			}
		}
	})
}

// The gateway declares to a server that the client accepts tasks if the client declares this and the policy allows
// tasks/get.
func TestServerTask_IsDeclaredAsPolicyAllows(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		methods []string
		message gatewaytest.Message
		want    bool
	}{
		"accepted and allowed": {[]string{"tasks/get"}, taskCall(""), true},
		"not allowed":          {nil, taskCall(""), false},
		"not accepted":         {[]string{"tasks/get"}, gatewaytest.ModernCall("safe", ""), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, tt.methods...)
				tasksOf(g.Files(), `{"resultType":"task","taskId":"t"}`, `{}`)
				got := g.Do(tt.message)
				if declared := strings.Contains(last(g.Files()), "io.modelcontextprotocol/tasks"); declared != tt.want {
					t.Errorf("the server got %s", last(g.Files()))
				}
				if passed := strings.Contains(got.Text, `"resultType":"task"`); passed != tt.want || !passed && got.Code() != "outcome_unknown" {
					t.Errorf("the client got %s", got.Text)
				}
			})
		})
	}
}

// A server that uses sessions answers a call with a task. The answer is refused, because revisions with sessions define
// tasks differently.
func TestServerTask_OfAServerWithSessionsIsNotAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := gatewaytest.Start(t)
		g.Policy.Allow("tasks/get")
		g.Files().Respond(`{"resultType":"task","taskId":"t","status":"working"}`)
		if got := g.Do(taskCall("")); got.Code() != "outcome_unknown" || strings.Contains(got.Text, `"taskId"`) {
			t.Errorf("the client got %s", got.Text)
		}
	})
}

// Case U1. The gateway checks the result of a server's task like any other answer, and removes reserved members from
// it.
func TestServerTask_OutcomeIsChecked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ created, result, want string }{
		"an id that is no text":       {`{"resultType":"task","taskId":7}`, ``, `"code":"outcome_unknown"`},
		"a later id that is no text":  {``, `{"taskId":{},"status":"working"}`, `"code":"outcome_unknown"`},
		"no later id":                 {``, `{"status":"working"}`, `"result":{"status":"working"}`},
		"requests in the result":      {``, `{"taskId":"t","result":{"inputRequests":{}}}`, `"code":"outcome_unknown"`},
		"an address in the error":     {``, `{"taskId":"t","error":{"code":-32042,"message":"m"}}`, `"code":"outcome_unknown"`},
		"a result with two readings":  {``, `{"taskId":"t","result":{"isError":true,"IsError":false}}`, `"code":"outcome_unknown"`},
		"a decision in the error":     {``, `{"taskId":"t","error":{"code":1,"message":"m","data":{"dev.sluice/decision":{},"x":1}}}`, `"error":{"code":1,"message":"m","data":{"x":1}}`},
		"a decision in the result":    {``, `{"taskId":"t","result":{"big":9007199254740993,"_meta":{"dev.sluice/x":1}}}`, `"result":{"big":9007199254740993,"_meta":{}}`},
		"a task as the answer to get": {``, `{"resultType":"task","taskId":"t"}`, `"code":"outcome_unknown"`},
		"a type that is no text":      {`{"resultType":7,"taskId":"of a tool","content":[]}`, ``, `"taskId":"of a tool"`},
		"a field of a tool":           {`{"resultType":"complete","taskId":"of a tool","result":{"inputRequests":1}}`, ``, `"taskId":"of a tool"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				g := gatewaytest.StartModern(t, "tasks/get")
				tasksOf(g.Files(), `{"resultType":"task","taskId":"t"}`, tt.result)
				id := between(g.Do(taskCall("")).Text, `"taskId":"`, `"`)
				m := aboutTask("tasks/get", id)
				if tt.created != "" {
					g.Files().Respond(tt.created)
					m = taskCall("")
				}
				if got := g.Do(m); !strings.Contains(got.Text, tt.want) {
					t.Errorf("the client got %s, want %s", got.Text, tt.want)
				}
			})
		})
	}
}
